//! `tidegate demo`: the routes and limits of a `proxy.toml`, in front of a built-in echo server,
//! with the embedded store. Nothing to install, nothing to configure first. Nobody else listens
//! there: of two proxies that share a port each would count a part of the requests.

use std::path::Path;

use super::run::{Start, accept, say, serve};
use super::{DID_NOT_WORK, DemoArgs};
use crate::config::{self, ServerAddress, StoreKind};
use crate::server::echo;

/// What is shown where there is no file: the quick start's own.
const BUILT_IN: &str = include_str!("../../proxy.toml");

/// Runs until stopped. Returns the exit code.
pub(super) fn demo(args: &DemoArgs) -> u8 {
    let file = args.config.as_deref().unwrap_or(Path::new("proxy.toml"));
    let has_file = args.config.is_some() || file.exists();
    let loaded = if has_file {
        config::load(file)
    } else {
        config::parse("proxy.toml", BUILT_IN, &|_| None)
    };
    let mut config = match accept(loaded) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let upstream = match echo::start() {
        Ok(upstream) => upstream,
        Err(error) => {
            say(&format!("tidegate: cannot start the echo server: {error}"));
            return DID_NOT_WORK;
        }
    };
    config.store.kind = StoreKind::Memory;
    for settings in &mut config.upstreams {
        let server = ServerAddress::Http(upstream.ip().to_string(), upstream.port());
        settings.servers = vec![server.into()];
    }
    let start = Start {
        path: None,
        watch: false,
        alongside: false,
        alone: Some(match has_file {
            true => format!("end it, or change `listen` in {}", file.display()),
            false => {
                "end it, or have `tidegate init` write a proxy.toml, and change `listen` there"
                    .to_owned()
            }
        }),
    };
    serve(config, start, |address| {
        let port = address.port();
        say("");
        say("Try it, until it says 429:");
        say("");
        say(&format!(
            "    for i in $(seq 12); do curl -i http://localhost:{port}/; done"
        ));
        say("");
        say("Then change a rate in proxy.toml, and start again. Ctrl-C stops.");
        say("");
    })
}
