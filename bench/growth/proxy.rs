//! A proxy of the release build, with a configuration of the measurement's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::Setting;
use super::client::Report;
use crate::process::Memory;
use crate::stage::{self, Server, Stage};
use crate::support::free_port;

/// One that runs.
pub struct Proxy {
    pub address: SocketAddr,
    pub config: PathBuf,
    pub server: Server,
}

impl Proxy {
    /// Starts it; `text` is the configuration below `listen` and `[log]`.
    pub fn start(setting: &Setting, text: &str) -> Proxy {
        Proxy::launch(&setting.stage, setting.cores.0, &[], text)
    }

    /// The same, on all cores, or run by another program.
    pub fn launch(stage: &Stage, core: Option<usize>, by: &[String], text: &str) -> Proxy {
        let folder = stage.folder("tidegate");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = folder.join("proxy.toml");
        std::fs::write(&config, whole(address, text)).unwrap();
        let mut words = by.iter();
        let mut command = match words.next() {
            Some(program) => Command::new(program),
            None => Command::new(stage::tidegate()),
        };
        command.args(words);
        if !by.is_empty() {
            command.arg(stage::tidegate());
        }
        command.arg("run").arg("-c").arg(&config);
        let mut server = stage.start(&folder, core, command);
        let mut told = server.listens(address);
        // Under another program its start takes longer.
        while told.is_err() && !by.is_empty() && !server.is_over() {
            told = server.listens(address);
        }
        if let Err(printed) = told {
            panic!("the proxy does not start: {printed}");
        }
        Proxy {
            address,
            config,
            server,
        }
    }

    /// Another configuration in the place of its file.
    pub fn rewrite(&self, text: &str) {
        std::fs::write(&self.config, whole(self.address, text)).unwrap();
    }

    pub fn memory(&self) -> Memory {
        self.server.memory()
    }

    /// Runs something, and says how long the proxy ran for each request of it, microseconds.
    pub fn cost(&self, run: impl FnOnce() -> Report) -> (f64, Report) {
        let before = self.server.cpu_us();
        let report = run();
        let each = (self.server.cpu_us() - before) / report.requests().max(1) as f64;
        (each, report)
    }
}

fn whole(address: SocketAddr, text: &str) -> String {
    format!("listen = \"{address}\"\n{text}\n[log]\naccess = \"off\"\n")
}

/// The head of a request for `path` by the client with this API key.
pub fn get(out: &mut Vec<u8>, path: &str, key: u64) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: bench.test\r\nX-Api-Key: k{key}\r\n\r\n");
    out.extend_from_slice(head.as_bytes());
}
