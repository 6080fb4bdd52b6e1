//! What is asked about: a request that nobody has sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use http::header::{HOST, HeaderName, HeaderValue};
use http::{Method, Request, Uri};

use crate::config::Config;
use crate::proxy::{Arrival, Secured};

/// Who asks if nobody is named: an address of documentation, which is nobody's.
pub const EXAMPLE_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A request to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its method.
    pub method: String,
    /// `http://HOST[:PORT]/PATH`, the same with `https`, or a path.
    pub url: String,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
    /// Where it is sent from.
    pub ip: IpAddr,
}

/// Why a question cannot be answered. Whoever asks is at fault, but for the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionError {
    /// No method of HTTP.
    Method(String),
    /// No URL, and why.
    Url(String, &'static str),
    /// No header.
    Header(String),
    /// This machine cannot.
    Machine(String),
}

impl fmt::Display for QuestionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuestionError::Method(text) => write!(f, "`{text}` is no method; write `GET`"),
            QuestionError::Url(text, why) => write!(f, "`{text}` is no URL: {why}"),
            QuestionError::Header(text) => {
                write!(f, "`{text}` is no header; write `name: value`")
            }
            QuestionError::Machine(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for QuestionError {}

impl Question {
    /// The request, in the form in which a client sends it.
    pub(super) fn request(&self) -> Result<Request<()>, QuestionError> {
        let method = Method::from_bytes(self.method.as_bytes())
            .map_err(|_| QuestionError::Method(self.method.clone()))?;
        let (host, target) = self.split()?;
        let target: Uri = target
            .parse()
            .map_err(|_| self.bad_url("it has a character that must be escaped as %XX"))?;
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = target;
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            let bad = || QuestionError::Header(format!("{name}: {value}"));
            let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| bad())?;
            let value = HeaderValue::from_str(value.trim()).map_err(|_| bad())?;
            headers.append(name, value);
        }
        if !headers.contains_key(HOST) {
            let host = HeaderValue::from_str(host)
                .map_err(|_| self.bad_url("its host has an odd character"))?;
            headers.insert(HOST, host);
        }
        Ok(request)
    }

    /// How it comes: over TLS where the proxy speaks it and the URL says so.
    pub(super) fn arrival(&self, config: &Config) -> Arrival {
        let secure = config.tls.is_some() && self.url.starts_with("https://");
        Arrival {
            tls: secure.then(Secured::default),
            ..Arrival::plain(self.ip)
        }
    }

    /// Host, and path with query.
    fn split(&self) -> Result<(&str, String), QuestionError> {
        let url = self.url.split('#').next().unwrap_or_default();
        if url.starts_with('/') || url == "*" {
            return Ok(("localhost", url.to_owned()));
        }
        let rest = match url.split_once("://") {
            Some(("http" | "https", rest)) => rest,
            Some(_) => return Err(self.bad_url("it begins with http:// or https://")),
            None => url,
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(end);
        if host.is_empty() {
            return Err(self.bad_url("the host is missing"));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok((host, format!("{slash}{target}")))
    }

    fn bad_url(&self, why: &'static str) -> QuestionError {
        QuestionError::Url(self.url.clone(), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, url: &str) -> Result<String, QuestionError> {
        let question = Question {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: vec![("X-A".to_owned(), " 1 ".to_owned())],
            ip: EXAMPLE_PEER,
        };
        let request = question.request()?;
        let host = request.headers()[HOST].to_str().unwrap();
        Ok(format!("{} {host} {}", request.method(), request.uri()))
    }

    #[test]
    fn urls_are_read_as_a_client_would_send_them() {
        assert_eq!(
            request("GET", "http://a.example:81/x?y#z").unwrap(),
            "GET a.example:81 /x?y"
        );
        assert_eq!(
            request("GET", "https://a.example").unwrap(),
            "GET a.example /"
        );
        assert_eq!(request("GET", "a.example?x").unwrap(), "GET a.example /?x");
        assert_eq!(
            request("POST", "/a/../b").unwrap(),
            "POST localhost /a/../b"
        );
    }

    #[test]
    fn what_no_client_could_send_is_no_question() {
        for (method, url) in [("G T", "/"), ("GET", "ftp://a/"), ("GET", "http:///x")] {
            assert!(request(method, url).is_err(), "{method} {url}");
        }
        let error = request("GET", "/a b").unwrap_err().to_string();
        assert!(error.contains("%XX"), "{error}");
    }
}
