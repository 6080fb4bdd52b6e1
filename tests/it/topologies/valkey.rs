//! The store's own tests and a proxy's, against Valkey instead of Redis.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::RedisServer;

/// `valkey-server` as it is installed, or as `tests/install.sh` has put it.
fn valkey_server() -> PathBuf {
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|folder| folder.join("valkey-server"))
            .find(|program| program.is_file())
    });
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(target)
        .join("tools/valkey-server");
    let program = found.unwrap_or(ours);
    assert!(program.is_file(), "no valkey-server: run tests/install.sh");
    program
}

/// Runs tests of this program against Valkey, and gives how many there were.
fn against_valkey(filters: &[&str]) -> usize {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(filters)
        .env("TIDEGATE_TEST_SERVER", valkey_server())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}");
    let passed = said.split("test result: ok. ").nth(1);
    let count = passed.and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn valkey_is_what_is_tested() {
    let server = RedisServer::start_program(valkey_server(), &[]);
    let redis::Value::BulkString(info) = server.run("INFO server") else {
        panic!("no answer")
    };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("server_name:valkey"), "{info}");
}

#[test]
fn the_store_passes_its_tests_on_valkey() {
    // Floods are tests of the embedded store.
    assert!(against_valkey(&["store::", "--skip", "store::floods"]) >= 30);
}

#[test]
fn a_proxy_decides_on_valkey_as_the_model_does() {
    let tests = ["audit::redis_decides", "topologies::one_server"];
    assert_eq!(against_valkey(&tests), 2);
}
