//! A tidegate and those that take its place: processes that outlive the one that was started.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::probe::eventually;

/// See the file's head. The processes are known by their pid file.
pub struct Lineage {
    pub directory: TempDir,
    first: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// Kills who is left when the test is gone, also one that was killed itself.
    warden: Child,
}

impl Lineage {
    /// Starts the first one. `settings` follow `listen`; `[server]` comes last and goes on with
    /// `server`.
    pub fn start(listen: &str, settings: &str, server: &str) -> Lineage {
        let directory = tempfile::tempdir().unwrap();
        Lineage::start_in(directory, (listen, settings, server), &[], &mut |_| {})
    }

    /// The same by way of another program, and with more to say on how it is started.
    pub fn start_in(
        directory: TempDir,
        (listen, settings, server): (&str, &str, &str),
        by: &[&str],
        with: &mut dyn FnMut(&mut Command),
    ) -> Lineage {
        let path = directory.path();
        let text = format!(
            "listen = {listen}\n{settings}\n[log]\naccess = \"off\"\n\
             [server]\npid_file = \"pid\"\n{server}\n"
        );
        fs::write(path.join("proxy.toml"), text).unwrap();
        // There already where this is a restart.
        let _ = symlink(env!("CARGO_BIN_EXE_tidegate"), path.join("tidegate"));
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .args(by)
            .arg(path.join("tidegate"))
            .args(["run", "-c", "proxy.toml"])
            .current_dir(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        with(&mut command);
        let mut first = command.spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stderr, log) = (first.stderr.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                log.lock().unwrap().push(line);
            }
        });
        let warden = Command::new("sh")
            .args(["-c", "read _; kill -9 $(cat pid)"])
            .current_dir(path)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lineage = Lineage {
            directory,
            first,
            lines,
            warden,
        };
        eventually("it listens", || lineage.address().is_some());
        eventually("it has written its pid", || lineage.path("pid").exists());
        lineage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The first TCP address of the process that has said it last.
    pub fn address(&self) -> Option<SocketAddr> {
        let lines = self.lines.lock().unwrap();
        let place = lines
            .iter()
            .rev()
            .find_map(|line| line.split_once("listening  "))?;
        let tcp = place
            .1
            .split([' ', ','])
            .find_map(|word| word.strip_prefix("http://"))?;
        Some(tcp.parse().unwrap())
    }

    /// All that any of them has said.
    pub fn said(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Who serves.
    pub fn pid(&self) -> u32 {
        let text = fs::read_to_string(self.path("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    pub fn signal(&self, name: &str) {
        kill(name, self.pid());
    }

    /// Upgrades and waits until the new process has taken over. Returns the old one.
    pub fn upgrade(&self) -> u32 {
        let before = self.pid();
        self.signal("USR2");
        let failed = || self.said().matches("upgrade failed").count();
        let failures = failed();
        eventually("another one serves", || {
            assert_eq!(failed(), failures, "{}", self.said());
            self.pid() != before
        });
        before
    }

    /// Tries to upgrade, and waits until it is said that this did not work. Returns why.
    pub fn fail_to_upgrade(&self) -> String {
        const SAID: &str = "upgrade failed: this process continues";
        let count = || self.said().matches(SAID).count();
        let before = count();
        self.signal("USR2");
        eventually("it failed", || count() > before);
        let said = self.said();
        let line = said.lines().rfind(|line| line.contains(SAID));
        line.unwrap().to_owned()
    }

    /// Puts something else where the binary is.
    pub fn replace_binary(&self, with: Option<&str>) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path("tidegate");
        let fresh = self.path("tidegate.new");
        let _ = fs::remove_file(&path);
        match with {
            None => {}
            Some("") => symlink(env!("CARGO_BIN_EXE_tidegate"), path).unwrap(),
            Some(script) => {
                fs::write(&fresh, script).unwrap();
                fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
                fs::rename(fresh, path).unwrap();
            }
        }
    }

    /// Waits until a process has ended.
    pub fn wait_for_end(&mut self, pid: u32) {
        eventually("it ends", || {
            // The first one is ours to wait for.
            let _ = self.first.try_wait();
            has_ended(pid)
        });
    }
}

pub fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill")
        .args([format!("-{signal}"), pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Whether it is gone, or has not been waited for yet.
pub fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" Z"))
        || !Path::new("/proc").join(pid.to_string()).exists()
}

impl Drop for Lineage {
    fn drop(&mut self) {
        drop(self.warden.stdin.take());
        let _ = self.warden.wait();
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}
