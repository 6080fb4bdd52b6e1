//! What can be asked for: paths and queries, read.

use super::gate::Deed;
use super::overrides::What;
use crate::whom::decoded;

/// Everything that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Healthz,
    Readyz,
    Metrics,
    /// What the API is, for programs.
    OpenApi,
    /// A file of the dashboard, by its name.
    Page(String),
    Status,
    Traffic,
    Limits,
    /// The busiest clients of the limit of this name.
    Clients(String),
    Upstreams,
    /// What each route answered lately.
    Routes,
    Denials,
    DenialStream,
    Reload,
    /// What is served by.
    Config,
    /// What stands for the secrets in it.
    Secrets,
    /// What would become of a request.
    Explain,
    /// Every override and block in force.
    Overrides,
    /// The last changes of those.
    Changes,
    /// How a client of the limit of this name stands, by the words of its key.
    Key(String, Vec<String>),
    /// Something is done to a client, of the limit of this name or of any.
    Change(Option<String>, What),
}

impl Place {
    /// What a path leads to.
    pub(super) fn of(path: &str) -> Option<Place> {
        let Some(api) = path.strip_prefix("/api/v1/") else {
            return Some(match path {
                "/healthz" => Place::Healthz,
                "/readyz" => Place::Readyz,
                "/metrics" => Place::Metrics,
                "/openapi.json" => Place::OpenApi,
                page => Place::Page(page.strip_prefix('/')?.to_owned()),
            });
        };
        let words: Vec<&str> = api.split('/').collect();
        Some(match words[..] {
            ["status"] => Place::Status,
            ["traffic"] => Place::Traffic,
            ["limits"] => Place::Limits,
            ["limits", name, "clients"] => Place::Clients(decoded(name)?),
            ["upstreams"] => Place::Upstreams,
            ["routes"] => Place::Routes,
            ["denials"] => Place::Denials,
            ["denials", "stream"] => Place::DenialStream,
            ["config"] => Place::Config,
            ["config", "secrets"] => Place::Secrets,
            ["reload"] => Place::Reload,
            ["explain"] => Place::Explain,
            ["overrides"] => Place::Overrides,
            ["changes"] => Place::Changes,
            ["block"] => Place::Change(None, What::Block),
            ["limits", name, "keys", key] => {
                // `&` between the words: one within a word is written `%26`.
                let words = key.split('&').map(decoded).collect::<Option<_>>()?;
                Place::Key(decoded(name)?, words)
            }
            ["limits", name, "reset"] => Place::Change(Some(decoded(name)?), What::Reset),
            ["limits", name, "override"] => Place::Change(Some(decoded(name)?), What::Override),
            ["limits", name, "block"] => Place::Change(Some(decoded(name)?), What::Block),
            _ => return None,
        })
    }

    /// What whoever asks for it does.
    pub(super) fn deed(&self) -> Deed {
        match self {
            Place::Healthz | Place::Readyz | Place::Metrics => Deed::Glance,
            Place::OpenApi | Place::Page(_) => Deed::Glance,
            Place::Reload | Place::Secrets | Place::Change(..) => Deed::Write,
            _ => Deed::Read,
        }
    }

    /// Whether it needs to be told something, as JSON.
    pub(super) fn is_told_something(&self) -> bool {
        self.deed() == Deed::Write || *self == Place::Explain
    }

    /// The methods that it takes.
    pub(super) fn methods(&self) -> &'static str {
        match self.is_told_something() {
            true => "POST",
            false => "GET, HEAD",
        }
    }
}

/// The value of a parameter of a query; nothing where it is not there, or cannot be read.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    decoded(&value.replace('+', " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::key::{Derived, Facts, HashSecret};
    use crate::path::CanonicalPath;
    use crate::whom::Eyes;

    #[test]
    fn paths_are_read() {
        let page = |name: &str| Some(Place::Page(name.to_owned()));
        assert_eq!(Place::of("/"), page(""));
        assert_eq!(Place::of("/page.js"), page("page.js"));
        assert_eq!(Place::of("/api/v1/nothing"), None);
        assert_eq!(Place::of("*"), None);
        let clients = Place::of("/api/v1/limits/GET%20%2Fa/clients");
        assert_eq!(clients, Some(Place::Clients("GET /a".to_owned())));
        assert_eq!(Place::of("/api/v1/limits/%ff/clients"), None);
        let words = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned());
            Some(Place::Key("a".to_owned(), words.collect()))
        };
        let key = |key: &str| Place::of(&format!("/api/v1/limits/a/keys/{key}"));
        assert_eq!(key("192.0.2.7"), words(&["192.0.2.7"]));
        assert_eq!(
            key("api_key=a%26b+c&path=%2Fx"),
            words(&["api_key=a&b+c", "path=/x"])
        );
        assert_eq!(key("a/b"), None);
        assert_eq!(Place::of("/api/v1/limits/%4/clients"), None);
    }

    proptest::proptest! {
        /// Logs spell a client so that an operator can ask for it.
        #[test]
        fn a_key_as_logs_spell_it_names_whoever_has_it(
            user in proptest::collection::vec(0x20_u8..=255, 0..20),
            ip: [u8; 16],
            is_v4: bool,
            path in "(/[a-z&=%?#. ]{0,5}){1,3}",
        ) {
            const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);
            let text = "upstream = \"http://127.0.0.1:1\"\n[limit.login]\nrate = \"5/min\"\n\
                key = [\"header:x-user or ip\", \"path\"]\n";
            let (config, _) = crate::config::parse("proxy.toml", text, &|_| None).unwrap();
            let limit = &config.limits[0];
            let ip = match is_v4 {
                true => std::net::IpAddr::from([ip[0], ip[1], ip[2], ip[3]]),
                false => std::net::IpAddr::from(ip).to_canonical(),
            };
            let mut headers = http::HeaderMap::new();
            // Nobody can name a value that is no text.
            if let (Ok(value), Ok(_)) =
                (http::HeaderValue::from_bytes(&user), std::str::from_utf8(&user))
            {
                headers.append("x-user", value);
            }
            let Ok(path) = CanonicalPath::parse(&path) else { return Ok(()) };
            let facts = Facts {
                ip: config.client_ip.group(ip),
                api_key: &config.api_key,
                standing: None,
                method: &http::Method::GET,
                host: "a.test",
                path: &path,
                query: None,
                headers: &headers,
                route: "r",
                params: &[],
                claims: None,
                tier: None,
                certificate: None,
            };
            let spelled = limit.key.spell(&facts, limit.missing).unwrap();
            proptest::prop_assert!(spelled.bytes().all(|byte| byte.is_ascii_graphic()));
            let place = Place::of(&format!("/api/v1/limits/login/keys/{spelled}"));
            let Some(Place::Key(_, words)) = place else { panic!("{spelled}: {place:?}") };
            let eyes = Eyes {
                client_ip: &config.client_ip,
                api_key: &config.api_key,
                hash_key: &SECRET,
                records: &[],
                known: &[],
            };
            let whom = eyes.of_limit(&words, limit);
            let tag = whom.map(|whom| Derived::Hash(whom.tag));
            let derived = limit.key.derive(&facts, limit.missing, &SECRET);
            proptest::prop_assert_eq!(tag, Ok(derived), "{}", spelled);
        }
    }

    #[test]
    fn parameters_are_read() {
        let query = Some("limit=a%2Fb+c&top=5&odd");
        assert_eq!(parameter(query, "limit").as_deref(), Some("a/b c"));
        assert_eq!(parameter(query, "top").as_deref(), Some("5"));
        assert_eq!(parameter(query, "odd"), None);
        assert_eq!(parameter(None, "top"), None);
    }
}
