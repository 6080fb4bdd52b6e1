//! Providers of language models, as gateways name them: the format of their answers, and their
//! addresses.

use super::draft::{RouteDraft, ServerDraft, TargetDraft};
use super::patterns;
use super::tree::TreeItem;
use super::values::quote;

/// The format that most gateways speak with clients.
pub(super) const OPENAI: &str = "openai";

/// A provider that a gateway can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Provider {
    pub(super) name: &'static str,
    /// A format of `[usage.NAME]`; `None` if tidegate reads none of its own.
    pub(super) format: Option<&'static str>,
    /// The address of its API, if there is only one.
    pub(super) url: Option<&'static str>,
}

const fn provider(
    name: &'static str,
    format: Option<&'static str>,
    url: Option<&'static str>,
) -> Provider {
    Provider { name, format, url }
}

const ALL: [Provider; 19] = [
    provider("openai", Some(OPENAI), Some("https://api.openai.com")),
    provider("openai-compatible", Some(OPENAI), None),
    provider("azure", Some(OPENAI), None),
    provider("azure-openai", Some(OPENAI), None),
    provider("mistral", Some(OPENAI), Some("https://api.mistral.ai")),
    provider("deepseek", Some(OPENAI), Some("https://api.deepseek.com")),
    provider("aimlapi", Some(OPENAI), Some("https://api.aimlapi.com")),
    provider("openrouter", Some(OPENAI), Some("https://openrouter.ai")),
    provider("xai", Some(OPENAI), Some("https://api.x.ai")),
    provider("llama2", Some(OPENAI), None),
    provider("vllm", Some(OPENAI), None),
    provider(
        "anthropic",
        Some("anthropic"),
        Some("https://api.anthropic.com"),
    ),
    provider(
        "gemini",
        Some("gemini"),
        Some("https://generativelanguage.googleapis.com"),
    ),
    provider("vertex-ai", Some("gemini"), None),
    provider("bedrock", Some("bedrock"), None),
    provider("ollama", Some("ollama"), None),
    provider("cohere", None, None),
    provider("huggingface", None, None),
    provider("dashscope", Some(OPENAI), None),
];

pub(super) fn find(name: &str) -> Option<Provider> {
    ALL.into_iter().find(|one| one.name == name)
}

/// A URL in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProviderUrl {
    /// The server of an upstream: scheme, host and port.
    pub(super) server: String,
    /// Without a query; empty if there is none.
    pub(super) path: String,
}

impl ProviderUrl {
    pub(super) fn parse(url: &str) -> Option<ProviderUrl> {
        let (scheme, rest) = url.split_once("://")?;
        let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let path = path.split('?').next().unwrap_or_default();
        matches!(scheme, "http" | "https").then(|| ProviderUrl {
            server: format!("{scheme}://{host}"),
            path: path.trim_end_matches('/').to_owned(),
        })
    }

    pub(super) fn server_draft(&self) -> ServerDraft {
        ServerDraft {
            url: self.server.clone(),
            ..ServerDraft::default()
        }
    }
}

/// Makes every request of a route go to one path of its server, as the gateway did. `what` names
/// the route in notes.
pub(super) fn replace_path(route: &mut RouteDraft, path: &str, what: &str, item: &TreeItem) {
    if !matches!(route.target, TargetDraft::Upstream(_)) {
        return;
    }
    let own = route.path.trim_end_matches("/*").to_owned();
    if own.starts_with("regex:") || own.is_empty() || own.contains(['{', '*']) {
        if path.is_empty() {
            return;
        }
        let why = format!(
            "all its requests went to `{path}`; here they keep their paths, so clients must call \
             this path"
        );
        return item.differs(what, why);
    }
    if route.path != own {
        let why = format!(
            "what is below `{own}` went to the same path `{path}`; here only `{own}` itself does"
        );
        item.differs(what, why);
    }
    route.path.clone_from(&own);
    if own == path {
        return;
    }
    if patterns::exact_path(path).is_err() {
        let why = format!("its requests went to `{path}`, and no route can say this path");
        item.lost(what, why.clone());
        route.target = TargetDraft::Closed(why);
        return;
    }
    route.entries.replace("strip_prefix", quote(&own));
    route.entries.replace("add_prefix", quote(path));
}

/// Notes the credentials of a provider, which are not copied.
pub(super) fn note_credentials(auth: &TreeItem, what: &str) {
    let why = "credentials of the server are not copied; a route sends them with \
               `headers_up = { authorization = \"Bearer ${OPENAI_API_KEY}\" }`, or let clients \
               send their own";
    auth.lost(what, why);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_server_and_a_path() {
        for (url, server, path) in [
            ("https://a.example/v1/chat", "https://a.example", "/v1/chat"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080", ""),
            ("http://a/?x=1", "http://a", ""),
        ] {
            let parts = ProviderUrl::parse(url).unwrap();
            assert_eq!((parts.server.as_str(), parts.path.as_str()), (server, path));
        }
        assert_eq!(ProviderUrl::parse("ftp://a/"), None);
        assert_eq!(ProviderUrl::parse("a.example"), None);
        assert_eq!(find("openai").unwrap().format, Some(OPENAI));
        assert_eq!(find("nobody"), None);
    }
}
