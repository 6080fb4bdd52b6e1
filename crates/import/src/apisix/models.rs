//! The model servers of a route: `ai-proxy` and `ai-proxy-multi`.

use super::plugins::RoutePlugins;
use super::{ApisixFile, ApisixRoute};
use crate::draft::{RouteDraft, ServerDraft, UpstreamDraft};
use crate::providers::{self, OPENAI, ProviderUrl};
use crate::tree::TreeItem;
use crate::values::{TomlEntries, quote};

/// A server of a route's models.
pub(super) struct Instance {
    /// `None` for the only one of `ai-proxy`.
    pub(super) name: Option<String>,
    provider: &'static str,
    server: ProviderUrl,
    weight: Option<u64>,
}

/// What the calls of a route go to.
pub(super) struct ApisixModel<'d> {
    config: &'d TreeItem,
    pub(super) instances: Vec<Instance>,
    pub(super) format: &'static str,
}

/// Reads the plugin of a route, if it has one. The error says why the route is closed.
pub(super) fn read<'d>(
    route: &ApisixRoute<'d>,
    plugins: &RoutePlugins<'d>,
) -> Result<Option<ApisixModel<'d>>, String> {
    let Some(config) = plugins.proxy else {
        return Ok(None);
    };
    let known = "provider auth options override provider_conf instances balancer logging \
                 logging_summaries timeout keepalive keepalive_pool keepalive_timeout ssl_verify \
                 fallback_strategy max_req_body_size name priority weight";
    config.note_unknown("ai-proxy.", known);
    // Clients of this path speak Anthropic's format, all others that of OpenAI.
    let uris = route.texts("uri", "uris");
    let is_messages = !uris.is_empty() && uris.iter().all(|uri| uri.ends_with("/v1/messages"));
    let format = if is_messages { "anthropic" } else { OPENAI };
    let items: Vec<&TreeItem> = match config.list_at("instances") {
        [] => vec![config],
        list => list.iter().collect(),
    };
    let mut instances = Vec::new();
    for item in items {
        instances.push(read_instance(item, format)?);
        if let Some(auth) = item.get("auth") {
            providers::note_credentials(auth, &format!("{}: ai-proxy.auth", route.what));
        }
        for (key, option) in item.entries_at("options") {
            let why = "bodies of requests are not changed; let clients send it";
            option.lost(&format!("ai-proxy.options.{key}"), why);
        }
    }
    for key in ["balancer", "fallback_strategy"] {
        if let Some(item) = config.get(key) {
            let why = "calls go round-robin by weight, and none goes elsewhere when a budget is \
                       used up";
            item.lost(&format!("ai-proxy-multi.{key}"), why);
        }
    }
    Ok(Some(ApisixModel {
        config,
        instances,
        format,
    }))
}

fn read_instance(item: &TreeItem, format: &'static str) -> Result<Instance, String> {
    let name = item.text_at("provider").unwrap_or_default();
    let provider = providers::find(name).ok_or_else(|| format!("no provider `{name}` is known"))?;
    let path = match (name, format) {
        ("anthropic", "anthropic") => "/v1/messages",
        (_, "anthropic") => {
            return Err(format!("{name} does not speak the format of its clients"));
        }
        ("deepseek" | "aimlapi", _) => "/chat/completions",
        ("openrouter", _) => "/api/v1/chat/completions",
        // These speak OpenAI's format beside their own.
        ("gemini", _) => "/v1beta/openai/chat/completions",
        ("anthropic", _) => "/v1/chat/completions",
        _ if provider.format == Some(OPENAI) => "/v1/chat/completions",
        _ => return Err(format!("{name} does not speak the format of its clients")),
    };
    let endpoint = item.text_at("override.endpoint");
    let url = endpoint
        .or(provider.url)
        .ok_or_else(|| format!("the address of {name} is not in the file"))?;
    let mut server =
        ProviderUrl::parse(url).ok_or_else(|| format!("`{url}` is no URL of a server"))?;
    if server.path.is_empty() {
        path.clone_into(&mut server.path);
    }
    for key in ["llm_options", "request_body"] {
        if let Some(own) = item.at(&format!("override.{key}")) {
            let why = "bodies of requests are not changed";
            own.lost(&format!("ai-proxy.override.{key}"), why);
        }
    }
    Ok(Instance {
        name: item.text_at("name").map(str::to_owned),
        provider: provider.name,
        server,
        weight: item.number_at("weight"),
    })
}

impl<'d> ApisixModel<'d> {
    pub(super) fn add_upstream(&self, file: &mut ApisixFile<'d>) -> String {
        let mut servers: Vec<ServerDraft> = Vec::new();
        for one in &self.instances {
            let mut known = servers.iter_mut();
            match known.find(|known| known.url == one.server.server) {
                Some(known) => {
                    let both = known.weight.unwrap_or(1) + one.weight.unwrap_or(1);
                    known.weight = Some(both);
                }
                None => servers.push(ServerDraft {
                    weight: one.weight,
                    ..one.server.server_draft()
                }),
            }
        }
        let mut entries = TomlEntries::default();
        if servers.len() > 1 {
            entries.add("balance", quote("round-robin"));
        }
        entries.add("host", quote("rewrite"));
        let name = self.instances.first().map_or("model", |one| one.provider);
        file.draft.add_upstream(UpstreamDraft {
            name: name.to_owned(),
            servers,
            entries,
            place: self.config.place(),
        })
    }

    /// Sets the path that the server sees.
    pub(super) fn set_path(&self, what: &str, route: &mut RouteDraft) {
        let mut paths = self.instances.iter().map(|one| one.server.path.as_str());
        let first = paths.next().unwrap_or_default();
        if paths.any(|path| path != first) {
            let why = "its servers have different paths; it is closed";
            self.config.lost(what, why);
            route.target = crate::draft::TargetDraft::Closed(why.to_owned());
            return;
        }
        providers::replace_path(route, first, what, self.config);
    }
}
