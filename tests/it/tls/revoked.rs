//! Clients that TLS turns away: revoked certificates, unknown names, no TLS at all. And upstreams with
//! revoked certificates.

use super::stage::Stage;
use super::{BY_SUBJECT, VERSIONS};
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;

#[test]
fn a_client_whose_certificate_is_revoked_is_turned_away() {
    let files = "client_ca = \"ca.pem\"\nclient_crl = \"revoked.crl\"";
    let stage = Stage::with_revoked(&["bob"], files, BY_SUBJECT);
    let shown = |name: &str, version: &[&str]| {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        let more = [version, &["--cert", &cert, "--key", &key]].concat();
        stage.curl("one.test", "/", &more).status.success()
    };
    for version in VERSIONS {
        assert!(shown("ann", version));
        assert!(!shown("bob", version));
    }
    // The file is read again when it changes.
    let folder = stage.proxy.directory.path();
    stage.ca.revoke(folder, "revoked", &["ann"]);
    eventually("the new list is used", || {
        !shown("ann", &[]) && shown("bob", &[])
    });
    let reason = "the client's certificate is revoked";
    assert!(!stage.upstream.seen().is_empty(), "{reason}");
}

#[test]
fn an_upstream_whose_certificate_is_revoked_gets_no_request() {
    let stage = Stage::with_revoked(&["one"], "", "");
    let folder = stage.proxy.directory.path().display();
    let url = format!("https://localhost:{}", stage.secure.port());
    let start = |lists: &str| {
        Tidegate::start(&format!(
            "[upstream.app]\nservers = [\"{url}\"]\ntls = {{ ca = \"{folder}/ca.pem\"{lists} }}\n\
             [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = []\n"
        ))
    };
    assert_eq!(start("").get("/a").status, 200);
    stage.ca.revoke(stage.proxy.directory.path(), "none", &[]);
    let with = |name: &str| format!(", crl = \"{folder}/{name}.crl\"");
    assert_eq!(start(&with("none")).get("/a").status, 200);
    assert_eq!(start(&with("revoked")).get("/a").status, 502);
    assert_eq!(stage.upstream.seen().len(), 2);
}

#[test]
fn plain_http_2_at_an_address_with_tls_is_a_bad_request() {
    let stage = Stage::before(Upstream::ok(), "", "");
    let mut client = crate::house::Client::to(stage.secure);
    let answer = client.ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(answer.status, 400);
}

#[test]
fn a_client_that_asks_for_an_unknown_name_can_be_refused() {
    let stage = Stage::start("unknown_name = \"refuse\"", "");
    for version in VERSIONS {
        assert!(stage.curl("one.test", "/", version).status.success());
        let refused = stage.curl("other.test", "/", &[version, &["-k"]].concat());
        assert!(!refused.status.success());
    }
    assert!(stage.openssl("", &[]).contains("alert"), "without a name");
}
