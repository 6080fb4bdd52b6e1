//! The proxy as a tower service: the same path, without a client's socket.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate::body::RequestBody;
use tidegate::clock::Sweep;
use tidegate::config::parse;
use tidegate::proxy::Client;
use tidegate::proxy::Proxy;
use tidegate::proxy::limiter::StoreHandle;
use tidegate::telemetry::access::AccessLog;
use tidegate::upstream::Vitals;
use tower::ServiceExt;

use crate::house::Upstream;
use crate::support::on_a_worker;

/// A proxy of this configuration.
fn proxy_of(text: &str) -> Arc<Proxy> {
    let (config, _) = parse("proxy.toml", text, &|_| None).unwrap();
    let store = StoreHandle::new(&config).unwrap().open();
    let log = AccessLog::off();
    let log = Arc::new(log).buffer();
    let proxy = Proxy::new(config, store, &Sweep::new(), &Vitals::default(), &log, None);
    Arc::new(proxy)
}

#[test]
fn a_service_limits_each_client_as_the_server_does() {
    let upstream = Upstream::ok();
    let text = format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"2/h\"\n",
        upstream.url()
    );
    on_a_worker(async {
        let proxy = proxy_of(&text);
        let ask = async |ip: [u8; 4]| {
            let request = http::Request::get("/")
                .header("host", "test")
                .body(RequestBody::empty())
                .unwrap();
            let client = Client::new(Arc::clone(&proxy), IpAddr::from(ip));
            client.oneshot(request).await.unwrap().status().as_u16()
        };
        for status in [200, 200, 429] {
            assert_eq!(ask([192, 0, 2, 1]).await, status);
        }
        assert_eq!(ask([192, 0, 2, 2]).await, 200);
    });
}

#[test]
fn a_grpc_client_gets_a_status_that_it_understands() {
    let text = r#"
        [[route]]
        path = "/gone"
        upstream = "http://127.0.0.1:1"
        [[route]]
        path = "/keyed"
        limits = ["keyed"]
        respond = {}
        [limit.keyed]
        rate = "1/h"
        key = "header:x-key"
        missing = "deny"
    "#;
    on_a_worker(async {
        let proxy = proxy_of(text);
        let ask = async |path: &str, version: http::Version, media: &str| {
            let request = http::Request::post(format!("http://test{path}"))
                .version(version)
                .header("content-type", media)
                .header("host", "test")
                .body(RequestBody::empty())
                .unwrap();
            let client = Client::new(Arc::clone(&proxy), IpAddr::from([192, 0, 2, 1]));
            let answer = client.oneshot(request).await.unwrap();
            let code = answer.headers().get("grpc-status");
            let code = code.map(|code| code.to_str().unwrap().to_owned());
            (answer.status().as_u16(), code)
        };
        let (grpc, http2) = ("application/grpc+proto", http::Version::HTTP_2);
        for (path, code) in [
            ("/gone", "14"),
            ("/nowhere", "12"),
            ("/keyed", "3"),
            ("/%zz", "3"),
        ] {
            let found = ask(path, http2, grpc).await;
            assert_eq!(found, (200, Some(code.to_owned())), "{path}");
        }
        assert_eq!(ask("/gone", http2, "application/json").await, (502, None));
        assert_eq!(
            ask("/gone", http::Version::HTTP_11, grpc).await,
            (502, None)
        );
    });
}
