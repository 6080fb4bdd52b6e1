//! An upstream behind TLS that shows another certificate from one moment on, and counts who asks it
//! something although what it shows is false.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

use crate::house::find;
use crate::tls::stage::Authority;

/// What it may show: by whom it is signed, for which host, and until when.
const GUISES: [(&str, &str, &str, i32); 4] = [
    (GOOD, "ca", "localhost", 2999),
    ("expired", "ca", "localhost", 2020),
    ("other", "ca", "other.test", 2999),
    ("stranger", "stranger", "localhost", 2999),
];
pub const GOOD: &str = "good";

pub struct Guise {
    pub port: u16,
    folder: TempDir,
    all: HashMap<&'static str, Arc<ServerConfig>>,
    state: Arc<Mutex<State>>,
}

struct State {
    shown: (&'static str, Arc<ServerConfig>),
    /// Every connection, by a number of its own.
    open: HashMap<u64, TcpStream>,
    /// Requests that came although what was shown is false.
    misled: usize,
}

impl Guise {
    pub fn start() -> Guise {
        let folder = tempfile::tempdir().unwrap();
        let (ca, stranger) = (
            Authority::new(folder.path(), "ca"),
            Authority::new(folder.path(), "stranger"),
        );
        let made = GUISES.map(|(name, by, host, end)| {
            let by = if by == "ca" { &ca } else { &stranger };
            (name, settings(&by.sign(name, &[host], end)))
        });
        let all = HashMap::from(made);
        let state = Arc::new(Mutex::new(State {
            shown: (GOOD, Arc::clone(&all[GOOD])),
            open: HashMap::new(),
            misled: 0,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, &serving));
        Guise {
            port,
            folder,
            all,
            state,
        }
    }

    /// Whom its visitors should believe.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Shows this one, and ends every connection: kept ones would go on under the former.
    pub fn show(&self, name: &'static str) {
        let mut state = self.state.lock().unwrap();
        state.shown = (name, Arc::clone(&self.all[name]));
        for stream in state.open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn misled(&self) -> usize {
        self.state.lock().unwrap().misled
    }
}

fn settings((pem, key): &(String, String)) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key);
    Arc::new(config.unwrap())
}

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>) {
    for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
        let Ok(other) = stream.try_clone() else {
            continue;
        };
        // What it shows, and that it is among the open ones, is one moment.
        let (name, config) = {
            let mut state = state.lock().unwrap();
            state.open.insert(number, other);
            state.shown.clone()
        };
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            serve(stream, config, || {
                if name != GOOD {
                    state.lock().unwrap().misled += 1;
                }
            });
            state.lock().unwrap().open.remove(&number);
        });
    }
}

/// Answers requests without content until the connection ends.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, asked: impl Fn()) {
    let _ = stream.set_nodelay(true);
    let secure = ServerConnection::new(config).unwrap();
    let mut stream = StreamOwned::new(secure, stream);
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        read.extend_from_slice(&piece[..count]);
        while let Some(end) = find(&read, b"\r\n\r\n") {
            read.drain(..end + 4);
            asked();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}
