//! The proxies under test: processes of one worker each, their CPU time and their memory.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;

use super::backend::Backend;
use crate::stage::{self, Server, Stage};
use crate::support::free_port;

/// One running proxy.
pub struct Proxy {
    pub name: &'static str,
    /// HTTP/1.1.
    pub plain: SocketAddr,
    /// HTTP/2 with prior knowledge.
    pub h2: SocketAddr,
    server: Server,
}

impl Proxy {
    /// The release build, or what `TIDEGATE` names.
    pub fn tidegate(stage: &Stage, backend: &Backend) -> Proxy {
        let folder = stage.folder("tidegate");
        let plain = free_address();
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
        let file = folder.join("proxy.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(stage::tidegate());
        command.arg("run").arg("-c").arg(file);
        let server = stage.start(&folder, None, command);
        Proxy::started("tidegate", server, (plain, plain))
    }

    /// nginx, where it is installed.
    pub fn nginx(stage: &Stage, backend: &Backend) -> Option<Proxy> {
        Command::new("nginx").arg("-v").output().ok()?;
        let folder = stage.folder("nginx");
        let (plain, h2) = (free_address(), free_address());
        let root = folder.display();
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
        let file = folder.join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&folder).arg("-c").arg(file);
        let server = stage.start(&folder, None, command);
        Some(Proxy::started("nginx", server, (plain, h2)))
    }

    fn started(
        name: &'static str,
        mut server: Server,
        (plain, h2): (SocketAddr, SocketAddr),
    ) -> Proxy {
        server.listens(plain).unwrap();
        server.listens(h2).unwrap();
        Proxy {
            name,
            plain,
            h2,
            server,
        }
    }

    /// Run time of its threads so far, microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.server.cpu_us()
    }

    /// Resident memory, KiB.
    pub fn resident_kib(&self) -> u64 {
        self.server.memory().rss_kib
    }
}

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Writes what has been found so far, also where it is redirected.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
