//! The readers of standard output and of standard error may stop reading. Requests do not wait for
//! them, and neither does the end of the process.

use std::io::{ErrorKind, PipeReader, PipeWriter, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::house::{Client, PATIENCE, Upstream, program};
use crate::support::{free_port, mortal};

/// A pipe for the output of a program. Nobody reads it.
fn fill(pipe: &mut PipeWriter) {
    rustix::io::ioctl_fionbio(&*pipe, true).unwrap();
    for size in [4096, 1] {
        let text = vec![b' '; size];
        loop {
            match pipe.write_all(&text) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    rustix::io::ioctl_fionbio(&*pipe, false).unwrap();
}

struct Stuck {
    child: Child,
    port: u16,
    _unread: PipeReader,
    _directory: tempfile::TempDir,
}

impl Stuck {
    /// Starts the program, and fills its output once it serves.
    fn start(config: &str) -> Stuck {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("proxy.toml");
        std::fs::write(&file, format!("listen = \"127.0.0.1:{port}\"\n{config}")).unwrap();
        let (unread, mut pipe) = std::io::pipe().unwrap();
        let child = mortal(program())
            .args(["run", "-c"])
            .arg(&file)
            .stdout(pipe.try_clone().unwrap())
            .stderr(pipe.try_clone().unwrap())
            .spawn()
            .unwrap();
        let stuck = Stuck {
            child,
            port,
            _unread: unread,
            _directory: directory,
        };
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        // What it says at its start is written before the first answer.
        stuck.status();
        fill(&mut pipe);
        stuck
    }

    fn status(&self) -> u16 {
        let mut client = Client::to(([127, 0, 0, 1], self.port).into());
        let asked = "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        client.ask(asked).status
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn output_that_nobody_reads_holds_up_neither_requests_nor_the_end() {
    let backend = Upstream::saying("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    let dead: String = (0..5)
        .map(|_| format!(", \"http://127.0.0.1:{}\"", free_port()))
        .collect();
    let mut stuck = Stuck::start(&format!(
        "[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n\
         [upstream.api]\nservers = [\"{}\"{dead}]\n",
        backend.url(),
    ));
    // Standard error tells of each server that fails. The access log is standard output.
    for _ in 0..40 {
        assert!(stuck.status() >= 500);
    }
    let pid = Pid::from_child(&stuck.child);
    kill_process(pid, Signal::TERM).unwrap();
    let began = Instant::now();
    while stuck.child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}
