//! Files that a configuration names: where their paths begin, whether they can be written, and
//! that logs are rotated; and what a reload tells of what takes a restart.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::admin::Looked;
use crate::house::{Tidegate, Upstream};
use crate::look::command;
use crate::probe::eventually;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn paths_begin_at_the_folder_of_the_file_wherever_a_command_stands() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("etc");
    std::fs::create_dir(&inner).unwrap();
    write(&inner, "exempt.txt", "192.0.2.0/24\n");
    write(&inner, "token", "a-token-that-is-long-enough\n");
    let text = "listen = [\"127.0.0.1:0\", \"unix:in.sock\"]\nupstream = \"unix:app.sock\"\n\
        admin = \"127.0.0.1:9\"\nadmin_token_file = \"token\"\n\
        [limit.default]\nrate = \"5/min\"\nexempt_file = \"exempt.txt\"\n\
        [log]\naccess = \"access.log\"\ndecisions = \"decisions.log\"\n\
        [server]\npid_file = \"pid\"\ncontrol = \"control.sock\"\n";
    write(&inner, "proxy.toml", text);
    let file = inner.join("proxy.toml");
    let (config, _) = tidegate::config::load(&file).unwrap();
    assert_eq!(config.server.pid_file, Some(inner.join("pid")));
    assert_eq!(config.log.decisions, Some(inner.join("decisions.log")));
    assert_eq!(
        config.listen[1].to_string(),
        format!("unix:{}", inner.join("in.sock").display())
    );
    let control = tidegate::config::Control::At(inner.join("control.sock"));
    assert_eq!(config.server.control, control);
    assert_eq!(tidegate::config::control_of(&file), control);
    // Every command reads it so, from the folder above as from within.
    for (stands, file) in [(folder.path(), "etc/proxy.toml"), (&inner, "proxy.toml")] {
        for words in [
            &["check", "-c", file][..],
            &["config", "-c", file],
            &["explain", "GET", "/", "-c", file],
        ] {
            let output = command(stands, words);
            assert!(output.status.success(), "{words:?}: {}", stdout(&output));
        }
    }
    write(
        &inner,
        "proxy.toml",
        &text.replace("exempt.txt", "none.txt"),
    );
    let output = command(folder.path(), &["check", "-c", "etc/proxy.toml"]);
    assert_eq!(output.status.code(), Some(78));
    let said = stdout(&output);
    assert!(
        said.contains("paths are relative to the folder of the file"),
        "{said}"
    );
}

#[test]
fn check_finds_what_cannot_be_written_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let base = "upstream = \"http://127.0.0.1:1\"\n[limit.default]\nrate = \"5/min\"\n";
    for (setting, lines) in [
        ("log.access", "[log]\naccess = \"none/access.log\"\n"),
        ("log.access", "[log]\naccess = \"folder\"\n"),
        (
            "log.decisions",
            "[log]\ndecisions = \"none/decisions.log\"\n",
        ),
        ("server.pid_file", "[server]\npid_file = \"none/pid\"\n"),
        ("store.file", "[store]\nfile = \"none/counts\"\n"),
        (
            "server.control",
            "[server]\ncontrol = \"none/control.sock\"\n",
        ),
    ] {
        write(folder.path(), "proxy.toml", &format!("{base}{lines}"));
        let output = command(folder.path(), &["check"]);
        assert_eq!(output.status.code(), Some(78), "{lines}");
        let said = stdout(&output);
        assert!(
            said.contains(&format!("`{setting}`: cannot write ")),
            "{said}"
        );
    }
    let fine = "[log]\naccess = \"access.log\"\n[server]\npid_file = \"pid\"\n";
    write(folder.path(), "proxy.toml", &format!("{base}{fine}"));
    let output = command(folder.path(), &["check"]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    for (setting, lines) in [
        ("log.access", "[log]\naccess = \"none/access.log\"\n"),
        (
            "log.decisions",
            "[log]\ndecisions = \"none/decisions.log\"\n",
        ),
        ("server.pid_file", "[server]\npid_file = \"none/pid\"\n"),
    ] {
        let text = format!("listen = \"127.0.0.1:0\"\n{base}{lines}");
        write(folder.path(), "proxy.toml", &text);
        let checked = stdout(&command(folder.path(), &["check"]));
        let output = command(folder.path(), &["run"]);
        assert_eq!(output.status.code(), Some(78), "{lines}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("error[T108]: "), "{said}");
        assert!(said.contains("proxy.toml:6:"), "{said}");
        assert!(checked.starts_with(said.trim_end()), "{checked}\n{said}");
        assert!(said.contains(setting), "{said}");
    }
}

#[test]
fn check_finds_an_admin_on_the_port_of_listen() {
    let folder = tempfile::tempdir().unwrap();
    let base = "upstream = \"http://127.0.0.1:1\"\n[limit.default]\nrate = \"5/min\"\n";
    for (listen, admin, code) in [
        (":8080", "127.0.0.1:8080", 78),
        ("127.0.0.1:8080", "127.0.0.1:8080", 78),
        ("127.0.0.2:8080", "127.0.0.1:8080", 0),
        (":8080", "127.0.0.1:9180", 0),
    ] {
        let text = format!("listen = \"{listen}\"\nadmin = \"{admin}\"\n{base}");
        write(folder.path(), "proxy.toml", &text);
        let output = command(folder.path(), &["check"]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{listen} {}",
            stdout(&output)
        );
    }
}

#[test]
fn a_decision_log_that_was_moved_away_is_opened_anew_and_no_line_is_lost() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"1000/h\"\n[log]\naccess = \"off\"\n\
         decisions = \"decisions.log\"\n",
        upstream.url()
    ));
    let lines = |name: &str| {
        let text = std::fs::read_to_string(proxy.directory.path().join(name)).unwrap_or_default();
        text.lines().count()
    };
    for round in 0..3 {
        for _ in 0..20 {
            assert_eq!(proxy.get("/").status, 200);
        }
        let moved = proxy.directory.path().join(format!("decisions.{round}"));
        std::fs::rename(proxy.directory.path().join("decisions.log"), moved).unwrap();
        proxy.signal("HUP");
        eventually("it is opened anew", || {
            proxy.directory.path().join("decisions.log").exists()
        });
    }
    assert_eq!(proxy.get("/").status, 200);
    eventually("new lines are in the new file", || {
        lines("decisions.log") > 0
    });
    let names = ["decisions.0", "decisions.1", "decisions.2", "decisions.log"];
    eventually("no line is lost", || {
        names.map(lines).iter().sum::<usize>() == 61
    });
}

#[test]
fn workers_are_told_as_they_run_after_each_reload() {
    let upstream = Upstream::ok();
    let text = format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"5/h\"\n",
        upstream.url()
    );
    let looked = Looked::start_on_a_known_port(&text);
    let running = looked.json("/api/v1/status")["workers"].clone();
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let first = std::fs::read_to_string(&file).unwrap();
    let other = running.as_u64().unwrap() + 1;
    let reload = || command(looked.tidegate.directory.path(), &["reload"]);
    // The control socket opens once all workers serve; the admin may answer before that.
    eventually("the control socket answers", || {
        !String::from_utf8_lossy(&reload().stderr).contains("no proxy of")
    });
    std::fs::write(&file, format!("{first}\nworkers = {other}\n")).unwrap();
    for _ in 0..2 {
        let said = reload();
        let said = format!("{}{}", stdout(&said), String::from_utf8_lossy(&said.stderr));
        let expected =
            format!("Changing `workers` to {other} needs a restart; still running {running}");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(looked.json("/api/v1/status")["workers"], running);
    }
    std::fs::write(&file, &first).unwrap();
    assert!(!stdout(&reload()).contains("needs a restart"));
}

#[test]
fn a_cap_on_requests_at_once_is_overridden_in_the_embedded_store() {
    let upstream = Upstream::ok();
    let text = format!(
        "upstream = \"{}\"\n[limit.slots]\nconcurrent = 5\nkey = \"ip\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"slots\"]\n",
        upstream.url()
    );
    let looked = Looked::start_on_a_known_port(&text);
    let run = |words: &[&str]| {
        let output = command(looked.tidegate.directory.path(), words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        stdout(&output)
    };
    let told = run(&["limits", "override", "slots", "ip=127.0.0.1", "20"]);
    assert!(told.contains("has 20 at once"), "{told}");
    let told: Value = serde_json::from_str(&run(&["limits", "ls", "--json"])).unwrap();
    assert!(told.to_string().contains("20 at once"), "{told}");
    let told = run(&["limits", "show", "slots", "ip=127.0.0.1"]);
    assert!(told.contains("20"), "{told}");
    run(&["limits", "override", "slots", "ip=127.0.0.1", "7 at once"]);
    run(&["limits", "override", "slots", "ip=127.0.0.1", "--remove"]);
}
