//! The proxy as a tower service: the same path, without a client's socket.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate::clock::{Micros, Sweep};
use tidegate::config::{LogFormat, LogTarget, parse};
use tidegate::proxy::Proxy;
use tidegate::proxy::service::Client;
use tidegate::store::Backing;
use tidegate::store::fleet::Fleet;
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;
use tidegate::telemetry::access::AccessLog;
use tidegate::upstream::body::RequestBody;
use tower::ServiceExt;

use crate::house::Upstream;
use crate::support::on_a_worker;

#[test]
fn a_service_limits_each_client_as_the_server_does() {
    let upstream = Upstream::ok();
    let text = format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"2/h\"\n",
        upstream.url()
    );
    on_a_worker(async {
        let (config, _) = parse("proxy.toml", &text, &|_| None).unwrap();
        let store = Backing::new(&config.store, None).unwrap().open();
        let keys = KeyRing::new(&config.store).unwrap();
        let fleet = Arc::new(Fleet::of(1));
        let local = Memory::local(&config.store, keys, Micros::monotonic(), (None, fleet));
        let log = AccessLog::open(&LogTarget::Off, LogFormat::Json, 0.0).unwrap();
        let log = Arc::new(log).buffer();
        let stores = (store, Arc::new(local));
        let proxy = Arc::new(Proxy::new(config, stores, &Sweep::new(), &log));
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
