//! A cluster behind TLS, with a user of the least rights.

use super::nodes::RedisCluster;
use crate::house::{Tidegate, Upstream};
use crate::topologies::certificates::Certificates;
use crate::topologies::rule;

/// What `docs/store.md` adds for a cluster.
const MORE: &str = "+asking +cluster|slots +cluster|info";

#[test]
fn tls_and_the_least_rights_of_a_user() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let cluster = RedisCluster::start_over_tls(&certificates);
    assert!(include_str!("../../../docs/store.md").contains(MORE));
    for node in &cluster.nodes {
        let rule = format!("{} {MORE}", rule("tidegate"));
        assert_eq!(node.run(&rule), redis::Value::Okay, "{rule}");
    }
    std::fs::write(certificates.path("password"), "SECRET\n").unwrap();
    let config = |ca: &str| {
        format!(
            "upstream = \"{}\"\n[log]\naccess = \"off\"\n[store]\nurl = \"{}\"\n\
             username = \"tidegate\"\npassword_file = \"{}\"\nfleet = \"auto\"\n\
             timeout = \"5s\"\non_error = \"deny\"\n[store.tls]\nca = \"{}\"\n\
             [limit.default]\nrate = \"2/h\"\nkey = \"header:x-key\"\n",
            upstream.url(),
            cluster.url(),
            certificates.path("password").display(),
            certificates.path(ca).display()
        )
    };
    let proxy = Tidegate::start(&config("ca.pem"));
    // Keys enough for every node.
    for who in 0..30 {
        let ask = |_| proxy.get_with("/", &format!("X-Key: {who}\r\n")).status;
        let answers: Vec<u16> = (0..3).map(ask).collect();
        assert_eq!(answers, [200, 200, 429], "{who}");
    }
    for node in &cluster.nodes {
        let denied = node.run("ACL LOG");
        assert_eq!(denied, redis::Value::Array(Vec::new()), "{denied:?}");
    }
    let stranger = Tidegate::start(&config("stranger.pem"));
    let line = stranger.wait_for_line("redis: ");
    assert!(line.contains("signed by an unknown authority"), "{line}");
    assert_eq!(stranger.get("/").status, 503);
}
