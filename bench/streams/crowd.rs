//! Many connections that do little: idle ones between two requests, and slow ones in the middle of
//! a body that they hardly read.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::Plan;
use super::proxies::{Proxy, say};

/// What a slow client has asked for and does not read.
const SLOW_BYTES: u64 = 16 << 20;

/// Opens them, and tells what the proxy has in memory.
pub async fn gather(plan: Plan, proxies: &[Proxy]) {
    say(&format!(
        "\n{} idle connections, then {} slow readers of {} MiB beside them",
        plan.idle,
        plan.slow,
        SLOW_BYTES >> 20
    ));
    say("                 RSS at start, idle, with slow ones (MiB)   KiB/idle   KiB/slow");
    for proxy in proxies {
        let start = proxy.resident_kib();
        let mut idle = Vec::new();
        for index in 0..plan.idle {
            idle.push(served(proxy.plain, index).await);
        }
        let with_idle = proxy.resident_kib();
        let mut slow = Vec::new();
        for index in 0..plan.slow {
            slow.push(slowly(proxy.plain, index).await);
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let with_slow = proxy.resident_kib();
        let mib = |kib: u64| kib as f64 / 1024.0;
        let each = |more: u64, count: usize| more as f64 / count as f64;
        say(&format!(
            "{:<16} {:>8.1} {:>8.1} {:>8.1} {:>26.1} {:>10.1}",
            proxy.name,
            mib(start),
            mib(with_idle),
            mib(with_slow),
            each(with_idle.saturating_sub(start), plan.idle),
            each(with_slow.saturating_sub(with_idle), plan.slow),
        ));
    }
}

/// Loopback has more than one address, and each its own ports.
async fn connect(address: SocketAddr, index: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = SocketAddr::from(([127, 0, 1, (index / 10_000) as u8 + 1], 0));
    socket.bind(from).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// A connection that has had one answer.
async fn served(address: SocketAddr, index: usize) -> TcpStream {
    let mut stream = connect(address, index).await;
    let request = b"GET /bytes/2 HTTP/1.1\r\nhost: bench\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 1024];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    stream
}

/// A connection that asked for much and has read the beginning.
async fn slowly(address: SocketAddr, index: usize) -> TcpStream {
    let mut stream = connect(address, index).await;
    let request = format!("GET /bytes/{SLOW_BYTES} HTTP/1.1\r\nhost: bench\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 1024];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    stream
}
