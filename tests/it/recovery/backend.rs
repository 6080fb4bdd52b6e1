//! A server in a process of its own, which can be killed, frozen and started again.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::probe::eventually;
use crate::support::{free_port, mortal};

/// See the file's head; killed when it is dropped.
pub struct Backend {
    port: u16,
    name: String,
    child: Option<Child>,
}

impl Backend {
    /// One that answers everything with its name.
    pub fn start(name: &str) -> Backend {
        let mut backend = Backend {
            port: free_port(),
            name: name.to_owned(),
            child: None,
        };
        backend.restart();
        backend
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        self.kill();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/recovery/backend.py");
        let child = mortal("python3")
            .args([script, &self.port.to_string(), &self.name])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let address = ("127.0.0.1", self.port);
        eventually("the backend listens", || {
            TcpStream::connect(address).is_ok()
        });
    }

    /// Ends it at once, with all its connections.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it; the kernel goes on taking connections for it.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id();
        let status = Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}
