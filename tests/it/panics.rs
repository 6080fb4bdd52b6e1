//! What once made threads of the program panic, and must not again. What a panic comes to, wherever
//! it is: `src/server/panics.rs`.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::house::{Client, Upstream, program};
use crate::probe::eventually;
use crate::support::{free_port, mortal};

const FULL: &str = "/dev/full";

struct Mute {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Mute {
    /// A proxy that can say nothing: its standard error is on a disk that is full.
    fn start(file: &str) -> Mute {
        let directory = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let file = format!("listen = \"{address}\"\n{file}");
        std::fs::write(directory.path().join("proxy.toml"), file).unwrap();
        let child = mortal(program())
            .arg("run")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(FULL).unwrap())
            .spawn()
            .unwrap();
        eventually("it listens", || TcpStream::connect(address).is_ok());
        Mute {
            child,
            address,
            directory,
        }
    }

    fn status(&self) -> u16 {
        let mut client = Client::to(self.address);
        client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status
    }

    /// Has it read this instead.
    fn replace(&self, file: &str) {
        let file = format!("listen = \"{}\"\n{file}", self.address);
        std::fs::write(self.directory.path().join("proxy.toml"), file).unwrap();
        self.signal("HUP");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }
}

#[test]
fn diagnostics_that_cannot_be_written_stop_nothing() {
    let upstream = Upstream::ok();
    let check = "health = { path = \"/\", every = \"50ms\", timeout = \"500ms\" }";
    let file = |url: &str| {
        format!(
            "[upstream.api]\nservers = [\"{url}\"]\n{check}\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n"
        )
    };
    let nobody = || format!("http://127.0.0.1:{}", free_port());
    // Every check of it fails, of which the thread that checks tells.
    let mut proxy = Mute::start(&file(&nobody()));
    eventually("it is down", || proxy.status() == 503);
    // Mistakes, and then changes, of which the thread that reloads tells.
    proxy.replace("upstream = 5");
    proxy.replace(&file(&upstream.url()));
    eventually("it is the other one", || proxy.status() == 200);
    proxy.replace(&file(&nobody()));
    eventually("that one is down", || proxy.status() == 503);
    proxy.signal("TERM");
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
}
