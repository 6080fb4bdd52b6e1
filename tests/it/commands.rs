//! The commands that come before and beside serving: `init`, `completions`, `man`, `try`,
//! `check --online`, `demo`, `help`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port, mortal};

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().current_dir(folder).args(words);
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn init_writes_a_file_that_is_fine_and_overwrites_none() {
    for words in [&["init"][..], &["init", "--minimal"], &["init", "--full"]] {
        let folder = tempfile::tempdir().unwrap();
        let output = run(folder.path(), words);
        assert!(output.status.success(), "{output:?}");
        let checked = run(folder.path(), &["check", "--deny-warnings"]);
        assert!(checked.status.success(), "{words:?}: {}", stdout(&checked));
        let before = std::fs::read(folder.path().join("proxy.toml")).unwrap();
        let again = run(folder.path(), &["init"]);
        assert_eq!(again.status.code(), Some(2));
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(said.contains("`--force` overwrites it"), "{said}");
        let after = std::fs::read(folder.path().join("proxy.toml")).unwrap();
        assert_eq!(before, after);
        assert!(
            run(folder.path(), &["init", "--minimal", "--force"])
                .status
                .success()
        );
        let text = std::fs::read_to_string(folder.path().join("proxy.toml")).unwrap();
        assert!(text.starts_with("listen   = \":8080\"\nupstream"), "{text}");
    }
}

#[test]
fn init_writes_a_schema_beside_the_file_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(run(folder.path(), &["init", "--schema"]).status.success());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("proxy.toml").starts_with("#:schema ./proxy.schema.json\n"));
    assert_eq!(
        read("proxy.schema.json"),
        stdout(&run(folder.path(), &["schema", "proxy.toml"]))
    );
    let schema: serde_json::Value = serde_json::from_str(&read("proxy.schema.json")).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert!(run(folder.path(), &["check"]).status.success());
    // One that is there is named without being asked.
    assert!(run(folder.path(), &["init", "b.toml"]).status.success());
    assert!(read("b.toml").starts_with("#:schema"));
}

#[test]
fn shells_and_manuals_know_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&run(folder.path(), &["completions", shell]));
        for word in ["explain", "try", "init", "online"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let page = stdout(&run(folder.path(), &["man"]));
    assert!(page.contains(".TH") && page.contains("explain"), "{page}");
    assert!(run(folder.path(), &["man", "pages"]).status.success());
    for page in ["tidegate.1", "tidegate-explain.1", "tidegate-limits-show.1"] {
        assert!(folder.path().join("pages").join(page).exists(), "{page}");
    }
}

#[test]
fn try_shows_where_a_client_is_denied() {
    let upstream = Upstream::ok();
    let limit = "[limit.default]\nrate = \"5/day\"\nkey = \"header:x-user\"\n";
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n{limit}", upstream.url()));
    let url = format!("http://{}/", proxy.address);
    let folder = proxy.directory.path();
    let output = run(folder, &["try", &url, "-n", "8", "-H", "x-user: 7"]);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for line in [
        "8 requests, one at a time, in ",
        "    200       5\n    429       3\n",
        "first denial: answer 6, 429 after ",
        "    retry-after: 8",
        "the answer before it: 200\n",
        "    x-ratelimit-remaining: 0\n",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    let words = [
        "try",
        &url,
        "-n",
        "9",
        "-c",
        "3",
        "-H",
        "x-user: 8",
        "--json",
    ];
    let told: serde_json::Value = serde_json::from_str(&stdout(&run(folder, &words))).unwrap();
    let answers = told["answers"].as_array().unwrap();
    let passed = answers.iter().filter(|one| one["status"] == 200);
    assert_eq!((answers.len(), passed.count()), (9, 5), "{told}");
    assert!(told["first_denial"].as_u64().unwrap() > 1, "{told}");
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    assert_eq!(run(folder, &["try", &nobody]).status.code(), Some(1));
    assert_eq!(run(folder, &["try", "localhost"]).status.code(), Some(2));
}

#[test]
fn try_waits_as_it_is_told() {
    let upstream = Upstream::ok();
    let limit = "[limit.default]\nrate = \"2/4s\"\nkey = \"global\"\n";
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n{limit}", upstream.url()));
    let url = format!("http://{}/", proxy.address);
    let output = run(proxy.directory.path(), &["try", &url, "-n", "3", "--wait"]);
    let text = stdout(&output);
    assert!(
        text.contains("as Retry-After says: 200, it passes"),
        "{text}"
    );
}

#[test]
fn check_online_asks_the_store_and_the_servers() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "volatile-ttl"]);
    let upstream = Upstream::ok();
    let folder = tempfile::tempdir().unwrap();
    let listen = free_port();
    let write = |server: &str| {
        let text = format!(
            "listen = \"127.0.0.1:{listen}\"\n[upstream.api]\nservers = \"{server}\"\n\
             [store]\nurl = \"redis://127.0.0.1:{}\"\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = [\"5/min\"]\n",
            redis.port()
        );
        std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    };
    write(&upstream.url());
    let output = run(folder.path(), &["check", "--online"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let port = redis.port();
    for line in [
        &format!("ok       store 127.0.0.1:{port}: up, "),
        "`maxmemory-policy` is `volatile-ttl`",
        &format!("ok       upstream api: {} can be reached", upstream.url()),
        &format!("ok       listen 127.0.0.1:{listen} is free"),
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    let strict = run(folder.path(), &["check", "--online", "--deny-warnings"]);
    assert_eq!(strict.status.code(), Some(1));
    let mut started = mortal(env!("CARGO_BIN_EXE_tidegate"))
        .arg("run")
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(started.stderr.take().unwrap()).lines();
    let mut told = lines.map_while(Result::ok);
    let told = told.find(|line| line.contains("`maxmemory-policy` is `volatile-ttl`"));
    started.kill().unwrap();
    started.wait().unwrap();
    assert!(told.is_some(), "told at the start too");
    redis.run(&format!("REPLICAOF 127.0.0.1 {}", free_port()));
    write(&format!("http://127.0.0.1:{}", free_port()));
    let output = run(folder.path(), &["check", "--online"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("a replica, which takes no writes") && text.contains("cannot be reached"),
        "{text}"
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    quick_start(folder.path());
    let run = |words: &[&str], out: Stdio| {
        let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
        command.env_clear().current_dir(folder.path()).args(words);
        command.stdout(out).stderr(Stdio::piped());
        let ended = command.spawn().unwrap().wait_with_output().unwrap();
        (
            ended.status.code(),
            String::from_utf8(ended.stderr).unwrap(),
        )
    };
    for words in [
        &["config"][..],
        &["check"],
        &["schema"],
        &["man"],
        &["help", "T101"],
        &["completions", "bash"],
        &["explain", "GET", "/"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let (code, said) = run(words, full.unwrap().into());
        assert_eq!(code, Some(1), "{words:?}");
        let told = "error: cannot write to standard output: No space left on device";
        assert!(said.contains(told), "{words:?}: {said}");
        // A reader that has left wants no more.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(
            run(words, writer.into()),
            (Some(0), String::new()),
            "{words:?}"
        );
    }
}

/// A demo in a folder, and what it says until it has said all.
fn demo(folder: &Path, words: &[&str]) -> (Child, Vec<String>) {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().current_dir(folder);
    command.arg("demo").args(words);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stderr.take().unwrap());
    let lines = said.lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines {
        let is_last = line.contains("Ctrl-C stops");
        said.push(line);
        if is_last {
            break;
        }
    }
    (child, said)
}

fn code(mut ended: Child) -> Option<i32> {
    ended.wait().unwrap().code()
}

fn end(demo: Child) {
    let sent = Command::new("kill").arg(demo.id().to_string()).status();
    assert!(sent.unwrap().success());
    assert_eq!(code(demo), Some(0));
}

/// Writes the quick start with a free port, which it returns. Its admin has one too: two demos that
/// start at once could both find 9180 free.
fn quick_start(folder: &Path) -> u16 {
    let (port, admin) = (free_port(), free_port());
    let quick = include_str!("../../proxy.toml");
    let own = format!("\":{port}\"\nadmin = \"127.0.0.1:{admin}\"");
    let file = quick.replace("\":8080\"", &own);
    std::fs::write(folder.join("proxy.toml"), file).unwrap();
    port
}

#[test]
fn a_demo_counts_alone_or_says_who_is_in_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let port = quick_start(folder.path());
    let (first, said) = demo(folder.path(), &["--no-traffic"]);
    assert!(
        said.iter()
            .any(|line| line.contains(&format!("localhost:{port}/"))),
        "{said:?}"
    );
    assert!(said.iter().any(|line| line.contains("$(seq 12)")));
    let of_traffic = |line: &&String| line.starts_with("traffic") || line.contains("127.0.0.31");
    assert_eq!(said.iter().find(of_traffic), None);

    let in_the_way = format!(
        "tidegate: another process listens on [::]:{port} already: end it, or change `listen` in \
         proxy.toml"
    );
    let (second, said) = demo(folder.path(), &["--no-traffic"]);
    assert_eq!(said, [in_the_way.as_str()]);
    assert_eq!(code(second), Some(1));
    // Nor does a proxy come between it and whoever counts its denials.
    let output = run(folder.path(), &["run"]);
    assert_eq!(output.status.code(), Some(1));
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    let mut ask = || client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status;
    let statuses: Vec<u16> = (0..12).map(|_| ask()).collect();
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat());

    // Connections of one that has ended are in nobody's way.
    end(first);
    let (third, said) = demo(folder.path(), &["--no-traffic"]);
    assert!(said.len() > 1, "{said:?}");
    end(third);
}

/// The command that a demo prints after its program's name, in words.
fn printed<'s>(said: &'s [String], command: &str) -> Vec<&'s str> {
    let line = said.iter().map(|line| line.trim());
    let mut found = line.filter_map(|line| line.split_once(&format!("tidegate {command}")));
    let (_, rest) = found
        .next()
        .unwrap_or_else(|| panic!("no {command}: {said:?}"));
    rest.split_whitespace().collect()
}

#[test]
fn a_demo_has_clients_of_its_own_and_follows_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let port = quick_start(folder.path());
    let (running, said) = demo(folder.path(), &[]);
    let own = said.iter().find(|line| line.starts_with("traffic"));
    let own = own.unwrap();
    assert!(own.contains("16 clients, about 22 requests/s"), "{own}");

    // They leave the budget of 127.0.0.1 alone.
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    let mut ask = || client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status;
    let statuses: Vec<u16> = (0..11).map(|_| ask()).collect();
    assert_eq!(statuses, [[200; 10].as_slice(), &[429]].concat());

    // Every printed command works as it stands.
    let command = |name: &str| {
        let mut words = vec![name];
        words.extend(printed(&said, name));
        run(folder.path(), &words)
    };
    eventually("a client is denied", || {
        stdout(&command("explain")).contains("429")
    });
    assert!(stdout(&command("check")).contains("fine"));
    // The access log is written a moment after its requests.
    eventually("the log has requests", || {
        command("replay").status.success()
    });
    let mut tap = printed(&said, "tap");
    tap.splice(..0, ["tap"]);
    tap.extend(["-n", "1"]);
    assert!(stdout(&run(folder.path(), &tap)).contains("default"));

    // The log has all requests, not only the denied ones.
    eventually("an allowed request is logged", || {
        let log = printed(&said, "replay").pop().unwrap();
        std::fs::read_to_string(log).is_ok_and(|text| text.contains("\"status\":200"))
    });

    // A changed rate holds without a restart, and the clients go on.
    let file = folder.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("10/10s", "1000/10s")).unwrap();
    eventually("the changed rate holds", || ask() == 200);
    let log = printed(&said, "replay").pop().unwrap();
    let lines = || std::fs::read_to_string(log).unwrap().lines().count();
    let before = lines();
    eventually("the clients go on", || lines() > before + 10);
    end(running);
    assert!(!Path::new(log).exists(), "{log}");
}

#[test]
fn a_demo_without_a_file_is_reached_by_every_printed_command() {
    let folder = tempfile::tempdir().unwrap();
    let (running, said) = demo(folder.path(), &[]);
    let command = |name: &str| {
        let mut words: Vec<&str> = name.split(' ').collect();
        words.extend(printed(&said, name));
        run(folder.path(), &words)
    };
    eventually("a client is denied", || {
        stdout(&command("explain")).contains("429")
    });
    let shown = command("limits show");
    assert!(stdout(&shown).contains("default~candidate"), "{shown:?}");
    let mut words = vec!["limits", "show"];
    words.extend(printed(&said, "limits show"));
    words[2] = "default~candidate";
    let shown = run(folder.path(), &words);
    let windows = stdout(&shown);
    assert!(
        windows.contains("default~candidate (candidate)"),
        "{shown:?}"
    );
    assert!(!windows.contains("10/10s"), "{windows}");
    let reset = command("limits reset");
    assert!(stdout(&reset).contains("starts at zero"), "{reset:?}");
    // The token is for the terminal only.
    assert!(!said.iter().any(|line| line.contains("token=")), "{said:?}");

    // Another demo takes other ports.
    let (other, told) = demo(folder.path(), &["--no-traffic"]);
    let port = |said: &[String]| {
        let line = said.iter().find(|line| line.contains("http://localhost:"));
        let rest = line.unwrap().split("localhost:").nth(1).unwrap();
        rest.split('/').next().unwrap().to_owned()
    };
    assert_ne!(port(&said), port(&told));
    let place = |said: &[String]| printed(said, "tap")[1].to_owned();
    assert_ne!(place(&said), place(&told));
    end(other);
    end(running);
    // A command beside no proxy says what to do.
    let told = |words: &[&str]| {
        let output = run(folder.path(), words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = told(&["run"]);
    assert!(
        missing.contains("without a file: `tidegate demo`"),
        "{missing}"
    );
    let missing = told(&["health"]);
    assert!(missing.contains("cannot read `proxy.toml`"), "{missing}");
    let missing = told(&["reload"]);
    assert!(missing.contains("help: is it running?"), "{missing}");
}

#[test]
fn help_knows_commands_and_codes() {
    let folder = tempfile::tempdir().unwrap();
    let help = |words: &[&str]| run(folder.path(), &[&["help"], words].concat());
    for words in [&["check"][..], &["limits", "show"]] {
        let shown = run(folder.path(), &[words, &["--help"]].concat());
        assert_eq!(stdout(&help(words)), stdout(&shown));
        assert!(help(words).status.success());
    }
    assert!(stdout(&help(&["t101"])).starts_with("## T101: unknown key\n"));
    let all = stdout(&help(&[]));
    for line in ["\n  explain ", "\n  T101  unknown key\n", "\n  T302  "] {
        assert!(all.contains(line), "no `{line}` in\n{all}");
    }
    let output = run(folder.path(), &["check", "proxy.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("write `-c proxy.toml`"), "{said}");
    for (word, near) in [("chekc", "check"), ("T191", "T101"), ("relaod", "reload")] {
        let output = help(&[word]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("did you mean `tidegate help {near}`?")),
            "{said}"
        );
    }
    let said = help(&["nonsense"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("`tidegate help` lists"));
}

#[test]
fn a_failed_start_names_setting_line_reason_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let start = |listen: &str, rest: &str| {
        let text = format!(
            "listen = \"{listen}\"\nupstream = \"http://127.0.0.1:1\"\n{rest}\
             [limit.default]\nrate = \"5/s\"\nkey = \"ip\"\n"
        );
        std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
        let output = run(folder.path(), &["run"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines().last().unwrap().to_owned()
    };
    let any = "127.0.0.1:0";
    let taken = std::net::TcpListener::bind(any).unwrap();
    let taken = taken.local_addr().unwrap();
    let missing = "No such file or directory (os error 2). Create the folder /nowhere";
    for (listen, rest, wanted) in [
        (
            "unix:/nowhere/a",
            "",
            format!("listen (proxy.toml:1): cannot listen on unix:/nowhere/a: {missing}"),
        ),
        (
            "unix:proxy.toml",
            "",
            "listen (proxy.toml:1): cannot listen on unix:proxy.toml: what is there is no socket. \
             Remove it, or name another path"
                .to_owned(),
        ),
        (
            &taken.to_string(),
            "",
            format!(
                "listen (proxy.toml:1): cannot listen on {taken}: process {} listens on {taken}. \
                 End the other process, or name another address",
                std::process::id()
            ),
        ),
        (
            any,
            &format!("admin = \"{taken}\"\n"),
            format!(
                "admin (proxy.toml:3): cannot listen on {taken}: Address already in use (os error \
                 98). End the other process, or name another address"
            ),
        ),
    ] {
        assert_eq!(start(listen, rest), format!("tidegate: {wanted}"));
    }
    let mut command = mortal("prlimit");
    let program = env!("CARGO_BIN_EXE_tidegate");
    command.args(["--nofile=20", program, "run"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the limit on open files is 20"), "{said}");
}
