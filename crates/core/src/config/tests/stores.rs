//! `[store]` over its topologies: several URLs, logins of two kinds, and files of certificates.

use std::path::Path;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

use super::super::load::read_text;
use super::super::reader::Surroundings;
use super::super::*;
use super::{check, codes, fine, refuse};

const LIMITED: &str = "upstream = \"http://127.0.0.1:3000\"\n";

/// Files of certificates and keys in a folder of the test's own.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed([format!("{name}.test")]).unwrap();
            let write = |end: &str, text: String| {
                std::fs::write(folder.path().join(format!("{name}.{end}")), text).unwrap();
            };
            write("pem", cert.pem());
            write("key", signing_key.serialize_pem());
        }
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("password", "hush-hush\n");
        write("no-pem", "certificates, honestly\n");
        write("half-pem", "-----BEGIN CERTIFICATE-----\nMII\n");
        Files { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// `$NAME` in the text stands for the path of that file.
    fn in_store(&self, text: &str) -> String {
        let mut text = format!("{LIMITED}[store]\n{text}");
        for name in [
            "one.pem", "one.key", "two.key", "password", "no-pem", "half-pem", "gone",
        ] {
            text = text.replace(&format!("${name}"), &format!("\"{}\"", self.path(name)));
        }
        text
    }

    #[track_caller]
    fn redis(&self, text: &str) -> RedisSettings {
        let config = fine(&self.in_store(text));
        let shown = format!("{config:?}");
        assert!(
            !shown.contains("hush") && !shown.contains("PRIVATE"),
            "{shown}"
        );
        match config.store.kind {
            StoreKind::Redis(redis) => redis,
            StoreKind::Memory => panic!("not Redis"),
        }
    }
}

fn sentinels(redis: &RedisSettings) -> &SentinelSettings {
    match &redis.topology {
        RedisTopology::Sentinel(sentinels) => sentinels,
        other => panic!("{other}"),
    }
}

#[test]
fn tls_files_are_read_and_kept() {
    let files = Files::new();
    let bare = files.redis("url = \"rediss://one.test\"\n");
    assert_eq!(bare.tls.as_deref(), Some(&ClientTls::default()));
    let full = files.redis(
        "url = \"rediss://one.test\"\n[store.tls]\nca = $one.pem\ncert = $one.pem\n\
         key = $one.key\nname = \"other.test\"\n",
    );
    let tls = full.tls.unwrap();
    assert!(tls.ca.unwrap().starts_with(b"-----BEGIN CERTIFICATE"));
    assert!(tls.identity.is_some());
    assert_eq!(tls.name.as_deref(), Some("other.test"));
    let by_address = files.redis("url = \"rediss://[::1]:7000\"\n");
    assert_eq!(by_address.topology.to_string(), "[::1]:7000");
}

#[test]
fn sentinels_and_servers_have_logins_of_their_own() {
    let files = Files::new();
    let redis = files.redis(
        "url = \"rediss+sentinel://s1,s2:5000/main/3\"\nusername = \"app\"\n\
         password_file = $password\nsentinel_username = \"watch\"\n\
         sentinel_password_file = $password\n",
    );
    assert!(redis.tls.is_some());
    assert_eq!(redis.database, 3);
    assert_eq!(redis.username.as_deref(), Some("app"));
    assert_eq!(sentinels(&redis).username.as_deref(), Some("watch"));
    assert_eq!(sentinels(&redis).password.as_deref(), Some("hush-hush"));
    assert_eq!(redis.topology.to_string(), "sentinel s1:26379,s2:5000/main");
    let in_url = files.redis("url = \"redis+sentinel://app:hush@s1/main\"\n");
    assert_eq!(in_url.password.as_deref(), Some("hush"));
    assert_eq!(sentinels(&in_url).password, None);
}

#[test]
fn several_urls_are_one_store() {
    let files = Files::new();
    let urls = "urls = [\"redis+sentinel://s1/main\", \"redis+sentinel://s2:5000/main\"]\n";
    assert_eq!(
        files.redis(urls).topology.to_string(),
        "sentinel s1:26379,s2:5000/main"
    );
    let one = files.redis("urls = \"redis://h\"\n");
    assert_eq!(one.topology.to_string(), "h:6379");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let files = Files::new();
    for (store, code) in [
        ("url = \"redis://h\"\nurls = [\"redis://h\"]\n", "T124"),
        ("urls = [\"redis://h\", \"redis://i\"]\n", "T124"),
        ("urls = []\n", "T105"),
        ("urls = [\"redis://h\", \"redys://i\"]\n", "T114"),
        ("urls = [1]\n", "T103"),
        ("url = \"redis://h\"\n[store.tls]\nname = \"h\"\n", "T124"),
        ("[store.tls]\nname = \"h\"\n", "T124"),
        ("sentinel_password_file = $password\n", "T124"),
        (
            "url = \"redis://h\"\nsentinel_password_file = $password\n",
            "T124",
        ),
        (
            "url = \"redis+sentinel://h/m\"\nsentinel_username = \"u\"\n",
            "T104",
        ),
        (
            "url = \"rediss://h\"\n[store.tls]\ncert = $one.pem\n",
            "T104",
        ),
        (
            "url = \"rediss://h\"\n[store.tls]\nkey = $one.key\n",
            "T104",
        ),
        (
            "url = \"rediss://h\"\n[store.tls]\nname = \"a b\"\n",
            "T113",
        ),
        (
            "url = \"rediss://h\"\n[store.tls]\ninsecure = true\n",
            "T101",
        ),
        ("url = \"rediss://h\"\n[store.tls]\nca = $gone\n", "T108"),
        ("url = \"rediss://h\"\n[store.tls]\nca = $no-pem\n", "T108"),
        (
            "url = \"rediss://h\"\n[store.tls]\nca = $half-pem\n",
            "T108",
        ),
        ("url = \"rediss://h\"\n[store.tls]\nca = $one.key\n", "T108"),
        (
            "url = \"rediss://h\"\n[store.tls]\ncert = $one.pem\nkey = $two.key\n",
            "T108",
        ),
        (
            "url = \"rediss://h\"\n[store.tls]\ncert = $one.pem\nkey = $no-pem\n",
            "T108",
        ),
    ] {
        assert_eq!(codes(&files.in_store(store)), [code], "{store}");
    }
}

#[test]
fn a_name_that_no_certificate_can_have_needs_another() {
    let files = Files::new();
    for host in ["redis_1:6379", "10.0.0.1", "redis.local"] {
        files.redis(&format!("url = \"rediss://{host}\"\n"));
    }
    let odd = "url = \"rediss://redis-:6379\"\n";
    assert_eq!(codes(&files.in_store(odd)), ["T114"]);
    files.redis(&format!("{odd}[store.tls]\nname = \"redis.local\"\n"));
}

#[test]
fn a_key_of_another_certificate_is_pointed_at() {
    let files = Files::new();
    let text =
        files.in_store("url = \"rediss://h\"\n[store.tls]\ncert = $one.pem\nkey = $two.key\n");
    let found = refuse(&text).to_string();
    assert!(found.contains("`store.tls.key`"), "{found}");
    assert!(found.contains("not the key of `cert`"), "{found}");
}

#[test]
fn tls_settings_without_tls_say_which_scheme_has_it() {
    check(
        "upstream = \"http://127.0.0.1:3000\"\n[store]\nurl = \"redis://h\"\n\
         [store.tls]\nname = \"h\"\n",
        "error[T124]: `store.tls` is for a store with TLS
 --> proxy.toml:5:1
  |
5 | name = \"h\"
  | ^^^^ the URL is one without
help: write `rediss://`, `rediss+sentinel://` or `rediss+cluster://`
",
    );
}

#[test]
fn every_example_of_the_page_is_fine() {
    let files = Files::new();
    let read = |path: &Path, _: u64| {
        let end = path.extension().and_then(|end| end.to_str());
        let file = match end {
            Some("pem") => "one.pem",
            Some("key") => "one.key",
            _ => "password",
        };
        std::fs::read(files.folder.path().join(file))
    };
    let around = Surroundings {
        base: std::path::Path::new(""),
        env: &|_| None,
        now_s: 0,
        read: &read,
        forwards: true,
    };
    let page = include_str!("../../../docs/store.md");
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(examples.len() >= 5, "{examples:?}");
    for example in examples {
        let text = format!("{LIMITED}{example}");
        let (outcome, _) = read_text("store.md", &text, &around);
        let (config, warnings) = outcome.unwrap_or_else(|found| panic!("{found}"));
        assert!(warnings.is_empty(), "{warnings}");
        let is_embedded = config.store.kind == StoreKind::Memory;
        assert_eq!(is_embedded, config.store.file.is_some(), "{example}");
    }
}

#[test]
fn a_file_of_counts_is_for_the_embedded_store() {
    let text =
        format!("{LIMITED}[limit.default]\nrate = \"9/month\"\n[store]\nfile = \"counts\"\n");
    assert!(fine(&text).store.file.unwrap().ends_with("counts"));
    let redis = format!("{text}url = \"redis://127.0.0.1\"\n");
    assert_eq!(codes(&redis), ["T242"]);
    assert_eq!(codes(&text.replace("\"counts\"", "\"\"")).len(), 1);
    let without = text.replace("file = \"counts\"\n", "");
    assert_eq!(codes(&without), ["T231"], "a restart forgets the month");
    let sliding = text.replace("9/month", "9/day");
    assert_eq!(codes(&sliding), ["T242"], "it slides, and nothing is kept");
    let day = sliding.replace("/day\"", "/day\"\ncalendar = { zone = \"UTC\" }");
    assert!(fine(&day).store.file.is_some());
}

#[test]
fn a_file_of_counts_keeps_no_ledger() {
    let text = |file: &str| {
        format!("upstream = \"http://a:1\"\n[store]\n{file}\n[ledger]\nby = \"api_key\"\n")
    };
    for file in ["", "file = \"/tmp/counts\""] {
        let codes = codes(&text(file));
        assert!(codes.contains(&"T236"), "{file}: {codes:?}");
    }
    assert!(!codes(&text("url = \"redis://a\"")).contains(&"T236"));
}

#[test]
fn what_an_outage_means_is_a_warning_without_redis() {
    let on_error = |url: &str, store: &str, limit: &str| {
        let text = format!(
            "upstream = \"http://10.0.0.1:1\"\n[store]\n{url}\non_error = \"{store}\"\n\
             [limit.default]\nrate = \"5/min\"\non_error = \"{limit}\"\n"
        );
        codes(&text)
    };
    let none: [&str; 0] = [];
    assert_eq!(on_error("", "local", "local"), none);
    assert_eq!(on_error("", "deny", "deny"), ["T245"]);
    assert_eq!(on_error("url = \"memory:\"", "local", "deny"), ["T245"]);
    assert_eq!(on_error("", "deny", "local"), ["T245", "T245"]);
    assert_eq!(
        on_error("url = \"redis://10.0.0.2\"", "local", "deny"),
        none
    );
    // The variable may name Redis elsewhere.
    assert_eq!(
        on_error("url = \"${STORE:-memory:}\"", "local", "deny"),
        none
    );
}
