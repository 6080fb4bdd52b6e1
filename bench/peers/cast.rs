//! Starts the proxies, what is behind them, and a Redis for each that asks one.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::packages::Packages;
use super::peer::Peer;
use super::scenario::Limit;
use crate::stage::{self, Server, Stage};
use crate::support::free_port;

const NGINX: &str = include_str!("conf/nginx.conf");
const HAPROXY: &str = include_str!("conf/haproxy.cfg");
const TIDEGATE: &str = include_str!("conf/tidegate.toml");
const ACCESS: &str = include_str!("conf/access.lua");
const WINDOW: &str = include_str!("conf/window.lua");

/// Where everything runs: the proxy alone on one core, all else on the other.
#[derive(Debug)]
pub struct Setting<'s> {
    pub stage: &'s Stage,
    pub packages: &'s Packages,
    pub proxy_core: usize,
    pub other_core: usize,
    pub upstream: SocketAddr,
    pub upstream_pids: Vec<u32>,
}

/// A proxy that runs.
#[derive(Debug)]
pub struct Actor {
    pub peer: Peer,
    pub address: SocketAddr,
    /// Where it speaks HTTP/2 with prior knowledge.
    pub http2: SocketAddr,
    pub server: Server,
    pub redis: Option<Server>,
}

/// What takes the places of `@NAMES@` in a configuration.
struct Places {
    limit: Limit,
    address: SocketAddr,
    http2: SocketAddr,
    /// The port of its Redis, and what our script is called there.
    redis: Option<(u16, String)>,
}

impl Setting<'_> {
    /// Starts one, with this limit for each client if it limits at all.
    pub fn start(&self, peer: Peer, limit: Limit) -> Result<Actor, String> {
        let folder = self.stage.folder(&peer.id());
        let redis = match peer.needs_redis() {
            true => Some(self.redis()?),
            false => None,
        };
        let address = free_address();
        let places = Places {
            limit,
            address,
            // Ours knows by the first bytes.
            http2: if peer.is_ours() {
                address
            } else {
                free_address()
            },
            redis: redis.as_ref().map(|(_, port, sha)| (*port, sha.clone())),
        };
        let command = match peer {
            Peer::Nginx | Peer::NginxLimit | Peer::NginxLua => self.nginx(peer, &folder, &places),
            Peer::Haproxy | Peer::HaproxyTable => self.haproxy(peer, &folder, &places),
            _ => self.tidegate(peer, &folder, &places),
        };
        let mut server = self.stage.start(&folder, Some(self.proxy_core), command);
        for address in [places.address, places.http2] {
            let said = |said: String| format!("{} does not start: {said}", peer.name());
            server.listens(address).map_err(said)?;
        }
        Ok(Actor {
            peer,
            address,
            http2: places.http2,
            server,
            redis: redis.map(|(server, _, _)| server),
        })
    }

    fn redis(&self) -> Result<(Server, u16, String), String> {
        let folder = self.stage.folder("redis");
        let address = free_address();
        let mut command = Command::new(self.packages.redis.as_ref().unwrap());
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&folder);
        let mut server = self.stage.start(&folder, Some(self.other_core), command);
        let said = |said: String| format!("redis-server does not start: {said}");
        server.listens(address).map_err(said)?;
        let client = redis::Client::open(format!("redis://{address}/"));
        let sha = client.and_then(|client| {
            let mut connection = client.get_connection()?;
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(WINDOW).query(&mut connection)
        });
        let sha = sha.map_err(|error: redis::RedisError| error.to_string())?;
        Ok((server, address.port(), sha))
    }

    fn nginx(&self, peer: Peer, folder: &Path, places: &Places) -> Command {
        let Limit { units, seconds } = places.limit;
        let mut load = String::new();
        let mut prepare = String::new();
        let mut limit = String::new();
        match peer {
            Peer::NginxLimit => {
                prepare = format!(
                    "limit_req_zone $http_x_client zone=clients:16m rate={}r/m; \
                     limit_req_status 429; limit_req_log_level info;",
                    60 * units / seconds
                );
                let burst = match units {
                    1 => String::new(),
                    _ => format!(" burst={units} nodelay"),
                };
                limit = format!("limit_req zone=clients{burst};");
            }
            Peer::NginxLua => {
                let modules = self.packages.lua.as_ref().unwrap().display();
                load = format!(
                    "load_module {modules}/ndk_http_module.so;\n\
                     load_module {modules}/ngx_http_lua_module.so;"
                );
                "init_by_lua_block { redis = require \"nginx.redis\" }\n\
                 init_worker_by_lua_block { sequence = 0; worker = ngx.worker.pid() .. \":\" }"
                    .clone_into(&mut prepare);
                let (port, sha) = places.redis.as_ref().unwrap();
                let script = ACCESS
                    .replace("@REDIS@", &port.to_string())
                    .replace("@SHA@", sha)
                    .replace("@WINDOW_US@", &(seconds * 1_000_000).to_string())
                    .replace("@UNITS@", &units.to_string());
                let file = folder.join("access.lua");
                fs::write(&file, script).unwrap();
                limit = format!("access_by_lua_file {};", file.display());
            }
            _ => {}
        }
        // Started as root, its workers would be somebody who may not enter our folder.
        let root = rustix::process::getuid().is_root();
        let text = self.filled(NGINX, places, &limit);
        let text = text
            .replace("@FOLDER@", &folder.display().to_string())
            .replace("@USER@", if root { "user root;" } else { "" })
            .replace("@LOAD@", &load)
            .replace("@PREPARE@", &prepare);
        let file = written(folder, "nginx.conf", &text);
        let mut command = Command::new(self.packages.nginx.as_ref().unwrap());
        // Before it has read its configuration it would log elsewhere.
        command
            .args(["-e", "stderr", "-p"])
            .arg(folder)
            .arg("-c")
            .arg(file);
        command
    }

    fn haproxy(&self, peer: Peer, folder: &Path, places: &Places) -> Command {
        let Limit { units, seconds } = places.limit;
        let limit = match peer {
            Peer::HaproxyTable => format!(
                "stick-table type string len 32 size 200k expire 60s \
                 store http_req_rate({seconds}s)\n    \
                 http-request track-sc0 req.hdr(x-client)\n    \
                 http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {units} }}"
            ),
            _ => String::new(),
        };
        let text = self.filled(HAPROXY, places, &limit);
        let file = written(folder, "haproxy.cfg", &text);
        let mut command = Command::new(self.packages.haproxy.as_ref().unwrap());
        command.arg("-db").arg("-f").arg(file);
        command
    }

    fn tidegate(&self, peer: Peer, folder: &Path, places: &Places) -> Command {
        let Limit { units, seconds } = places.limit;
        let mut limit = String::new();
        if peer != Peer::Tidegate {
            limit = format!(
                "[limit.client]\nrate = \"{units}/{seconds}s\"\nkey = \"header:x-client\"\n"
            );
        }
        if let Some((port, _)) = &places.redis {
            let secret = written(folder, "secret", "what keys are hashed with");
            // No answer is an error here: what is measured is what Redis decided.
            limit += &format!(
                "\n[store]\nurl = \"redis://127.0.0.1:{port}\"\ntimeout = \"1s\"\n\
                 on_error = \"deny\"\nhash_key_file = \"{}\"\n",
                secret.display()
            );
        }
        let names = if peer == Peer::Tidegate {
            ""
        } else {
            "\"client\""
        };
        let text = self.filled(TIDEGATE, places, &limit);
        let file = written(folder, "proxy.toml", &text.replace("@LIMITS@", names));
        let mut command = Command::new(stage::tidegate());
        command.arg("run").arg("-c").arg(file);
        command
    }

    fn filled(&self, text: &str, places: &Places, limit: &str) -> String {
        text.replace("@ADDRESS@", &places.address.to_string())
            .replace("@HTTP2@", &places.http2.to_string())
            .replace("@UPSTREAM@", &self.upstream.to_string())
            .replace("@LIMIT@", limit)
    }
}

fn written(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    file
}

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}
