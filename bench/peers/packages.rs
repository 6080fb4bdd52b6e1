//! What is installed, in which version, and what is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::peer::{ALL, Peer};
use crate::stage;

/// Where Debian keeps programs, beside what `PATH` says.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Where nginx's modules are.
const MODULES: [&str; 2] = ["/usr/lib/nginx/modules", "/usr/share/nginx/modules"];
const LUA_REDIS: &str = "/usr/share/lua/5.1/nginx/redis.lua";

/// What was found.
#[derive(Clone, Debug)]
pub struct Packages {
    pub nginx: Option<PathBuf>,
    /// The folder with nginx's Lua module, if the driver for Redis is there as well.
    pub lua: Option<PathBuf>,
    pub haproxy: Option<PathBuf>,
    pub redis: Option<PathBuf>,
    pub wrk: Option<PathBuf>,
    /// What would have to be installed for what is not there.
    pub missing: Vec<&'static str>,
}

impl Packages {
    pub fn look() -> Packages {
        let mut missing = Vec::new();
        let mut want = |found: Option<PathBuf>, package| {
            if found.is_none() {
                missing.push(package);
            }
            found
        };
        let nginx = want(program("nginx"), "nginx");
        let module = MODULES.iter().map(Path::new);
        let module = module
            .filter(|folder| folder.join("ngx_http_lua_module.so").exists())
            .map(Path::to_owned)
            .next();
        let module = want(module, "libnginx-mod-http-lua");
        let driver = Some(PathBuf::from(LUA_REDIS)).filter(|path| path.exists());
        let driver = want(driver, "lua-nginx-redis");
        Packages {
            nginx,
            lua: module.filter(|_| driver.is_some()),
            haproxy: want(program("haproxy"), "haproxy"),
            redis: want(program("redis-server"), "redis-server"),
            wrk: want(program("wrk"), "wrk"),
            missing,
        }
    }

    /// Those that can be compared.
    pub fn peers(&self) -> Vec<Peer> {
        let there = |peer: &Peer| match peer {
            Peer::Tidegate | Peer::TidegateEmbedded => true,
            Peer::TidegateRedis => self.redis.is_some(),
            Peer::Nginx | Peer::NginxLimit => self.nginx.is_some(),
            Peer::NginxLua => self.nginx.is_some() && self.lua.is_some() && self.redis.is_some(),
            Peer::Haproxy | Peer::HaproxyTable => self.haproxy.is_some(),
        };
        ALL.into_iter().filter(there).collect()
    }

    /// What to do about what is missing; nothing if all is there.
    pub fn advice(&self) -> Option<String> {
        let names = self.missing.join(" ");
        (!names.is_empty()).then(|| format!("missing: {names}\n  sudo apt-get install {names}"))
    }

    /// Names and versions of all that ran.
    pub fn versions(&self) -> Vec<(&'static str, String)> {
        let ours = Some(stage::tidegate());
        let said = [
            ("tidegate", &ours, "--version"),
            ("nginx", &self.nginx, "-v"),
            ("HAProxy", &self.haproxy, "-v"),
            ("Redis", &self.redis, "--version"),
            ("wrk", &self.wrk, "-v"),
        ];
        let version = |(name, program, flag): (&'static str, &Option<PathBuf>, &str)| {
            let output = Command::new(program.as_ref()?).arg(flag).output().ok()?;
            let all = [output.stdout, output.stderr].concat();
            let number = number(&String::from_utf8_lossy(&all))?;
            Some((name, number))
        };
        said.into_iter().filter_map(version).collect()
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from));
    let mut files = folders.map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// The first thing in a text that looks like a version.
fn number(text: &str) -> Option<String> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'));
    let mut words = text.split(word).flat_map(|word| word.split("v="));
    let version = words.find(|word| {
        let digits = word.starts_with(|c: char| c.is_ascii_digit());
        digits && word.contains('.')
    })?;
    // What Debian adds is of no matter here.
    let end = version.find(['-', '+']).unwrap_or(version.len());
    Some(version[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, expected) in [
            ("nginx version: nginx/1.22.1\n", "1.22.1"),
            (
                "HAProxy version 2.6.12-1+deb12u4 2025/10/01 - https://h\n",
                "2.6.12",
            ),
            (
                "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc",
                "7.0.15",
            ),
            ("wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012", "4.1.0"),
            ("tidegate 0.1.0", "0.1.0"),
        ] {
            assert_eq!(number(said).as_deref(), Some(expected), "{said}");
        }
    }
}
