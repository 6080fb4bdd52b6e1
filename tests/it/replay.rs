//! `tidegate replay` over logs of every format, as people run it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

mod calls;
mod suggest;

const CONFIG: &str = "upstream = \"http://127.0.0.1:9\"\n\
    [api_key]\nknown = \"keys.txt\"\n\
    [limit.login]\nrate = \"2/min\"\nkey = \"ip\"\n\
    [limit.all]\nrate = \"100/min\"\nkey = \"api_key or ip\"\n\
    [[route]]\npath = \"/login\"\nlimits = [\"login\", \"all\"]\n\
    [[route]]\npath = \"/*\"\nlimits = [\"all\"]\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/logs")
        .join(name)
}

/// A folder with a configuration in it.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), CONFIG).unwrap();
    std::fs::write(folder.path().join("keys.txt"), "k1\n").unwrap();
    folder
}

fn command(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("replay").current_dir(folder.path());
    command
}

fn replay(folder: &TempDir, arguments: &[&str], logs: &[&Path]) -> Output {
    command(folder).args(arguments).args(logs).output().unwrap()
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What a replay of the seven requests of the fixtures must say of the limit on logins.
#[track_caller]
fn is_as_expected(found: &Value, format: &str) {
    assert_eq!(found["logs"][0]["format"], format);
    assert_eq!(found["requests"], 7, "{format}");
    assert_eq!(found["unread"]["lines"], 0, "{format}");
    let login = &found["limits"][0];
    assert_eq!(login["name"], "login");
    assert_eq!(login["requests"], 5, "{format}");
    assert_eq!(login["clients"], 2, "{format}");
    let rates = |half: u64, own: u64, twice: u64| serde_json::json!({ "half": half, "own": own, "twice": twice });
    assert_eq!(login["denied"], rates(3, 2, 0), "{format}");
    assert_eq!(login["clients_hit"], rates(1, 1, 0), "{format}");
    let worst = &login["worst_clients"][0];
    assert_eq!(worst["key"], "192.0.2.1");
    assert_eq!(worst["peak"], 4);
    assert_eq!(found["denied"], rates(3, 2, 0));
}

#[test]
fn every_format_is_found_and_says_the_same() {
    let folder = folder();
    for (name, format) in [
        ("common.log", "common"),
        ("combined.log", "combined"),
        ("nginx.json.log", "json"),
        ("caddy.json.log", "caddy"),
        ("tidegate.json.log", "tidegate-json"),
        ("tidegate.text.log", "tidegate-text"),
    ] {
        let log = fixture(name);
        is_as_expected(&json(&replay(&folder, &["--json"], &[&log])), format);
    }
}

#[test]
fn packed_logs_and_standard_input_are_read() {
    let folder = folder();
    let plain = std::fs::read(fixture("combined.log")).unwrap();
    let halves = plain.split_at(plain.len() / 2);
    let mut packed = Vec::new();
    for half in [halves.0, halves.1] {
        // Several members, as `cat a.gz b.gz` makes them.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(half).unwrap();
        packed.extend(encoder.finish().unwrap());
    }
    let path = folder.path().join("access.log.2.gz");
    std::fs::write(&path, &packed).unwrap();
    is_as_expected(&json(&replay(&folder, &["--json"], &[&path])), "combined");

    let mut child = command(&folder)
        .args(["--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&packed).unwrap();
    is_as_expected(&json(&child.wait_with_output().unwrap()), "combined");

    std::fs::write(&path, &packed[..packed.len() - 10]).unwrap();
    let torn = replay(&folder, &[], &[&path]);
    assert_eq!(torn.status.code(), Some(1));
    assert!(text(&torn).contains("ends early"), "{}", text(&torn));
}

#[test]
fn rotated_and_parallel_logs_are_one() {
    let folder = folder();
    let whole = std::fs::read_to_string(fixture("common.log")).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let write = |name: &str, lines: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    };
    let newer = write("access.log", &lines[3..]);
    let older = write("access.log.1", &lines[..3]);
    is_as_expected(
        &json(&replay(&folder, &["--json"], &[&newer, &older])),
        "common",
    );
    let odd: Vec<_> = lines.iter().copied().step_by(2).collect();
    let even: Vec<_> = lines.iter().copied().skip(1).step_by(2).collect();
    let one = write("one.log", &even);
    let other = write("other.log", &odd);
    let found = json(&replay(&folder, &["--json"], &[&one, &other]));
    is_as_expected(&found, "common");
    assert!(!found["notes"].to_string().contains("older"), "{found}");
}

#[test]
fn the_report_for_people_fits_a_terminal_and_says_what_to_write() {
    let folder = folder();
    let output = replay(&folder, &["--suggest"], &[&fixture("combined.log")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
    for part in [
        "7 requests: 2 would be denied (28.6 %)",
        "login  2/min by ip",
        "would deny   2 (40.0 %)",
        "worst minute 2026-11-20 22:37 UTC: 2 denied",
        "192.0.2.1      2 of 4 denied, peak 4/min",
        "suggested    rate = \"4/min\"   hits 0 of 2 clients (0 %)",
        "no line has api_key",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains('\u{1b}'), "{said}");
    let hashed = replay(&folder, &["--hash-keys"], &[&fixture("combined.log")]);
    assert!(!text(&hashed).contains("192.0.2.1"), "{}", text(&hashed));
}

#[test]
fn a_limit_can_be_tried_without_a_configuration() {
    let folder = TempDir::new().unwrap();
    let tried = [
        "--json",
        "--limit",
        "1/10s",
        "--key",
        "header:x-api-key or ip",
    ];
    let found = json(&replay(&folder, &tried, &[&fixture("caddy.json.log")]));
    assert_eq!(found["limits"][0]["rate"], "1/10s");
    assert_eq!(found["limits"][0]["worst_clients"][0]["key"], "k1");
    let wrong = replay(&folder, &["--limit", "many"], &[&fixture("common.log")]);
    assert_eq!(wrong.status.code(), Some(78));
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert!(told.contains("tidegate replay --limit"), "{told}");
}

#[test]
fn what_cannot_be_read_is_counted_shown_and_never_run() {
    let folder = folder();
    let page = folder.path().join("report.html");
    let page_name = page.display().to_string();
    let output = replay(&folder, &["--html", &page_name], &[&fixture("hostile.log")]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output);
    assert!(said.contains("3 lines could not be read"), "{said}");
    assert!(said.contains("hostile.log:3: </script>"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
    let html = std::fs::read_to_string(&page).unwrap();
    // The page's own two elements, and none of a stranger.
    assert_eq!(html.matches("<script").count(), 2);
    assert_eq!(html.matches("</script").count(), 2);
    assert!(
        !html.contains("<img") && !html.contains("{{"),
        "something came through"
    );
    assert!(html.contains("script-src 'sha256-"));
    for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
        let own = html.replace("http://www.w3.org/2000/svg", "");
        let own = own.replace("src=x onerror", "");
        assert!(!own.contains(outside), "the page has {outside}");
    }
}

#[test]
fn each_way_to_fail_has_its_code() {
    let folder = folder();
    let log = fixture("common.log");
    let code = |arguments: &[&str], logs: &[&Path]| {
        let output = replay(&folder, arguments, logs);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    };
    assert_eq!(code(&[], &[]).0, Some(2));
    assert_eq!(code(&["--header-from", "x"], &[&log]).0, Some(2));
    let (missing, told) = code(&[], &[Path::new("nowhere.log")]);
    assert_eq!(missing, Some(1));
    assert!(told.contains("cannot read `nowhere.log`"), "{told}");
    assert_eq!(code(&["--format", "json"], &[&log]).0, Some(1));
    let packed = folder.path().join("a.zst");
    std::fs::write(&packed, b"\x28\xb5\x2f\xfd rest").unwrap();
    let (code_of_packed, told) = code(&[], &[&packed]);
    assert_eq!(code_of_packed, Some(1));
    assert!(told.contains("zstd -dc"), "{told}");
    std::fs::write(folder.path().join("proxy.toml"), "limit = 3\n").unwrap();
    assert_eq!(code(&[], &[&log]).0, Some(78));
}

#[test]
fn a_month_of_a_log_ends_at_midnight_of_the_zone() {
    let folder = TempDir::new().unwrap();
    let config = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"2/month\"\n\
                  calendar = { zone = \"Europe/Berlin\" }\n";
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let line = |at: &str| format!("192.0.2.1 - - [{at}] \"GET / HTTP/1.1\" 200 1\n");
    // In Berlin, October ends at 23:00 UTC on the 31st, an hour after clocks went back.
    let log: String = [
        "30/Sep/2026:22:00:00 +0000",
        "15/Oct/2026:12:00:00 +0000",
        "31/Oct/2026:22:59:59 +0000",
        "31/Oct/2026:23:00:00 +0000",
        "30/Nov/2026:22:59:59 +0000",
        "30/Nov/2026:22:59:59 +0000",
    ]
    .map(line)
    .concat();
    let path = folder.path().join("access.log");
    std::fs::write(&path, log).unwrap();
    let found = json(&replay(&folder, &["--json"], &[&path]));
    let limit = &found["limits"][0];
    assert_eq!(limit["requests"], 6);
    let rates = serde_json::json!({ "half": 4, "own": 2, "twice": 0 });
    assert_eq!(limit["denied"], rates, "{limit}");
}

#[test]
fn requests_that_would_wait_are_told_apart_from_denied_ones() {
    let folder = TempDir::new().unwrap();
    let config = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"2/s\"\nkey = \"ip\"\n\
        delay = \"2500ms\"\ndelay_queue = 3\n";
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    // Seven requests at once: two pass, three wait, and two find the queue full.
    let line = "{\"time\":\"2026-11-20T10:00:00.000Z\",\"client\":\"192.0.2.1\",\"method\":\"GET\",\
        \"path\":\"/\",\"status\":200,\"bytes\":2,\"duration_us\":900,\"route\":\"default\",\
        \"outcome\":\"allowed\"}\n";
    let log = folder.path().join("access.log");
    std::fs::write(&log, line.repeat(7)).unwrap();
    let found = json(&replay(&folder, &["--json"], &[&log]));
    let limit = &found["limits"][0];
    assert_eq!(limit["denied"]["own"], 2);
    assert_eq!(found["denied"]["own"], 2);
    // At half of the rate one passes and two wait; at twice four pass and three wait.
    assert_eq!(limit["denied"]["half"], 4);
    assert_eq!(limit["denied"]["twice"], 0);
    assert_eq!(limit["waits"]["requests"], 3);
    let longest = limit["waits"]["longest_ms"].as_f64().unwrap();
    assert!((longest - 2000.0).abs() < 1.0, "{longest}");
    let told = text(&replay(&folder, &[], &[&log]));
    assert!(told.contains("would hold   3 "), "{told}");
}

#[test]
fn a_log_of_tidegate_with_denials_alone_is_noted() {
    let folder = folder();
    let line = |second: u32, status: u16, outcome: &str| {
        format!(
            "{{\"ts\":\"2026-01-02T03:04:{second:02}.000Z\",\"ip\":\"192.0.2.1\",\
             \"method\":\"GET\",\"path\":\"/\",\"status\":{status},\"outcome\":\"{outcome}\"}}\n"
        )
    };
    let denied = folder.path().join("denied.log");
    std::fs::write(&denied, line(1, 429, "denied") + &line(2, 429, "denied")).unwrap();
    let notes = |log: &Path| json(&replay(&folder, &["--json"], &[log]))["notes"].to_string();
    let said = notes(&denied);
    assert!(said.contains("`[log] sample_allowed = 1.0`"), "{said}");
    let all = folder.path().join("all.log");
    std::fs::write(&all, line(1, 429, "denied") + &line(2, 200, "allowed")).unwrap();
    let said = notes(&all);
    assert!(!said.contains("sample_allowed"), "{said}");
}
