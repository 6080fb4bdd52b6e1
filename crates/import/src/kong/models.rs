//! The model servers of a route: `ai-proxy` and `ai-proxy-advanced`.

use super::plugins::KongRoutePlugins;
use super::services::DEFAULT_WEIGHT;
use super::{KongFile, KongRoute};
use crate::budgets;
use crate::calls::{PriceDraft, decimal};
use crate::draft::{RouteDraft, ServerDraft, UpstreamDraft};
use crate::providers::{self, OPENAI, Provider, ProviderUrl};
use crate::tree::TreeItem;
use crate::values::{TomlEntries, inline_table, quote};

/// What the calls of a route go to.
pub(super) struct KongModel<'d> {
    /// `config` of the plugin.
    config: &'d TreeItem,
    targets: Vec<&'d TreeItem>,
    pub(super) provider: Provider,
    /// The format that clients speak, and the server too.
    pub(super) format: &'static str,
    servers: Vec<ProviderUrl>,
}

/// Reads the plugin of a route, if it has one. The error says why the route is closed.
pub(super) fn read<'d>(
    route: &KongRoute<'d>,
    plugins: &KongRoutePlugins<'d>,
) -> Result<Option<KongModel<'d>>, String> {
    let Some(config) = plugins.proxy else {
        return Ok(None);
    };
    let known = "targets balancer llm_format max_request_body_size model_name_header \
                 response_streaming genai_category route_type auth logging model embeddings \
                 vectordb";
    config.note_unknown("ai-proxy.", known);
    let targets: Vec<&TreeItem> = match config.list_at("targets") {
        [] => vec![config],
        targets => targets.iter().collect(),
    };
    let mut provider = None;
    let mut servers = Vec::new();
    for target in &targets {
        let name = target.text_at("model.provider").unwrap_or_default();
        let found =
            providers::find(name).ok_or_else(|| format!("no provider `{name}` is known"))?;
        if provider.is_some_and(|one| one != found) {
            return Err(
                "its model servers speak different formats, and tidegate translates none"
                    .to_owned(),
            );
        }
        provider = Some(found);
        let server = server_of(target, found)?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    let provider = provider.ok_or("ai-proxy has no targets")?;
    let format = format_of(config, provider)?;
    if let Some(one) = config.get("balancer") {
        let why = "`balance` of the upstream is like it; here it is round-robin by weight";
        one.differs("ai-proxy.balancer", why);
    }
    for target in &targets {
        if let Some(auth) = target.get("auth") {
            providers::note_credentials(auth, &format!("{}: ai-proxy.auth", route.what));
        }
        note_options(target);
    }
    Ok(Some(KongModel {
        config,
        targets,
        provider,
        format,
        servers,
    }))
}

/// Returns the format that clients and the server speak. Kong translates between two formats.
fn format_of(config: &TreeItem, provider: Provider) -> Result<&'static str, String> {
    let spoken = config.text_at("llm_format").unwrap_or(OPENAI);
    match provider.format {
        Some(format) if format == spoken => Ok(format),
        _ => Err(format!(
            "its clients speak the format `{spoken}` and its server that of {}; tidegate \
             translates none",
            provider.name
        )),
    }
}

fn note_options(target: &TreeItem) {
    let Some(options) = target.at("model.options") else {
        return;
    };
    let own = "upstream_url upstream_path input_cost output_cost";
    for (key, item) in options.entries() {
        if !own.split(' ').any(|one| one == key) {
            let why = "bodies of requests are not changed; let clients send it";
            item.lost(&format!("ai-proxy.model.options.{key}"), why);
        }
    }
    if let Some(name) = target.get("model").and_then(|model| model.get("name")) {
        let why = "the model is the one that the request names; Kong filled it in, or refused \
                   another";
        name.lost("ai-proxy.model.name", why);
    }
}

fn server_of(target: &TreeItem, provider: Provider) -> Result<ProviderUrl, String> {
    let options = "model.options.";
    if let Some(url) = target.text_at(&format!("{options}upstream_url")) {
        return ProviderUrl::parse(url).ok_or_else(|| format!("`{url}` is no URL of a server"));
    }
    if provider.name == "azure" {
        let get = |key: &str| target.text_at(&format!("{options}azure_{key}"));
        let (Some(instance), Some(deployment)) = (get("instance"), get("deployment_id")) else {
            return Err("the address of the azure instance is not in the file".to_owned());
        };
        return Err(format!(
            "`{instance}` of azure takes its version in the query, and no route adds one; send \
             clients to `/openai/deployments/{deployment}/..` themselves"
        ));
    }
    let url = provider
        .url
        .ok_or_else(|| format!("the address of {} is not in the file", provider.name))?;
    let path = match (provider.format, target.text_at("route_type")) {
        (Some(OPENAI), Some("llm/v1/completions")) => "/v1/completions",
        (Some(OPENAI), Some("llm/v1/embeddings")) => "/v1/embeddings",
        (Some(OPENAI), Some("llm/v1/responses")) => "/v1/responses",
        (Some(OPENAI), Some("llm/v1/chat") | None) => "/v1/chat/completions",
        _ => "",
    };
    let mut parts = ProviderUrl::parse(url).ok_or("the provider has no address")?;
    parts.path = path.to_owned();
    Ok(parts)
}

impl<'d> KongModel<'d> {
    /// The names of the models, if the file names each.
    pub(super) fn names(&self) -> Option<Vec<&'d str>> {
        let names = self.targets.iter().map(|one| one.text_at("model.name"));
        names.collect()
    }

    pub(super) fn add_upstream(
        &self,
        route: &KongRoute<'d>,
        file: &mut KongFile<'d>,
    ) -> Result<String, String> {
        let [first, others @ ..] = &self.servers[..] else {
            return Err("ai-proxy has no targets".to_owned());
        };
        if others.iter().any(|one| one.path != first.path) {
            return Err("its model servers have different paths".to_owned());
        }
        let weight = |server: &ProviderUrl| {
            let own = self
                .targets
                .iter()
                .filter(|one| server_of(one, self.provider).is_ok_and(|own| own == *server));
            let weights = own.map(|one| one.number_at("weight").unwrap_or(DEFAULT_WEIGHT));
            weights.sum()
        };
        let servers = self.servers.iter().map(|server| ServerDraft {
            weight: Some(weight(server)),
            ..server.server_draft()
        });
        let servers: Vec<ServerDraft> = servers.collect();
        let mut entries = TomlEntries::default();
        if servers.len() > 1 {
            entries.add("balance", quote("round-robin"));
        }
        entries.add("host", quote("rewrite"));
        if let Some(service) = route.service {
            let why = "ai-proxy sends the calls to its own servers, not to the service";
            service.needless(&format!("service {}", super::name_of(service)), why);
        }
        Ok(file.draft.add_upstream(UpstreamDraft {
            name: self.provider.name.to_owned(),
            servers,
            entries,
            place: self.config.place(),
        }))
    }

    /// Sets the path that the server sees.
    pub(super) fn set_path(&self, what: &str, route: &mut RouteDraft) {
        let path = self.servers.first().map_or("", |one| one.path.as_str());
        // A native format keeps the path of the client.
        match path.is_empty() {
            true => {
                let why = "requests keep their paths, and the server must know them";
                self.config.differs(what, why);
            }
            false => providers::replace_path(route, path, what, self.config),
        }
    }

    /// Adds the prices of the models. Returns what is missing.
    pub(super) fn add_prices(&self, file: &mut KongFile<'d>) -> Result<(), String> {
        for target in &self.targets {
            let model = target.text_at("model.name").unwrap_or("*");
            let cost = |key: &str| {
                let text = target.text_at(&format!("model.options.{key}"));
                let cost = text.and_then(|text| text.parse::<f64>().ok());
                cost.ok_or_else(|| format!("ai-proxy has no `{key}` of `{model}`"))
            };
            let input = budgets::millionths(cost("input_cost")?)?;
            let output = budgets::millionths(cost("output_cost")?)?;
            let price = inline_table(&[
                format!("input = {}", decimal(input)),
                format!("output = {}", decimal(output)),
            ]);
            let draft = PriceDraft {
                model: model.to_owned(),
                price,
            };
            if !file.draft.calls.add_price(draft) {
                let why = "another route has other costs of this model; the first counts";
                target.lost(&format!("ai-proxy: costs of {model}"), why);
            }
        }
        Ok(())
    }
}
