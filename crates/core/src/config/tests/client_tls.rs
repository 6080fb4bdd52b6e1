//! `tls` and `http2` of `[upstream.NAME]`, and the schemes of its servers.

use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::super::*;
use super::{check, codes, fine};

const ROUTE: &str = "[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n";

fn file(servers: &str, more: &str) -> String {
    format!("{ROUTE}[upstream.api]\nservers = [{servers}]\n{more}")
}

fn read(servers: &str, more: &str) -> UpstreamSettings {
    fine(&file(servers, more)).upstreams.remove(0)
}

#[test]
fn https_is_verified_and_offers_http_2_unless_told_otherwise() {
    let plain = read("\"https://a.test\"", "");
    assert_eq!(*plain.tls, ClientTls::default());
    assert!(plain.http2);
    let told = read(
        "\"https://10.0.0.1:8443\", \"http://b.test\"",
        "http2 = false\ntls = { name = \"api.test\" }\n",
    );
    assert_eq!(told.tls.name.as_deref(), Some("api.test"));
    assert!(!told.http2 && !told.tls.unverified && !told.tls.hides_name);
    assert!(
        read("\"https://a.test\"", "tls = { sni = false }\n")
            .tls
            .hides_name
    );
    assert!(
        read("\"https://a.test\"", "tls = { resume = false }\n")
            .tls
            .never_resumes
    );
    read("\"h2c://a.test\", \"https://[::1]\"", "");
}

#[test]
fn files_are_read_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["a.test".into()]).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let cert = write("cert.pem", cert.pem());
    let key = write("key.pem", signing_key.serialize_pem());
    let tls = format!("tls = {{ ca = \"{cert}\", cert = \"{cert}\", key = \"{key}\" }}\n");
    let settings = read("\"https://a.test\"", &tls);
    assert!(settings.tls.ca.is_some() && settings.tls.identity.is_some());
    let shown = format!("{settings:?}");
    assert!(
        !shown.contains("BEGIN") && !shown.contains("45, 45"),
        "{shown}"
    );
    for (tls, code) in [
        (format!("tls = {{ cert = \"{cert}\" }}\n"), "T104"),
        (format!("tls = {{ key = \"{key}\" }}\n"), "T104"),
        (format!("tls = {{ ca = \"{key}\" }}\n"), "T108"),
        ("tls = { ca = \"/nowhere/at/all\" }\n".to_owned(), "T108"),
        (
            format!("tls = {{ ca = \"{cert}\", verify = false }}\n"),
            "T124",
        ),
    ] {
        assert_eq!(codes(&file("\"https://a.test\"", &tls)), [code], "{tls}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (servers, more, code) in [
        ("\"http://a.test\"", "tls = { name = \"b.test\" }\n", "T124"),
        ("\"http://a.test\"", "http2 = false\n", "T124"),
        ("\"https://a.test\"", "tls = { name = \"a b\" }\n", "T113"),
        ("\"https://a.test\"", "tls = { insecure = true }\n", "T101"),
        ("\"https://a.test\"", "tls = { verify = \"no\" }\n", "T103"),
        ("\"https://a.test\"", "http2 = \"yes\"\n", "T103"),
        ("\"https://a.test/path\"", "", "T114"),
        ("\"h2://a.test\"", "", "T114"),
        ("\"https://a_b-.test\"", "", "T114"),
    ] {
        assert_eq!(codes(&file(servers, more)), [code], "{servers} {more}");
    }
}

#[test]
fn not_verifying_is_warned_of() {
    check(
        &format!(
            "{ROUTE}[upstream.api]\nservers = [\"https://a.test\"]\ntls = {{ verify = false }}\n"
        ),
        r#"warning[T215]: the upstream's certificate is not verified
 --> proxy.toml:7:9
  |
7 | tls = { verify = false }
  |         ^^^^^^ an attacker in the network can pose as its servers
help: name the authority that signs it: `tls = { ca = "/etc/tidegate/ca.pem" }`
"#,
    );
}
