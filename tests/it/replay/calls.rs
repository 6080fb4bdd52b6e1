//! `tidegate replay` over the calls of a model server: the proxy's own log, replayed, gives the
//! verdicts of the proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::*;
use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;

/// Clients of the live run. The report lists as many.
const CLIENTS: usize = 8;
const CALLS: usize = 300;

/// A model server. A request says in `user` what its answer uses: `INPUT OUTPUT STATUS`, or `none`.
fn model() -> Upstream {
    Upstream::start(|seen, stream| {
        let body: Value = serde_json::from_slice(&seen.body).unwrap();
        let words: Vec<&str> = body["user"].as_str().unwrap().split(' ').collect();
        let (status, answer) = match words[..] {
            [input, output, status] => {
                let usage = format!(
                    "{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\
                     \"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}",
                    input.parse::<u64>().unwrap() / 2
                );
                let model = "\"model\":\"gpt-5-2026-08-07\"";
                (status, format!("{{{model},\"usage\":{usage}}}"))
            }
            _ => ("200", "{}".to_owned()),
        };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n");
        let length = answer.len();
        let text = format!("{head}Content-Length: {length}\r\n\r\n{answer}");
        stream.write_all(text.as_bytes()).is_ok()
    })
}

fn live_config(upstream: &Upstream) -> String {
    format!(
        "upstream = \"{}\"\n[store]\nurl = \"memory:\"\n\
         [log]\nformat = \"json\"\nsample_allowed = 1.0\n\
         [limit.tokens]\nrate = \"60_000/h\"\nkey = \"path\"\ncounts = \"tokens\"\n\
         [limit.output]\nrate = [\"30_000/h\", \"31_000/d\"]\nkey = \"path\"\n\
         counts = \"output\"\n\
         [limit.spend]\nrate = \"250_000/d\"\nkey = [\"path\", \"body:model\"]\n\
         values = {{ \"body:model\" = [\"gpt-5\", \"gpt-5-mini\"] }}\n\
         counts = \"money\"\n\
         [limit.weighted]\nrate = \"45_000/h\"\nkey = \"path\"\nshadow = true\n\
         candidate = \"40_000/h\"\n\
         [usage.chat]\nformat = \"openai\"\n\
         weights = {{ input = 1, cached = 0.1, output = 2 }}\n\
         [prices]\n\"gpt-5-mini*\" = {{ input = 0.5, output = 4 }}\n\
         \"*\" = {{ input = 2, cached = 1, output = 10 }}\n\
         [[route]]\npath = \"/v1/*\"\nmethods = [\"POST\"]\n\
         limits = [\"tokens\", \"output\", \"spend\", \"weighted\"]\n\
         usage = \"chat\"\nrefund = [\"5xx\"]\n",
        upstream.url()
    )
}

/// Some number that looks random, from these two.
fn mixed(client: usize, call: usize) -> u64 {
    let mut number = (client as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) + call as u64;
    for _ in 0..3 {
        number ^= number >> 29;
        number = number.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    number >> 8
}

/// One client's calls, one after the other. Returns how many were denied.
fn call_all(address: SocketAddr, client: usize) -> u64 {
    let mut connection = Client::to(address);
    let mut denied = 0;
    for call in 0..CALLS {
        let number = mixed(client, call);
        let (input, output) = (number % 60, number / 64 % 700);
        let uses = match number % 17 {
            0 => "none".to_owned(),
            1 => format!("{input} {output} 503"),
            _ => format!("{input} {output} 200"),
        };
        let maximum = match number / 4096 % 3 {
            0 => String::new(),
            1 => format!("\"max_tokens\":{},", output + 10),
            // The server does not keep to it.
            _ => format!("\"max_tokens\":{},", output / 2 + 1),
        };
        let model = ["gpt-5", "gpt-5-mini", "other"][call % 3];
        let body = format!("{{{maximum}\"model\":\"{model}\",\"user\":\"{uses}\"}}");
        let length = body.len();
        let answer = connection.ask(format!(
            "POST /v1/c{client} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ));
        denied += u64::from(answer.status == 429);
    }
    denied
}

/// The names of limits in a list of the log.
fn limits_of(line: &Value, member: &str) -> Vec<String> {
    let list = line[member].as_array().cloned().unwrap_or_default();
    let name = |one: &Value| one["limit"].as_str().or(one.as_str()).map(str::to_owned);
    list.iter().filter_map(name).collect()
}

/// Nothing expires within the run, and each client calls one at a time. So the log, which has
/// milliseconds, knows the order of all that counts, and each verdict must be the same.
#[test]
fn the_proxys_own_log_gives_the_verdicts_of_the_proxy() {
    let upstream = model();
    let proxy = Tidegate::start(&live_config(&upstream));
    let address = proxy.address;
    let threads: Vec<_> = (0..CLIENTS)
        .map(|client| std::thread::spawn(move || call_all(address, client)))
        .collect();
    let denied: Vec<u64> = threads.into_iter().map(|one| one.join().unwrap()).collect();
    let all = CLIENTS * CALLS;
    eventually("all lines are written", || {
        proxy.stdout().lines().count() == all
    });
    let log = proxy.stdout();
    let path = proxy.directory.path().join("access.log");
    std::fs::write(&path, &log).unwrap();

    let output = command(&proxy.directory)
        .args(["--json"])
        .arg(&path)
        .output()
        .unwrap();
    let found = json(&output);
    assert_eq!(found["requests"], all);
    assert_eq!(found["usage"]["requests"], all);
    assert_eq!(found["usage"]["no_tokens"], 0);
    assert_eq!(found["usage"]["estimated"], 0);
    let total: u64 = denied.iter().sum();
    assert!(total > 300, "the run denies too little: {total}");
    assert_eq!(found["denied"]["own"], total, "{found}");

    let mut of_limits: BTreeMap<String, u64> = BTreeMap::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for name in limits_of(&line, "denied_by") {
            *of_limits.entry(name).or_default() += 1;
        }
    }
    for limit in found["limits"].as_array().unwrap() {
        if limit["mode"] == "enforced" {
            // A limit with two rates is named once for each that denies.
            let name = limit["name"].as_str().unwrap().split('/').next().unwrap();
            let live = of_limits.get(name).copied().unwrap_or(0);
            let replayed = limit["denied"]["own"].as_u64().unwrap();
            assert!(replayed <= live, "{name}: {replayed} of {live}");
        }
    }
    let tokens = &found["limits"][0];
    assert_eq!(tokens["counts"], "tokens");
    for client in tokens["worst_clients"].as_array().unwrap() {
        assert!(client["spent"].as_u64().unwrap() > 0, "{client}");
    }
}

/// A gateway's log of twenty keys. The first ones use the most.
fn gateway_log() -> String {
    let mut lines = String::new();
    for call in 0..400_u64 {
        let key = call % 20;
        let start = 1_795_214_226.25 + call as f64 * 0.1;
        lines.push_str(&format!(
            "{{\"call_type\":\"acompletion\",\"status\":\"success\",\
             \"prompt_tokens\":{},\"completion_tokens\":{},\"startTime\":{start},\
             \"endTime\":{},\"model\":\"gpt-5\",\"messages\":[{{\"role\":\"user\"}}],\
             \"metadata\":{{\"user_api_key_hash\":\"key-{key}\"}}}}\n",
            10 + call % 7,
            500 - 20 * key,
            start + 2.5,
        ));
    }
    lines
}

const BUDGETS: &str = "upstream = \"http://127.0.0.1:9\"\n\
    [limit.tokens]\nrate = \"10_000_000/d\" # too much\nkey = \"api_key\"\n\
    counts = \"tokens\"\n\
    [limit.spend]\nrate = \"1_000_000_000/30d\"\nkey = \"api_key\"\ncounts = \"money\"\n\
    [api_key]\nunknown = \"trust\"\n\
    [prices]\n\"*\" = { input = 1, output = 10 }\n\
    [[route]]\npath = \"/v1/*\"\nlimits = [\"tokens\", \"spend\"]\nusage = \"openai\"\n";

const FROM_GATEWAY: [&str; 4] = [
    "--header-from",
    "x-api-key=metadata.user_api_key_hash",
    "--request",
    "POST /v1/chat/completions",
];

#[test]
fn budgets_are_suggested_from_the_log_of_another_gateway() {
    let folder = TempDir::new().unwrap();
    for line_end in ["\n", "\r\n"] {
        let file = BUDGETS.replace('\n', line_end);
        std::fs::write(folder.path().join("proxy.toml"), &file).unwrap();
        let log = folder.path().join("calls.log");
        std::fs::write(&log, gateway_log()).unwrap();
        let patched = replay(
            &folder,
            &[&["--suggest=10%"], &FROM_GATEWAY[..]].concat(),
            &[&log],
        );
        let told = String::from_utf8(patched.stderr.clone()).unwrap();
        assert_eq!(patched.status.code(), Some(0), "{told}");
        for part in [
            "tokens  10000000/d tokens by api_key",
            "spend  1000000000/30d millionths by api_key",
            "in the log   ",
            "400 requests had no reserve in the log",
        ] {
            assert!(told.contains(part), "no `{part}` in {told}");
        }
        let (_, report) = told.split_once("\n400 requests:").unwrap();
        let mut lines = report.lines();
        assert!(lines.all(|line| line.chars().count() <= 80), "{told}");
        let git = Command::new("git")
            .args(["init", "-q"])
            .current_dir(folder.path())
            .status();
        assert!(git.unwrap().success());
        std::fs::write(folder.path().join("p.patch"), &patched.stdout).unwrap();
        let git = Command::new("git")
            .args(["apply", "p.patch"])
            .current_dir(folder.path())
            .status();
        assert!(git.unwrap().success(), "{}", text(&patched));
        let after = json(&replay(
            &folder,
            &[&["--json"], &FROM_GATEWAY[..]].concat(),
            &[&log],
        ));
        for limit in after["limits"].as_array().unwrap() {
            assert_eq!(limit["clients"], 20);
            let hit = limit["clients_hit"]["own"].as_u64().unwrap();
            assert!((1..=2).contains(&hit), "{limit}");
        }
    }
}

#[test]
fn wrong_mappings_are_refused() {
    let folder = folder();
    let log = fixture("common.log");
    for wrong in [
        &["--usage-from", "input"][..],
        &["--usage-from", "tokens=a"],
        &["--request", "nothing"],
    ] {
        let output = replay(&folder, wrong, &[&log]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains(wrong[0]) && told.contains(": write "),
            "{told}"
        );
    }
}

#[test]
fn routes_of_a_host_are_those_of_the_proxys_own_log() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\nformat = \"json\"\nsample_allowed = 1.0\n\
         [limit.c]\nrate = \"2/h\"\n[[route]]\npath = \"/*\"\nlimits = []\n\
         [[route]]\npath = \"/*\"\nhost = \"api.example\"\nlimits = [\"c\"]\n",
        upstream.url()
    ));
    let get = "GET / HTTP/1.1\r\nHost: API.example:80\r\n\r\n";
    let mut client = proxy.connect();
    let statuses: Vec<u16> = (0..5).map(|_| client.ask(get).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    eventually("all lines are written", || {
        proxy.stdout().lines().count() == 5
    });
    let log = proxy.directory.path().join("access.log");
    std::fs::write(&log, proxy.stdout()).unwrap();
    let found = json(&replay(&proxy.directory, &["--json"], &[&log]));
    assert_eq!(found["denied"]["own"], 3, "{found}");
}
