//! Limits that a program makes instead of reading them from a file.
//!
//! What a program does not set is as a file without that setting has it.

use std::sync::Arc;

use ipnet::IpNet;

use super::{Limits, StoreKind, load, redis};
use crate::limit::{Key, Limit, OnError, Rule};
use crate::route::{PathPattern, Route, RouteTable};

/// The file whose settings hold for all that a program does not set.
const BASE: &str = "[limit.default]\nrate = \"1/s\"\n";

/// Limits on their way, in their order.
#[derive(Clone, Debug)]
pub struct LimitsBuilder {
    pub limits: Vec<BuiltLimit>,
    store: StoreKind,
    trusted: Vec<IpNet>,
}

/// One limit on its way.
#[derive(Clone, Debug)]
pub struct BuiltLimit {
    pub name: String,
    /// All of them hold; at least one.
    pub rules: Vec<Rule>,
    pub key: Key,
    pub on_error: OnError,
    pub shadow: bool,
    /// `None` for every path.
    pub path: Option<PathPattern>,
}

impl BuiltLimit {
    /// By the client's address, for every path.
    pub fn new(name: &str, rule: Rule) -> BuiltLimit {
        BuiltLimit {
            name: name.to_owned(),
            rules: vec![rule],
            key: Key::ip(),
            on_error: OnError::Local,
            shadow: false,
            path: None,
        }
    }

    fn limit(self, number: usize) -> Arc<Limit> {
        Arc::new(Limit {
            number,
            on_error: self.on_error,
            shadow: self.shadow,
            ..Limit::new(&self.name, &self.rules, self.key)
        })
    }
}

impl Default for LimitsBuilder {
    fn default() -> LimitsBuilder {
        LimitsBuilder {
            limits: Vec::new(),
            store: StoreKind::Memory,
            trusted: Vec::new(),
        }
    }
}

impl LimitsBuilder {
    /// Counts in the store at this URL.
    ///
    /// # Errors
    /// What is wrong with the URL, without the URL: it may have a password in it.
    pub fn store(&mut self, url: &str) -> Result<(), &'static str> {
        self.store = match redis::parse_url(url)? {
            Some(settings) => StoreKind::Redis(settings),
            None => StoreKind::Memory,
        };
        Ok(())
    }

    /// Believes peers in this network when they say whom they speak for.
    pub fn trust(&mut self, network: IpNet) {
        self.trusted.push(network);
    }

    /// # Errors
    /// Every mistake, a line each.
    pub fn build(self) -> Result<Limits, String> {
        let mistakes = self.mistakes();
        if !mistakes.is_empty() {
            return Err(mistakes.join("\n"));
        }
        let base = load::parse_limits("limits", BASE, &|_| None);
        let (Limits(mut config), _) = base.map_err(|mistakes| mistakes.to_string())?;
        let mut paths: Vec<Option<PathPattern>> = vec![None];
        for limit in &self.limits {
            if !paths.contains(&limit.path) {
                paths.push(limit.path.clone());
            }
        }
        let numbered = self.limits.into_iter().enumerate();
        let limits: Vec<(Option<PathPattern>, Arc<Limit>)> = numbered
            .map(|(number, limit)| (limit.path.clone(), limit.limit(number)))
            .collect();
        let Some(every_path) = config.routes.iter().next().cloned() else {
            return Err("there is no route".to_owned());
        };
        let route = |path: Option<PathPattern>| {
            let holds =
                |limit: &&(Option<PathPattern>, Arc<Limit>)| limit.0.is_none() || limit.0 == path;
            let limits = limits.iter().filter(holds);
            let limits = limits.map(|(_, limit)| Arc::clone(limit)).collect();
            let name = path
                .as_ref()
                .map_or("/*".into(), |path| path.to_string().into());
            Route {
                name,
                path: path.unwrap_or_else(|| every_path.path.clone()),
                limits,
                ..every_path.clone()
            }
        };
        config.routes = RouteTable::new(paths.into_iter().map(route).collect())
            .map_err(|_| "two paths mean the same".to_owned())?;
        config.limits = limits.into_iter().map(|(_, limit)| limit).collect();
        config.store.kind = self.store;
        config.client_ip.trusted = self.trusted;
        Ok(Limits(config))
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if self.limits.is_empty() {
            mistakes.push("there is no limit".to_owned());
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let name = &limit.name;
            let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
            if !(1..=64).contains(&name.len()) || !name.bytes().all(fits) {
                mistakes.push(format!(
                    "limit `{name}`: a name is 1 to 64 of a-z, 0-9, `_` and `-`"
                ));
            }
            if self.limits[..index].iter().any(|other| other.name == *name) {
                mistakes.push(format!("limit `{name}` is there twice"));
            }
        }
        mistakes
    }
}
