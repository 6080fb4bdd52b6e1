//! What faults are done to: a proxy with everything around it that can fail.

use std::any::Any;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustls::ClientConfig;

use super::guise::{GOOD, Guise};
use super::load::Way;
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;
use crate::recovery::backend::Backend;
use crate::support::RedisServer;
use crate::tls::stage::{Stage, connect};

/// Units of the tight limit, for a day: whatever is done, nobody gets more.
pub const TIGHT: usize = 40;

/// Two limits, and the routes that they are for.
const RULES: &str = "[limit.wide]\nrate = \"100_000_000/day\"\nkey = \"header:x-key\"\n\
    [limit.tight]\nrate = \"40/day\"\nkey = \"header:x-key\"\n\
    [[route]]\npath = \"/tight\"\nlimits = [\"tight\"]\nupstream = \"api\"\n\
    [[route]]\npath = \"/*\"\nlimits = [\"wide\"]\nupstream = \"api\"\n\
    [[route]]\npath = \"/dead\"\nlimits = [\"wide\"]\nupstream = \"dead\"\n\
    [upstream.dead]\nservers = [\"http://127.0.0.1:9\"]\n";

pub struct Scene {
    pub proxy: Tidegate,
    pub way: Way,
    pub redis: Option<RedisServer>,
    pub backends: Vec<Backend>,
    pub held: Vec<Box<dyn Any>>,
    /// Who is attacked in its place.
    pub aside: Option<Box<Scene>>,
    stop: Arc<AtomicBool>,
    attackers: Vec<JoinHandle<()>>,
}

impl Scene {
    fn around(proxy: Tidegate, redis: Option<RedisServer>) -> Scene {
        let way = Way::Plain(proxy.address);
        Scene {
            proxy,
            way,
            redis,
            backends: Vec::new(),
            held: Vec::new(),
            aside: None,
            stop: Arc::default(),
            attackers: Vec::new(),
        }
    }

    /// Before an upstream that is well, counting by itself. `top` stands before all sections.
    pub fn plain(top: &str, server: &str) -> Scene {
        let upstream = upstream();
        let proxy = Tidegate::start(&file(
            top,
            server,
            &format!("servers = [{:?}]", upstream.url()),
        ));
        let mut scene = Scene::around(proxy, None);
        scene.held.push(Box::new(upstream));
        scene
    }

    pub fn usual() -> Scene {
        Scene::plain("", "")
    }

    /// Before so many servers in processes of their own.
    pub fn before(servers: usize, api: &str) -> Scene {
        let backends: Vec<Backend> = (0..servers).map(|_| Backend::start("ok")).collect();
        let urls: Vec<String> = backends.iter().map(Backend::url).collect();
        let api = format!("servers = {urls:?}\n{api}");
        let mut scene = Scene::around(Tidegate::start(&file("", "", &api)), None);
        scene.backends = backends;
        scene
    }

    /// Counting in a Redis that keeps what it was told.
    pub fn counting() -> Scene {
        Scene::counting_in(RedisServer::start_with(&["--appendonly", "yes"]))
    }

    pub fn counting_in(redis: RedisServer) -> Scene {
        let upstream = upstream();
        let store = format!(
            "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"50ms\"\n",
            redis.port()
        );
        let api = format!("servers = [{:?}]\n{store}", upstream.url());
        let mut scene = Scene::around(Tidegate::start(&file("", "", &api)), Some(redis));
        scene.held.push(Box::new(upstream));
        scene
    }

    /// Whose clients speak TLS.
    pub fn secure() -> Scene {
        let stage = secured("");
        let config = stage.client(&[&rustls::version::TLS13]);
        Scene::of(stage, config)
    }

    /// Whose clients show certificates, which have to be signed by whoever `clients.pem` says; and
    /// with one whom it does not say, `Stranger`.
    pub fn knowing_clients() -> Scene {
        let stage = secured("client_ca = \"clients.pem\"");
        let nobody = stage.client(&[&rustls::version::TLS13]);
        let (ann, eve) = ["ann", "eve"]
            .map(|name| stage.client_as(name, &nobody))
            .into();
        let mut scene = Scene::of(stage, ann);
        scene.held.push(Box::new(Stranger(eve)));
        scene
    }

    fn of(stage: Stage, clients: Arc<ClientConfig>) -> Scene {
        let secure = stage.secure;
        let mut scene = Scene::around(stage.proxy, None);
        scene.way = Way::Tls(secure, clients);
        scene.held.push(Box::new(stage.upstream));
        scene.held.push(Box::new(stage.ca));
        scene
    }

    /// Believes clients whom that authority has signed.
    pub fn believe(&self, authority: &str) {
        let folder = self.proxy.directory.path();
        let from = folder.join(format!("{authority}.pem"));
        std::fs::copy(from, folder.join("clients.pem")).unwrap();
        self.proxy.signal("HUP");
    }

    /// Until the authority of strangers is the one that is believed, by all workers.
    pub fn wait_for_strangers(&self) {
        let Way::Tls(address, _) = &self.way else {
            panic!("its clients speak TLS");
        };
        eventually("strangers are believed", || {
            let mut stream = connect(&self.kept::<Stranger>().0, *address, "one.test");
            let asked = stream.write_all(b"GET /open HTTP/1.1\r\nHost: test\r\nX-Key: e\r\n\r\n");
            asked.is_ok() && matches!(stream.read(&mut [0; 64]), Ok(1..))
        });
    }

    /// Before an upstream that speaks TLS, and shows what it is told to.
    pub fn before_guise() -> Scene {
        let guise = Guise::start();
        let (port, ca) = (guise.port, guise.ca());
        let api = format!(
            "servers = [\"https://localhost:{port}\"]\nhttp2 = false\n\
             tls = {{ ca = {ca:?} }}\n[log]\naccess = \"stdout\"\n"
        );
        let mut scene = Scene::around(Tidegate::start(&file("", "", &api)), None);
        scene.held.push(Box::new(guise));
        scene
    }

    /// Shows the good one again. Nobody has been misled meanwhile, and the log says why.
    pub fn show_good(&self, reason: &str) {
        eventually(reason, || self.proxy.stdout().contains(reason));
        let guise = self.kept::<Guise>();
        guise.show(GOOD);
        assert_eq!(guise.misled(), 0, "{reason}");
    }

    /// With its log on a disk of its own, which is small.
    pub fn logging() -> Scene {
        let upstream = upstream();
        let api = format!(
            "servers = [{:?}]\n[log]\naccess = \"disk/access.log\"\nformat = \"json\"\n\
             sample_allowed = 1.0\n",
            upstream.url()
        );
        let proxy = Tidegate::start_on_small_disk("disk", &file("", "", &api));
        let mut scene = Scene::around(proxy, None);
        scene.held.push(Box::new(upstream));
        scene
    }

    /// Whose upstream is given by name, in this file of hosts.
    pub fn named(hosts: PathBuf, port: u16) -> Scene {
        let api = format!("servers = \"http://app.test:{port}\"\ndns_every = \"1s\"\n");
        let proxy = Tidegate::start_with_hosts(&hosts, &file("", "", &api));
        Scene::around(proxy, None)
    }

    /// A file within what the proxy sees as its own folder.
    pub fn inside(&self, name: &str) -> PathBuf {
        let root = format!("/proc/{}/root", self.proxy.pid());
        let folder = self.proxy.directory.path().canonicalize().unwrap();
        PathBuf::from(format!("{root}{}/{name}", folder.display()))
    }

    /// What is kept for as long as the scene stands.
    pub fn kept<T: 'static>(&self) -> &T {
        let kept = self.held.iter().find_map(|it| it.downcast_ref());
        kept.expect("it is kept")
    }

    /// How many descriptors it may have from now on.
    pub fn bound_descriptors(&self, most: usize) {
        let bound = Command::new("prlimit")
            .args(["--pid", &self.proxy.pid().to_string()])
            .arg(format!("--nofile={most}:"))
            .status();
        assert!(bound.unwrap().success());
    }

    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.proxy.pid());
        std::fs::read_dir(folder).unwrap().count()
    }

    /// Has so many threads do something until the fault ends.
    pub fn attack(&mut self, threads: usize, with: fn(SocketAddr, &AtomicBool)) {
        let attacked = self.aside.as_ref().map_or(&self.proxy, |it| &it.proxy);
        let address = attacked.address;
        for _ in 0..threads {
            let stop = Arc::clone(&self.stop);
            self.attackers
                .push(std::thread::spawn(move || with(address, &stop)));
        }
    }

    pub fn calm(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for attacker in self.attackers.drain(..) {
            attacker.join().unwrap();
        }
    }
}

impl Drop for Scene {
    /// Ends every process that was started in the scene's folder. An upgrade may be under way, and
    /// the pid file then names the old process only.
    fn drop(&mut self) {
        self.calm();
        self.proxy.signal("KILL");
        while let Some(pid) = process_in(self.proxy.directory.path(), self.proxy.pid()) {
            let _ = kill_process(pid, Signal::KILL);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// A process, other than this one, whose working folder this is. One that has ended has none.
fn process_in(folder: &Path, but: u32) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.find(|pid| {
        u32::try_from(*pid) != Ok(but)
            && std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder)
    });
    found.and_then(Pid::from_raw)
}

/// A client whom nobody believes at first.
struct Stranger(Arc<ClientConfig>);

/// A proxy whose clients speak TLS, with our limits.
fn secured(tls: &str) -> Stage {
    // There is one upstream, which no route has to name.
    let (rest, _) = RULES.split_once("[[route]]\npath = \"/dead\"").unwrap();
    Stage::start(tls, &rest.replace("upstream = \"api\"\n", ""))
}

/// `/big` is long; all else is short.
fn upstream() -> Upstream {
    let long = vec![b'x'; 8 << 20];
    Upstream::start(move |seen, stream| {
        let body = if seen.is_for("/big") {
            &long
        } else {
            b"ok".as_slice()
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body).is_ok()
    })
}

fn file(top: &str, server: &str, api: &str) -> String {
    format!(
        "{top}\n[server]\nworkers = 2\npid_file = \"pid\"\n{server}\n[upstream.api]\n{api}\n{RULES}"
    )
}
