//! `top` in a real pseudo-terminal: numbers that change under load, keys, another size, and the
//! terminal as it was afterwards.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::limited;
use crate::admin::Looked;
use crate::house::Upstream;
use crate::probe::eventually;
use crate::support::mortal;

/// Says how the terminal is before and after, and stays until a line is typed.
const SCRIPT: &str = "echo before $(stty -g); exec 3<&0; \"$@\" <&3 & echo pid $!; wait $!; \
                      echo ended $?; echo after $(stty -g); read line";

/// A terminal in which `top` runs.
struct Pseudo {
    master: File,
    written: Arc<Mutex<Vec<u8>>>,
    shell: Child,
}

impl Pseudo {
    fn start(looked: &Looked) -> Pseudo {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        resize(&master, 80, 24);
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let side = || Stdio::from(File::options().read(true).write(true).open(path).unwrap());
        let shell = mortal("setsid")
            .args([
                "--ctty",
                "sh",
                "-c",
                SCRIPT,
                "sh",
                env!("CARGO_BIN_EXE_tidegate"),
                "top",
            ])
            .args(["--admin", &looked.address.to_string()])
            .current_dir(looked.tidegate.directory.path())
            .env("XDG_RUNTIME_DIR", looked.tidegate.directory.path())
            .env_remove("NO_COLOR")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (mut reader, sink) = (master.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Fails when nobody has the other side any more.
            while let Ok(many @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..many]);
            }
        });
        Pseudo {
            master,
            written,
            shell,
        }
    }

    fn all(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The lines of the last picture that is whole, without colours.
    fn screen(&self) -> Vec<String> {
        let all = self.all();
        let pictures = all.split("\x1b[H").skip(1);
        let Some(last) = pictures.filter(|one| one.contains("\x1b[J")).last() else {
            return Vec::new();
        };
        let last = last.split("\x1b[J").next().unwrap();
        last.split("\r\n").map(plain).collect()
    }

    /// The row that begins so, as words.
    fn row(&self, name: &str) -> Vec<String> {
        let screen = self.screen();
        let mut rows = screen.iter().filter(|line| line.starts_with(name));
        let row = rows.next().map_or("", String::as_str);
        row.split_whitespace().map(str::to_owned).collect()
    }

    fn shows(&self, part: &str) -> bool {
        self.screen().iter().any(|line| line.contains(part))
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// What the shell said after this word.
    fn said(&self, word: &str) -> Option<String> {
        let all = self.all();
        // Not in the middle of being written.
        let (whole, _) = all.rsplit_once('\n')?;
        let mut lines = whole.lines().rev();
        let found = lines.find_map(|line| line.split_once(&format!("{word} ")));
        found.map(|(_, rest)| rest.trim().to_owned())
    }

    fn ends_well(&mut self) {
        eventually("it ended", || self.said("after").is_some());
        assert_eq!(self.said("ended").as_deref(), Some("0"), "{}", self.all());
        assert_eq!(self.said("before"), self.said("after"));
        let all = self.all();
        let left = all.rfind("\x1b[?1049l").unwrap();
        assert!(left > all.rfind("\x1b[?1049h").unwrap());
        assert!(all[..left].ends_with("\x1b[?7h\x1b[?25h"), "{all}");
        self.press("\n");
        assert!(self.shell.wait().unwrap().success());
    }
}

impl Drop for Pseudo {
    fn drop(&mut self) {
        // Whoever still has the terminal is told that it has gone.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn resize(master: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(master, size).unwrap();
}

fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => drop(rest.by_ref().find(char::is_ascii_alphabetic)),
            c => text.push(c),
        }
    }
    text
}

/// All that a limit has denied, as its row says.
fn denied(pseudo: &Pseudo) -> u64 {
    let row = pseudo.row("login ");
    row.last().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[test]
fn numbers_change_under_load_and_the_terminal_is_given_back() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    let mut pseudo = Pseudo::start(&looked);
    eventually("a picture", || pseudo.shows("q quit"));
    assert_eq!(pseudo.screen().len(), 24);
    assert_eq!(denied(&pseudo), 0);
    for more in [1, 4] {
        eventually("more is denied, and shown", || {
            let _ = looked.tidegate.get("/login");
            denied(&pseudo) >= more
        });
    }
    pseudo.press("?");
    eventually("help", || pseudo.shows("any key: back"));
    pseudo.press("x");
    eventually("back", || pseudo.shows("q quit"));
    // To the clients, and almost a reset.
    eventually("the client is there", || pseudo.shows("100 %"));
    pseudo.press("\x1b[C");
    pseudo.press("r");
    eventually("it asks", || pseudo.shows("set its counts to zero? y/n"));
    pseudo.press("n");
    eventually("nothing is done", || pseudo.shows("nothing was reset"));
    resize(&pseudo.master, 100, 30);
    eventually("another size", || pseudo.screen().len() == 30);
    pseudo.press("q");
    pseudo.ends_well();
}

#[test]
fn a_client_gets_another_rate_and_is_blocked_by_keys() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    for status in [200, 200, 429] {
        assert_eq!(looked.tidegate.get("/login").status, status);
    }
    let mut pseudo = Pseudo::start(&looked);
    eventually("the client is there", || pseudo.shows("100 %"));
    pseudo.press("\x1b[Co");
    eventually("it asks for a rate", || {
        pseudo.shows("rate (50/min, unlimited): _")
    });
    pseudo.press("50/h\r");
    eventually("it asks for a time", || {
        pseudo.shows("for (24h; empty: no end): _")
    });
    pseudo.press("soonx\x7f\r");
    eventually("that is no time", || {
        pseudo.shows("write a time such as 30min")
    });
    pseudo.press("\x7f\x7f\x7f\x7f1h\r");
    eventually("it asks for a note", || {
        pseudo.shows("note (may be empty): _")
    });
    pseudo.press("an office\r");
    eventually("it asks to confirm", || {
        pseudo.shows("in login: 50/h for 1h? y/n")
    });
    pseudo.press("y");
    eventually("it is done", || pseudo.shows("has 50/h in login"));
    eventually("it passes", || looked.tidegate.get("/login").status == 200);
    let told = looked.json("/api/v1/overrides");
    assert_eq!(told["overrides"][0]["reason"], "an office");
    pseudo.press("b");
    eventually("it asks for a time", || {
        pseudo.shows("for (24h; empty: no end): _")
    });
    pseudo.press("\r");
    eventually("it asks for a note", || {
        pseudo.shows("note (may be empty): _")
    });
    pseudo.press("\r");
    eventually("it asks to confirm", || pseudo.shows("until removed? y/n"));
    pseudo.press("y");
    eventually("it is done", || pseudo.shows("is blocked"));
    eventually("it is blocked", || {
        looked.tidegate.get("/login").text().contains("blocked")
    });
    pseudo.press("q");
    pseudo.ends_well();
}

#[test]
fn a_client_is_found_and_its_page_changes_it() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    for status in [200, 200, 429] {
        assert_eq!(looked.tidegate.get("/login").status, status);
    }
    let denials = looked.json("/api/v1/denials");
    let text = |name: &str| denials["denials"][0][name].as_str().unwrap().to_owned();
    let (id, request) = (text("id"), text("request_id"));
    let mut pseudo = Pseudo::start(&looked);
    // By the id of a request, a hash, an address, and a key with its part.
    for word in [&*request, &id[..8], "127.0.0.1", "ip=127.0.0.1"] {
        eventually("the overview", || pseudo.shows("q quit"));
        pseudo.press(&format!("/{word}\r"));
        eventually("its page", || pseudo.shows(&format!("client {id}")));
        eventually("its use", || pseudo.shows("used 2 of 2, 0 left"));
        pseudo.press("\x1b[D");
    }
    eventually("the overview", || pseudo.shows("q quit"));
    pseudo.press("/tag=nobodyhasit\r");
    eventually("it is not found", || pseudo.shows("no client is known"));
    // From the list of clients to the page, with a timeline and denials.
    pseudo.press("\x1b[C\r");
    eventually("its timeline", || {
        pseudo.shows("3 requests, 1 denied; at most 100 %: 2 of 2")
    });
    eventually("its denials", || {
        pseudo.shows("login  GET /login  retry in")
    });

    pseudo.press("o50/h\r1h\ran office\r");
    eventually("it asks to confirm", || {
        pseudo.shows("in login: 50/h for 1h? y/n")
    });
    // The command is longer than a line of the screen, and nothing of it is cut off.
    let screen = pseudo.screen().concat();
    let command =
        format!("tidegate limits override login tag={id} 50/h --for 1h --note 'an office'");
    assert!(screen.contains(&command), "{screen}");
    pseudo.press("c");
    eventually("it is in the clipboard", || {
        pseudo.all().contains("\x1b]52;c;")
    });
    pseudo.press("y");
    eventually("the override", || pseudo.shows("override 50/h for "));
    eventually("it passes", || looked.tidegate.get("/login").status == 200);
    pseudo.press("x");
    eventually("it asks", || pseudo.shows("remove its override? y/n"));
    pseudo.press("y");
    eventually("the override is gone", || {
        looked.json("/api/v1/overrides")["overrides"]
            .as_array()
            .unwrap()
            .is_empty()
    });

    pseudo.press("b\rticket 4711\ry");
    eventually("the block", || {
        pseudo.shows("blocked until removed, ticket 4711")
    });
    eventually("it is blocked", || {
        looked.tidegate.get("/login").text().contains("blocked")
    });
    pseudo.press("u");
    eventually("it asks", || pseudo.shows("unblock"));
    pseudo.press("y");
    eventually("it is not blocked", || {
        !looked.tidegate.get("/login").text().contains("blocked")
    });
    pseudo.press("ry");
    eventually("it starts at zero", || pseudo.shows("used 0 of 2, 2 left"));
    pseudo.press("q");
    pseudo.ends_well();
}

#[test]
fn a_shadow_limit_and_its_candidate_have_their_patches() {
    let upstream = Upstream::ok();
    let tried = "[limit.tried]\nrate = \"9/h\"\ncandidate = \"1/h\"\nshadow = true\n\
                 [[route]]\npath = \"/tried\"\nlimits = [\"tried\"]\n";
    let looked = Looked::start(&format!("{}{tried}", limited(&upstream, "")));
    let mut pseudo = Pseudo::start(&looked);
    eventually("a picture", || pseudo.shows("q quit"));
    // The first limit is enforced.
    pseudo.press("p");
    eventually("nothing to promote", || {
        pseudo.shows("login is enforced, and has no candidate")
    });
    pseudo.press("jp");
    eventually("the patch", || pseudo.shows("-shadow = true"));
    assert!(pseudo.shows("enforce tried  1 of 2; tab shows the other one"));
    pseudo.press("\t");
    eventually("the other one", || pseudo.shows("+rate = \"1/h\""));
    pseudo.press("c");
    eventually("it is copied", || pseudo.shows("sent to the clipboard"));
    pseudo.press("\x1b[D");
    eventually("the overview", || pseudo.shows("q quit"));
    pseudo.press("q");
    pseudo.ends_well();
}

#[test]
fn the_terminal_is_given_back_when_it_is_told_to_end() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    for end in ["TERM", "INT", "HUP", "ctrl-c"] {
        let mut pseudo = Pseudo::start(&looked);
        eventually("a picture", || pseudo.shows("q quit"));
        match end {
            "ctrl-c" => pseudo.press("\x03"),
            signal => {
                let pid = pseudo.said("pid").unwrap();
                let mut kill = std::process::Command::new("kill");
                kill.args([format!("-{signal}"), pid]);
                assert!(kill.status().unwrap().success());
            }
        }
        pseudo.ends_well();
    }
}
