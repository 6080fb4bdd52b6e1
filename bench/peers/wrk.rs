//! Load by wrk: each connection asks again as soon as it is answered. And one more client beside
//! it, that looks at what is answered: wrk counts only what is not 2xx.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::scenario::{CLIENTS, Closed};

/// The script that makes its requests; it has to be in a file.
pub const CLIENTS_LUA: &str = include_str!("conf/clients.lua");
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What wrk says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    pub requests: u64,
    pub seconds: f64,
    /// Statuses of 400 and more.
    pub refused: u64,
    /// Connections that broke, and answers that did not come.
    pub broken: u64,
    pub bytes: f64,
}

/// The command.
pub fn command(
    (program, script): (&Path, &Path),
    address: SocketAddr,
    load: Closed,
    seconds: u64,
) -> Command {
    let mut command = Command::new(program);
    command
        .args(["-t1", "--timeout", "10s"])
        .arg(format!("-c{}", load.connections))
        .arg(format!("-d{seconds}s"))
        .arg("-s")
        .arg(script)
        .arg(format!("http://{address}/"))
        .arg("--")
        // Each is kept ready: bodies of all of them would not fit into the caches.
        .arg(if load.body > 0 { 64 } else { CLIENTS }.to_string())
        .arg(load.path)
        .arg(load.body.to_string())
        .arg(if load.varied { "varied" } else { "same" });
    command
}

/// Reads what it printed.
pub fn read(printed: &str) -> Option<Said> {
    let mut said = Said::default();
    for line in printed.lines() {
        let line = line.trim();
        if let Some((requests, rest)) = line.split_once(" requests in ") {
            let (took, read) = rest.split_once(", ")?;
            said.requests = requests.parse().ok()?;
            said.seconds = seconds(took)?;
            said.bytes = bytes(read.strip_suffix(" read")?)?;
        } else if let Some(errors) = line.strip_prefix("Socket errors: ") {
            let words = errors.split([' ', ',']);
            said.broken = words.filter_map(|word| word.parse::<u64>().ok()).sum();
        } else if let Some(refused) = line.strip_prefix("Non-2xx or 3xx responses: ") {
            said.refused = refused.parse().ok()?;
        }
    }
    (said.requests > 0).then_some(said)
}

fn seconds(text: &str) -> Option<f64> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("s", 1.0)];
    let number = |(unit, worth)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * worth);
    units.into_iter().find_map(number)
}

fn bytes(text: &str) -> Option<f64> {
    let units = [("GB", 30), ("MB", 20), ("KB", 10), ("B", 0)];
    let number = |(unit, power)| {
        let number = text.strip_suffix(unit)?.parse::<f64>().ok()?;
        Some(number * f64::from(1 << power))
    };
    units.into_iter().find_map(number)
}

/// Runs something, and asks this proxy from time to time meanwhile; the statuses that came.
pub fn watched<T>(address: SocketAddr, path: &str, run: impl FnOnce() -> T) -> (T, Vec<u16>) {
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let mut statuses = Vec::new();
            while is_over.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let client = 1 + statuses.len() % CLIENTS;
                statuses.push(status(address, path, client).unwrap_or(0));
            }
            statuses
        });
        let result = run();
        drop(over);
        (result, looks.join().unwrap())
    })
}

/// What one request gets.
pub fn status(address: SocketAddr, path: &str, client: usize) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nX-Client: c{client}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    // Also to its end, so that nobody is left with a broken connection.
    stream.read_to_end(&mut answer)?;
    let status = answer
        .get(9..12)
        .and_then(|code| std::str::from_utf8(code).ok());
    Ok(status.and_then(|code| code.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_understood() {
        let printed = "\
Running 3s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.12ms  340.33us   9.72ms   88.19%
    Req/Sec    57.31k     2.68k   61.15k    70.00%
  171037 requests in 3.00s, 40.95MB read
  Socket errors: connect 0, read 3, write 0, timeout 2
  Non-2xx or 3xx responses: 170037
Requests/sec:  56982.45
Transfer/sec:     13.64MB
";
        let expected = Said {
            requests: 171_037,
            seconds: 3.0,
            refused: 170_037,
            broken: 5,
            bytes: 40.95 * 1024.0 * 1024.0,
        };
        assert_eq!(read(printed), Some(expected));
        assert_eq!(read("unable to connect to 127.0.0.1:1"), None);
        assert_eq!(seconds("980.50ms"), Some(0.9805));
        assert_eq!(seconds("1.50m"), Some(90.0));
        assert_eq!(bytes("512.00B"), Some(512.0));
    }
}
