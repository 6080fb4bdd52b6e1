//! `[tls]`: what is understood, refused and doubted.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::super::{AcmeChallenge, Config, TlsVersion};
use super::{accept, codes, fine, refuse};

const REST: &str = "[limit.default]\nrate = \"5/s\"\n";

/// Files `good`, `other` and `expired`, each `.pem` and `.key`, and a file that holds neither.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        for (name, end) in [("good", 2999), ("other", 2999), ("expired", 2020)] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(end, 1, 1);
            let pem = params.self_signed(&key).unwrap().pem();
            let path = |ending: &str| folder.path().join(format!("{name}.{ending}"));
            std::fs::write(path("pem"), pem).unwrap();
            std::fs::write(path("key"), key.serialize_pem()).unwrap();
        }
        std::fs::write(folder.path().join("empty.pem"), "nothing\n").unwrap();
        Files(folder)
    }

    /// A file with this in it, where `DIR` is the folder.
    fn text(&self, tls: &str) -> String {
        let text = format!("upstream = \"http://127.0.0.1:3000\"\n{REST}{tls}");
        text.replace("DIR", &self.0.path().display().to_string())
    }

    fn fine(&self, tls: &str) -> Config {
        fine(&self.text(tls))
    }

    fn refused(&self, tls: &str) -> String {
        refuse(&self.text(tls)).to_string()
    }
}

const GOOD: &str = "certificates = { cert = \"DIR/good.pem\", key = \"DIR/good.key\" }\n";

#[test]
fn a_section_with_a_certificate_is_enough() {
    let config = Files::new().fine(&format!("[tls]\n{GOOD}"));
    let tls = config.tls.unwrap();
    assert_eq!(tls.listen.len(), 1);
    assert_eq!(tls.listen[0].to_string(), "[::]:8443");
    assert_eq!(tls.certificates.len(), 1);
    assert!(tls.clients.is_none() && tls.redirect.is_none() && tls.hsts.is_none());
    assert_eq!(tls.min_version, TlsVersion::V1_2);
    assert!(!format!("{tls:?}").contains("PRIVATE"), "{tls:?}");
}

#[test]
fn everything_can_be_said() {
    let config = Files::new().fine(&format!(
        "[tls]\n{GOOD}listen = [\"127.0.0.1:4430\", \"unix:/run/x\"]\n\
         client_ca = \"DIR/other.pem\"\nclient_auth = \"optional\"\nmin_version = \"1.3\"\n\
         redirect = 443\nhsts = \"30d\"\n"
    ));
    let tls = config.tls.unwrap();
    assert_eq!(tls.listen.len(), 2);
    assert_eq!(
        tls.clients.as_ref().map(|clients| clients.required),
        Some(false)
    );
    assert_eq!(tls.min_version, TlsVersion::V1_3);
    assert_eq!(tls.redirect, Some(443));
    assert_eq!(tls.hsts, Some(Duration::from_secs(30 * 86_400)));
}

#[test]
fn a_proxy_may_listen_with_tls_only() {
    let files = Files::new();
    let text = files.text(&format!("[tls]\n{GOOD}"));
    assert!(fine(&format!("listen = []\n{text}")).listen.is_empty());
    let text = files.text(&format!("[tls]\n{GOOD}redirect = 443\n"));
    let said = refuse(&format!("listen = []\n{text}")).to_string();
    assert!(said.contains("needs a plain listener"), "{said}");
    let said = refuse(&format!("listen = []\n{}", files.text(""))).to_string();
    assert!(said.contains("one or more addresses"), "{said}");
}

#[test]
fn switches_can_be_off() {
    let tls = format!("[tls]\n{GOOD}redirect = false\nhsts = false\n");
    let tls = Files::new().fine(&tls).tls.unwrap();
    assert!(tls.redirect.is_none() && tls.hsts.is_none());
}

#[test]
fn what_cannot_be_used_is_said_where_it_stands() {
    let files = Files::new();
    for (tls, wanted) in [
        ("[tls]\n", "`tls` has no `certificates`"),
        ("[tls]\ncertificates = []\n", "1 to 10000 certificates"),
        (
            "[tls]\ncertificates = [{ cert = \"DIR/good.pem\" }]\n",
            "has no `key`",
        ),
        (
            "[tls]\ncertificates = { cert = \"DIR/good.pem\", key = \"DIR/other.key\" }\n",
            "not the key of `cert`",
        ),
        (
            "[tls]\ncertificates = { cert = \"DIR/empty.pem\", key = \"DIR/good.key\" }\n",
            "no certificate in it",
        ),
        (
            "[tls]\ncertificates = { cert = \"DIR/good.pem\", key = \"DIR/good.pem\" }\n",
            "no private key in it",
        ),
        (
            "[tls]\ncertificates = { cert = \"DIR/none.pem\", key = \"DIR/good.key\" }\n",
            "No such file",
        ),
        (
            "[tls]\ncertificates = { cert = \"DIR/good.pem\", key = \"DIR/good.key\", ca = 1 }\n",
            "unknown key `ca` in `tls.certificates`",
        ),
        (
            "[tls]\nGOODclient_ca = \"DIR/empty.pem\"\n",
            "no certificate in it",
        ),
        (
            "[tls]\nGOODclient_auth = \"required\"\n",
            "needs `client_ca`",
        ),
        (
            "[tls]\nGOODmin_version = \"1.1\"\n",
            "must be `\"1.2\"` or `\"1.3\"`",
        ),
        ("[tls]\nGOODlisten = []\n", "one or more addresses"),
        ("[tls]\nGOODlisten = \":8080\"\n", "the same address twice"),
        (
            "[tls]\nGOODlisten = \":0\"\nredirect = true\n",
            "must name the port",
        ),
        ("[tls]\nGOODredirect = \"443\"\n", "true, false or a port"),
        ("[tls]\nGOODredirect = 70000\n", "out of range"),
        ("[tls]\nGOODhsts = \"soon\"\n", "not a length of time"),
        ("[tls]\nGOODhsts = \"0s\"\n", "out of range"),
        (
            "[tls]\nGOODcertifcates = []\n",
            "did you mean `certificates`?",
        ),
    ] {
        let said = files.refused(&tls.replace("GOOD", GOOD));
        assert!(said.contains(wanted), "{tls}: {said}");
    }
}

#[test]
fn a_certificate_that_has_ended_is_a_doubt() {
    let tls = GOOD.replace("good", "expired");
    let files = Files::new();
    let text = files.text(&format!("[tls]\n{tls}"));
    let (_, warnings) = accept(&text);
    let said = warnings.to_string();
    assert!(
        said.contains("warning[T220]: a certificate has expired"),
        "{said}"
    );
}

#[test]
fn a_key_of_certificates_needs_clients_that_show_some() {
    let files = Files::new();
    let tls = |rest: &str| {
        let text = files.text(&format!("[tls]\n{GOOD}{rest}"));
        text.replace(
            "rate = \"5/s\"\n",
            "rate = \"5/s\"\nkey = \"tls:subject or ip\"\n",
        )
    };
    fine(
        &tls("client_ca = \"DIR/other.pem\"\n")
            .replace("DIR", &files.0.path().display().to_string()),
    );
    let said = refuse(&tls("")).to_string();
    assert!(said.contains("`tls:subject` needs `[tls]`"), "{said}");
    assert_eq!(codes(&tls("").replace("subject", "sbject")), ["T111"]);
}

const ACME: &str = "[tls]\n[tls.acme]\ndomains = [\"A.test\", \"b.test\"]\ncontact = \"o@a.test\"\n\
    terms = true\ncache = \"kept\"\n";

#[test]
fn a_certificate_may_be_got_from_an_authority() {
    let files = Files::new();
    let acme = files.fine(ACME).tls.unwrap().acme.clone().unwrap();
    assert_eq!(acme.domains, ["a.test", "b.test"]);
    assert_eq!(acme.contact, ["mailto:o@a.test"]);
    assert_eq!(acme.challenge, AcmeChallenge::Http01);
    assert!(acme.directory.contains("letsencrypt"));
    for (from, to, wanted) in [
        ("terms = true\n", "", "write `terms = true`"),
        ("terms = true\n", "terms = false\n", "write `terms = true`"),
        ("cache = \"kept\"\n", "", "has no `cache`"),
        ("\"b.test\"", "\"*.test\"", "a wildcard takes a record"),
        ("\"b.test\"", "\"10.0.0.1\"", "an address or a port"),
        ("\"b.test\"", "\"a.test\"", "the same name twice"),
        ("[\"A.test\", \"b.test\"]", "[]", "1 to 100 names"),
        ("o@a.test", "nobody", "not a mail address"),
        (
            "cache",
            "challenge = \"dns-01\"\ncache",
            "`\"http-01\"` or `\"tls-alpn-01\"`",
        ),
        (
            "cache",
            "directory = \"http://a\"\ncache",
            "not the URL of a directory",
        ),
        (
            "[tls.acme]\n",
            "client_ca = \"DIR/other.pem\"\n[tls.acme]\nchallenge = \"tls-alpn-01\"\n",
            "exclude each other",
        ),
    ] {
        let said = files.refused(&ACME.replace(from, to));
        assert!(said.contains(wanted), "{to}: {said}");
    }
    let text = files.text(ACME);
    let said = refuse(&format!("listen = []\n{text}")).to_string();
    assert!(said.contains("needs a plain listener"), "{said}");
    let within = ACME.replace("cache", "challenge = \"tls-alpn-01\"\ncache");
    fine(&format!("listen = []\n{}", files.text(&within)));
}

#[test]
fn proxies_that_ask_can_be_asked_for_certificates() {
    let files = Files::new();
    let decide = |rest: &str| format!("[decide]\nlisten = \"127.0.0.1:8081\"\n{rest}");
    let pair = "cert = \"DIR/good.pem\"\nkey = \"DIR/good.key\"\n";
    let plain = files.fine(&decide("")).decide.unwrap();
    assert!(plain.tls.is_none());
    assert_eq!((plain.max_message, plain.max_descriptors), (64 << 10, 64));
    let bounds = decide("max_message = \"1MiB\"\nmax_descriptors = 1024\n");
    let bounded = files.fine(&bounds).decide.unwrap();
    assert_eq!(
        (bounded.max_message, bounded.max_descriptors),
        (1 << 20, 1024)
    );
    let own = files.fine(&decide(&format!("[decide.tls]\n{pair}")));
    let own = own.decide.unwrap().tls.clone().unwrap();
    assert!(own.http2 && own.clients.is_none());
    let mutual = format!("[decide.tls]\n{pair}client_ca = \"DIR/other.pem\"\n");
    let mutual = files.fine(&decide(&mutual)).decide.unwrap();
    let clients = mutual.tls.clone().unwrap().clients.clone().unwrap();
    assert!(clients.required);
    for (wrong, expected) in [
        ("max_message = \"2MiB\"\n", "1024 to 1048576"),
        ("max_message = 1000\n", "1024 to 1048576"),
        ("max_descriptors = 0\n", "1 to 1024"),
        ("[decide.tls]\n", "`decide.tls` has no `cert`"),
        (
            "[decide.tls]\ncert = \"DIR/good.pem\"\nkey = \"DIR/other.key\"\n",
            "decide.tls",
        ),
    ] {
        let found = files.refused(&decide(wrong));
        assert!(found.contains(expected), "{wrong}: {found}");
    }
    let expired = "[decide.tls]\ncert = \"DIR/expired.pem\"\nkey = \"DIR/expired.key\"\n";
    assert_eq!(codes(&files.text(&decide(expired))), ["T220"]);
}
