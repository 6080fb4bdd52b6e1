//! The proxies under test: processes of one worker each, their CPU time and their memory.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::backend::Backend;

/// One running proxy.
pub struct Proxy {
    pub name: &'static str,
    /// HTTP/1.1.
    pub plain: SocketAddr,
    /// HTTP/2 with prior knowledge.
    pub h2: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Proxy {
    /// The release build, or what `TIDEGATE` names.
    pub fn tidegate(backend: &Backend) -> Proxy {
        let directory = TempDir::new().unwrap();
        let plain = free_address();
        let program = std::env::var("TIDEGATE").unwrap_or_else(|_| {
            concat!(env!("CARGO_MANIFEST_DIR"), "/target/release/tidegate").to_owned()
        });
        let config = format!(
            "listen = \"{plain}\"\n\
             [server]\nworkers = 1\nmax_body = \"unlimited\"\nmax_connections = 30000\n\
             [log]\naccess = \"off\"\n\
             [upstream.plain]\nservers = [\"http://{}\"]\nmax_connections = 30000\n\
             [upstream.grpc]\nservers = [\"h2c://{}\"]\n\
             [[route]]\npath = \"/*\"\nupstream = \"plain\"\nlimits = []\n\
             [[route]]\npath = \"/echo.Echo/*\"\nupstream = \"grpc\"\nlimits = []\n",
            backend.plain, backend.h2
        );
        let file = directory.path().join("proxy.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("run").arg("-c").arg(file);
        Proxy::started("tidegate", command, (plain, plain), directory)
    }

    /// nginx, where it is installed.
    pub fn nginx(backend: &Backend) -> Option<Proxy> {
        Command::new("nginx").arg("-v").output().ok()?;
        let directory = TempDir::new().unwrap();
        let (plain, h2) = (free_address(), free_address());
        let root = directory.path().display();
        let config = format!(
            "daemon off; worker_processes 1; pid {root}/pid; error_log stderr error;\n\
             events {{ worker_connections 40000; }}\n\
             http {{ access_log off; client_body_temp_path {root}/b; proxy_temp_path {root}/p;\n\
             fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
             client_max_body_size 0; keepalive_requests 1000000000; keepalive_timeout 600;\n\
             proxy_request_buffering off; proxy_max_temp_file_size 0;\n\
             upstream plain {{ server {}; keepalive 64; keepalive_requests 1000000000; }}\n\
             upstream grpc {{ server {}; keepalive 64; keepalive_requests 1000000000; }}\n\
             map $http_upgrade $up {{ default upgrade; '' ''; }}\n\
             server {{ listen {plain};\n location / {{ proxy_pass http://plain;\n\
             proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;\n\
             proxy_set_header Connection $up; }} }}\n\
             server {{ listen {h2} http2;\n\
             location / {{ grpc_pass grpc://grpc; grpc_read_timeout 600s; }} }} }}\n",
            backend.plain, backend.h2
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory.path()).arg("-c").arg(file);
        Some(Proxy::started("nginx", command, (plain, h2), directory))
    }

    fn started(
        name: &'static str,
        mut command: Command,
        (plain, h2): (SocketAddr, SocketAddr),
        directory: TempDir,
    ) -> Proxy {
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect(plain).is_err() || TcpStream::connect(h2).is_err() {
            assert!(Instant::now() < patience, "{name} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Proxy {
            name,
            plain,
            h2,
            child,
            _directory: directory,
        }
    }

    /// Run time of its threads so far, microseconds.
    pub fn cpu_us(&self) -> f64 {
        let task = |pid: &String| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let ran = tasks.map(|task| {
                let path = task.unwrap().path().join("schedstat");
                let text = fs::read_to_string(path).unwrap_or_default();
                let first = text.split(' ').next().unwrap_or_default();
                first.parse::<f64>().unwrap_or(0.0)
            });
            ran.sum::<f64>()
        };
        self.pids().iter().map(task).sum::<f64>() / 1e3
    }

    /// Resident memory, KiB.
    pub fn resident_kib(&self) -> u64 {
        let of = |pid: &String| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:"));
            let words = line.unwrap().split_whitespace().nth(1);
            words.unwrap().parse::<u64>().unwrap()
        };
        self.pids().iter().map(of).sum()
    }

    /// The process and its children: nginx works in those.
    fn pids(&self) -> Vec<String> {
        let own = self.child.id().to_string();
        let path = format!("/proc/{own}/task/{own}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        let children = children.split_whitespace().map(str::to_owned);
        children.chain([own.clone()]).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Writes what has been found so far, also where it is redirected.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
