//! Where servers are started for a measurement, and what ends all of them, however it ends: a
//! watcher that is told of each, and that acts when the pipe to it closes. So Ctrl-C, a panic and
//! SIGKILL leave no process and no file.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::process;

/// Lines are `+ GROUP` and `- GROUP`; at the end of them those that are left are killed, and the
/// folder is removed.
const WATCHER: &str = r#"
groups=" "
while read -r what group; do
    case $what in
        +) groups="$groups$group " ;;
        -) groups="${groups%% $group *} ${groups#* $group }" ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
rm -rf -- "$1"
"#;

/// How long a server has for its first answer, and for its end.
const PATIENCE: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(3);

/// A scratch folder and the servers that run in it.
#[derive(Debug)]
pub struct Stage {
    folder: PathBuf,
    folders: AtomicUsize,
    watcher: Child,
    tell: Arc<Mutex<Option<ChildStdin>>>,
}

impl Stage {
    pub fn new() -> Stage {
        process::raise_descriptor_limit();
        let folder = tempfile::Builder::new().prefix("tidegate-bench-").tempdir();
        let folder = folder.unwrap().keep();
        let mut watcher = Command::new("sh")
            .args(["-c", WATCHER, "watcher"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for us alone; the watcher is there to see that we are gone.
            .process_group(0)
            .spawn()
            .unwrap();
        let tell = Arc::new(Mutex::new(watcher.stdin.take()));
        Stage {
            folder,
            folders: AtomicUsize::new(0),
            watcher,
            tell,
        }
    }

    /// An empty folder of its own for each caller.
    pub fn folder(&self, name: &str) -> PathBuf {
        let number = self.folders.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{number}-{name}"));
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// Starts a process, on one core if that is said. What it prints goes into `log` in `folder`.
    pub fn start(&self, folder: &Path, core: Option<usize>, mut command: Command) -> Server {
        let log = folder.join("log");
        let output = File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let child = self.spawn(core, &mut command);
        let tell = Arc::clone(&self.tell);
        Server { child, log, tell }
    }

    /// Runs something to its end that is short, and gives back what it printed.
    pub fn output(&self, core: Option<usize>, mut command: Command) -> (ExitStatus, String) {
        let log = self.folder.join("output");
        let output = File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let mut child = self.spawn(core, &mut command);
        let status = child.wait().unwrap();
        tell(&self.tell, '-', child.id());
        (status, fs::read_to_string(log).unwrap())
    }

    fn spawn(&self, core: Option<usize>, command: &mut Command) -> Child {
        command.process_group(0);
        let child = process::on_core(core, || command.spawn());
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        tell(&self.tell, '+', child.id());
        child
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        *self.tell.lock().unwrap() = None;
        let _ = self.watcher.wait();
    }
}

fn tell(watcher: &Mutex<Option<ChildStdin>>, what: char, group: u32) {
    if let Some(pipe) = watcher.lock().unwrap().as_mut() {
        writeln!(pipe, "{what} {group}").unwrap();
    }
}

/// A process that runs on the stage, with those that it started; ended when it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
    tell: Arc<Mutex<Option<ChildStdin>>>,
}

impl Server {
    /// Waits until something listens at this address; what the server printed, if it does not.
    pub fn listens(&mut self, address: SocketAddr) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = self.child.try_wait().unwrap().is_some();
            if ended || Instant::now() > end {
                return Err(fs::read_to_string(&self.log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The processes that it is now.
    pub fn pids(&self) -> Vec<u32> {
        process::group(self.child.id())
    }

    /// How long it has run, us.
    pub fn cpu_us(&self) -> f64 {
        process::cpu_us(&self.pids())
    }

    pub fn memory(&self) -> process::Memory {
        process::memory(&self.pids())
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        let _ = kill_process_group(group, Signal::TERM);
        let end = Instant::now() + GRACE;
        loop {
            let over = self.child.try_wait().is_ok_and(|status| status.is_some());
            if over && test_kill_process_group(group).is_err() {
                break;
            }
            if Instant::now() > end {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        tell(&self.tell, '-', self.child.id());
    }
}

/// The release build beside this program, or what `TIDEGATE` names.
pub fn tidegate() -> PathBuf {
    match std::env::var_os("TIDEGATE") {
        Some(program) => program.into(),
        None => profile().join("tidegate"),
    }
}

/// Where cargo puts everything.
pub fn target() -> PathBuf {
    profile().parent().unwrap().to_owned()
}

/// TARGET/release of TARGET/release/examples/bench.
fn profile() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleepers(stage: &Stage) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 600 & wait"]);
        let server = stage.start(&stage.folder("sleepers"), Some(0), command);
        let end = Instant::now() + PATIENCE;
        while server.pids().len() < 3 {
            assert!(Instant::now() < end, "it does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn gone(pids: &[u32]) {
        let end = Instant::now() + PATIENCE;
        let left = |pid: &&u32| Path::new(&format!("/proc/{pid}")).exists();
        // Whoever takes orphans over reaps them, in its own time.
        while let Some(pid) = pids.iter().find(left) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < end, "{pid} is left: {stat}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_dropped_server_ends_with_all_that_it_started() {
        let stage = Stage::new();
        let server = sleepers(&stage);
        let pids = server.pids();
        drop(server);
        gone(&pids[1..]);
        let folder = stage.folder.clone();
        drop(stage);
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_killed_program_leaves_is_cleaned_up() {
        let stage = Stage::new();
        let (ended, left) = (sleepers(&stage), sleepers(&stage));
        let pids = left.pids();
        drop(ended);
        std::mem::forget(left);
        let folder = stage.folder.clone();
        // What the kernel does to the pipe of a program that is killed.
        drop(stage);
        gone(&pids[1..]);
        assert!(!folder.exists());
    }

    #[test]
    fn the_output_of_something_short_is_given_back() {
        let stage = Stage::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo on $1; exit 3", "sh", "cue"]);
        let (status, printed) = stage.output(None, command);
        assert_eq!(status.code(), Some(3));
        assert_eq!(printed, "on cue\n");
    }
}
