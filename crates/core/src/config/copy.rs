//! Copies that share nothing: each worker has its own, so that no two cores write to the same
//! reference counts.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;

use super::{Bypass, Config, UpstreamSettings};
use crate::limit::tier::Tiers;
use crate::limit::{Limit, Tier, Window};
use crate::route::{HeaderChange, Prefix, Route, RouteTable};

impl Config {
    /// The same configuration with limits, routes and names of its own.
    pub fn fresh_copy(&self) -> Config {
        let limits: Vec<Arc<Limit>> = self.limits.iter().map(|limit| own_limit(limit)).collect();
        let by_name: HashMap<&str, &Arc<Limit>> =
            limits.iter().map(|limit| (&*limit.name, limit)).collect();
        let own_route = |route: &Route| Route {
            name: Arc::from(&*route.name),
            limits: route
                .limits
                .iter()
                .map(|limit| Arc::clone(by_name[&*limit.name]))
                .collect(),
            strip_prefix: route.strip_prefix.as_ref().map(Prefix::own),
            add_prefix: route.add_prefix.as_ref().map(Prefix::own),
            headers_up: route.headers_up.iter().map(HeaderChange::own).collect(),
            headers_down: route.headers_down.iter().map(HeaderChange::own).collect(),
            target: route.target.own(),
            ..route.clone()
        };
        let routes = RouteTable::new(self.routes.iter().map(own_route).collect())
            .expect("routes without conflicts have none when they are copied");
        Config {
            listen: self.listen.clone(),
            tls: self.tls.clone(),
            admin: self.admin.clone(),
            store: self.store.clone(),
            client_ip: self.client_ip.clone(),
            // The list of known keys may be long, and no request counts references to it: it stays
            // one.
            api_key: self.api_key.clone(),
            jwt: self.jwt.clone(),
            tier: self.tier.as_ref().map(own_tiers),
            routes,
            bypass: self.bypass.iter().map(Bypass::clone).collect(),
            upstreams: self.upstreams.iter().map(own_upstream).collect(),
            headers: self.headers,
            request_id: self.request_id.as_ref().and_then(own_name),
            deny: self.deny.clone(),
            server: self.server.clone(),
            log: self.log.clone(),
            tracing: self.tracing.clone(),
            written: Arc::clone(&self.written),
            limits,
        }
    }
}

fn own_name(name: &HeaderName) -> Option<HeaderName> {
    HeaderName::from_bytes(name.as_str().as_bytes()).ok()
}

fn own_limit(limit: &Limit) -> Arc<Limit> {
    let own_tier = |tier: &Tier| Tier {
        name: Arc::from(&*tier.name),
        windows: own_windows(&tier.windows),
    };
    Arc::new(Limit {
        name: Arc::from(&*limit.name),
        windows: own_windows(&limit.windows),
        tiers: limit.tiers.iter().map(own_tier).collect(),
        candidate: own_windows(&limit.candidate),
        slot: limit.slot.as_ref().map(|slot| Arc::from(&**slot)),
        ..limit.clone()
    })
}

fn own_tiers(tiers: &Tiers) -> Tiers {
    Tiers {
        from: tiers.from.clone(),
        by_key: tiers.by_key,
        default: tiers.default.as_ref().map(|name| Arc::from(&**name)),
    }
}

fn own_windows(windows: &[Arc<Window>]) -> Vec<Arc<Window>> {
    let own = |window: &Arc<Window>| Arc::new(window.own());
    windows.iter().map(own).collect()
}

fn own_upstream(upstream: &UpstreamSettings) -> UpstreamSettings {
    UpstreamSettings {
        name: Arc::from(&*upstream.name),
        ..upstream.clone()
    }
}
