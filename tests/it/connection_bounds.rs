//! Connections that the proxy ends: after a while of use (`connection_requests`, `connection_age`), and
//! in place of a response (`respond = { status = 444 }`).

use std::net::SocketAddr;

use crate::backend::{Backend, Manners};
use crate::house::{Client, Tidegate, Upstream};
use crate::http2::raw::{GOAWAY, HEADERS, REQUEST, RST_STREAM, Raw};
use crate::probe::eventually;
use crate::support::free_port;

const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";

fn start(url: &str, server: &str, upstream: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[server]\nworkers = 1\n{server}\n[upstream.app]\nservers = [\"{url}\"]\n{upstream}\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = []\n"
    ))
}

#[test]
fn a_client_gets_so_many_answers_on_one_connection() {
    let upstream = Upstream::ok();
    let proxy = start(&upstream.url(), "connection_requests = 3", "");
    let mut client = proxy.connect();
    for last in [false, false, true] {
        let answer = client.ask(GET);
        assert_eq!(answer.status, 200);
        let closes = answer.header("connection").as_deref() == Some("close");
        assert_eq!(closes, last);
    }
    assert!(client.is_closed());
    assert_eq!(proxy.get("/a").status, 200, "another connection is served");
}

#[test]
fn a_client_of_http_2_is_told_that_its_connection_ends() {
    let upstream = Upstream::ok();
    let proxy = start(&upstream.url(), "connection_requests = 2", "");
    let mut client = Raw::to(proxy.address, &[]);
    assert!(client.ask(1, &REQUEST));
    assert!(client.ask(3, &REQUEST));
    let goodbye = client.until(&[GOAWAY]).unwrap();
    assert_eq!(goodbye.error(), 0);
    assert_eq!(client.goodbye(), Some(0), "then it is closed");
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn an_old_connection_of_a_client_ends_after_a_request() {
    let upstream = Upstream::ok();
    let proxy = start(&upstream.url(), "connection_age = \"1ms\"", "");
    let mut client = proxy.connect();
    let mut closes = || client.ask(GET).header("connection").as_deref() == Some("close");
    eventually("the connection is old", &mut closes);
    assert!(client.is_closed());
}

#[test]
fn a_server_gets_so_many_requests_on_one_connection() {
    let upstream = Upstream::ok();
    let proxy = start(&upstream.url(), "", "connection_requests = 2");
    // The start tries each server.
    eventually("the start has tried it", || upstream.connections() > 0);
    let before = upstream.connections();
    let mut client = proxy.connect();
    for _ in 0..6 {
        assert_eq!(client.ask(GET).status, 200);
    }
    assert_eq!(upstream.connections() - before, 3);
}

#[test]
fn so_does_a_server_of_http_2() {
    let backend = Backend::h2c(Manners::default(), |mut call| async move { call.say("a") });
    let proxy = start(&backend.h2c_url(), "", "connection_requests = 2");
    let mut client = proxy.connect();
    for _ in 0..6 {
        assert_eq!(client.ask(GET).status, 200);
    }
    assert_eq!(backend.connections(), 3);
    eventually("used connections are closed", || backend.open() <= 1);
}

#[test]
fn a_route_can_close_the_connection_in_place_of_a_response() {
    let proxy = Tidegate::start(
        "[[route]]\npath = \"/closed\"\nlimits = []\nrespond = { status = 444 }\n\
         [[route]]\npath = \"/page\"\nlimits = []\nrespond = { status = 403 }\n\
         [[route]]\npath = \"/*\"\nlimits = []\nrespond = { body = \"a\" }\n\
         [error_page.none]\nstatus = \"403\"\nanswer = 444\nbody = \"\"\n\
         [error_page.all]\nstatus = \"4xx\"\nbody = \"never\"\n\
         [log]\naccess = \"stdout\"\nsample_allowed = 1.0\n",
    );
    for path in ["/closed", "/page"] {
        let mut client = proxy.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        assert_eq!(client.rest(), b"", "{path}");
    }
    eventually("it is logged", || proxy.stdout().contains("444"));
    let mut client = Raw::to(proxy.address, &[]);
    let mut closed = REQUEST;
    for line in &mut closed {
        if line.0 == ":path" {
            line.1 = "/closed";
        }
    }
    assert!(client.ask(1, &closed));
    let reset = client.until(&[HEADERS, RST_STREAM, GOAWAY]).unwrap();
    assert_eq!((reset.kind, reset.stream), (RST_STREAM, 1));
    // The other streams of the connection go on.
    assert!(client.ask(3, &REQUEST));
    let head = client.until(&[HEADERS, RST_STREAM, GOAWAY]).unwrap();
    assert_eq!((head.kind, head.stream), (HEADERS, 3));
}

#[test]
fn a_socket_without_clients_takes_no_place_of_others() {
    let (upstream, admin) = (Upstream::ok(), free_port());
    let proxy = Tidegate::start(&format!(
        "admin = \"127.0.0.1:{admin}\"\nupstream = \"{}\"\n[limit.default]\nrate = \"1000/s\"\n\
         [server]\nworkers = 2\nmax_connections = 1\n",
        upstream.url()
    ));
    let address = SocketAddr::from(([127, 0, 0, 1], admin));
    let connections = || {
        let mut client = Client::to(address);
        let text = client
            .ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("tidegate_connections "));
        line.map(str::to_owned)
    };
    eventually("none is counted", || connections().as_deref() == Some("0"));
    // The kernel spreads them over the sockets of both workers.
    for _ in 0..16 {
        assert_eq!(proxy.get("/").status, 200);
    }
}

#[test]
fn a_client_that_waits_for_a_place_is_served_when_its_socket_closes() {
    let upstream = Upstream::ok();
    let mut proxy = start(&upstream.url(), "max_connections = 1", "");
    let mut held = proxy.connect();
    assert_eq!(held.ask(GET).status, 200);
    let mut waiting = proxy.connect();
    waiting.send(GET);
    proxy.signal("TERM");
    assert_eq!(waiting.answer().status, 200);
    drop(held);
    assert!(proxy.wait().success());
}
