//! The configuration: any text is read to its end, what is wrong with it is said in every form, and
//! what is right holds its secrets back and is the same when it is read again.

use tidegate::config::diagnostic::Diagnostics;
use tidegate::config::{effective, parse, render};

use crate::both_texts;

/// Lines of a whole file, and what breaks them.
const WORDS: &[&str] = &[
    "\n",
    "upstream = \"http://127.0.0.1:1\"\n",
    "listen = \":8080\"\n",
    "[store]\n",
    "[server]\n",
    "url = \"redis://:secret@h\"\n",
    "[limit.default]\n",
    "[limit.a]\n",
    "rate = \"5/min\"\n",
    "rates = [\"1/s\", \"9/min\"]\n",
    "rate = \"unlimited\"\n",
    "key = \"ip\"\n",
    "key = [\"api_key\", \"path\"]\n",
    "algorithm = \"counter\"\n",
    "concurrent = 3\n",
    "lease = true\n",
    "[[route]]\n",
    "path = \"/*\"\n",
    "path = \"/u/{id}\"\n",
    "limits = [\"a\"]\n",
    "host = \"*.h\"\n",
    "methods = [\"GET\"]\n",
    "[upstream.api]\n",
    "servers = [\"http://127.0.0.1:2\"]\n",
    "balance = \"key:header:x-a\"\n",
    "timeout = \"25ms\"\n",
    "[[bypass]]\n",
    "[headers]\n",
    "[deny]\n",
    "status = 429\n",
    "[log]\n",
    "access = \"stdout\"\n",
    "[client_ip]\n",
    "trusted_proxies = [\"10.0.0.0/8\"]\n",
    "[tier.pro]\n",
    "[api_key]\n",
    "from = [\"bearer\"]\n",
    "respond = { status = 200, body = \"${X}\" }\n",
    "set = { x-a = \"{client_ip}\" }\n",
    "redirect = \"https://{host}{uri}\"\n",
    "admin = \"127.0.0.1:0\"\n",
    "cost = 2\n",
    "on_error = \"deny\"\n",
    "fleet = \"auto\"\n",
    "[auth.jwt]\n",
    "[tls]\n",
    "=",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    "#",
    "\\",
    "\"\"\"",
    "true",
    "1",
    "-1",
    "1e9",
    "0x",
    "1979-05-27",
    "${",
    "$",
    "a",
    "x-a",
    "\u{20ac}",
    "\u{feff}",
    "\r\n",
    "\t",
];

#[test]
fn any_file_is_read_and_told_about() {
    bolero::check!(name = "config")
        .with_max_len(80)
        .for_each(|input: &[u8]| both_texts(input, WORDS, check));
}

fn check(text: &str) {
    let env = |name: &str| (name == "X").then(|| "x".to_owned());
    match parse("proxy.toml", text, &env) {
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "refused without a word: {text:?}");
            tell(&mistakes);
        }
        Ok((config, warnings)) => {
            tell(&warnings);
            let told = effective::effective(text, &env);
            let toml = effective::toml(&told);
            assert!(!toml.contains("secret@"), "{toml}");
            assert!(!format!("{config:?}").contains("\"secret\""), "{text:?}");
            assert!(effective::differences(&told, &told).is_empty());
            assert!(config.fresh_copy().routes.iter().count() > 0 || config.upstreams.is_empty());
        }
    }
}

fn tell(found: &Diagnostics) {
    // Overrides get the notes by a command of their own, so `human` leaves them out.
    assert_eq!(
        render::human(found, true).is_empty(),
        found.is_empty(),
        "{found}"
    );
    let nothing = found.all().count() == 0;
    for text in [render::github(found), render::json(found)] {
        assert_eq!(text.is_empty(), nothing, "{found}");
    }
    for line in render::json(found).lines() {
        let told: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(told["message"].is_string(), "{line}");
    }
}
