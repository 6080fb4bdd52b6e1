//! The names of variables.

use super::Variable;
use super::connection::{RelayVariable, TlsVariable};
use super::late::LateVariable;

/// Variables without a `:NAME`.
pub(super) const WORDS: [(&str, Variable); 44] = [
    ("client_ip", Variable::ClientIp),
    ("peer_ip", Variable::PeerIp),
    ("host", Variable::Host),
    ("path", Variable::Path),
    ("rest", Variable::Rest),
    ("uri", Variable::Uri),
    ("query", Variable::Query),
    ("method", Variable::Method),
    ("route", Variable::Route),
    ("request_id", Variable::RequestId),
    ("scheme", Variable::Scheme),
    ("request_port", Variable::AskedPort),
    ("is_request_port", Variable::IsAskedPort),
    ("protocol", Variable::Protocol),
    ("http2", Variable::Http2),
    ("peer_port", Variable::PeerPort),
    ("port", Variable::Port),
    ("port_part", Variable::PortPart),
    ("proxy_header_ip", Variable::Relay(RelayVariable::ClientIp)),
    (
        "proxy_header_port",
        Variable::Relay(RelayVariable::ClientPort),
    ),
    (
        "proxy_header_server_ip",
        Variable::Relay(RelayVariable::ServerIp),
    ),
    (
        "proxy_header_server_port",
        Variable::Relay(RelayVariable::ServerPort),
    ),
    ("connection_ip", Variable::Relay(RelayVariable::SenderIp)),
    (
        "connection_port",
        Variable::Relay(RelayVariable::SenderPort),
    ),
    ("connection_requests", Variable::ConnectionRequests),
    (
        "connection_age",
        Variable::Late(LateVariable::ConnectionAge),
    ),
    ("basic_user", Variable::BasicUser),
    ("tls_on", Variable::Tls(TlsVariable::On)),
    ("tls_version", Variable::Tls(TlsVariable::Version)),
    ("tls_cipher", Variable::Tls(TlsVariable::Cipher)),
    ("tls_server_name", Variable::Tls(TlsVariable::ServerName)),
    ("tls_resumed", Variable::Tls(TlsVariable::Resumed)),
    ("tls_verified", Variable::Tls(TlsVariable::Verified)),
    ("tls_subject", Variable::Tls(TlsVariable::Subject)),
    ("tls_issuer", Variable::Tls(TlsVariable::Issuer)),
    ("tls_serial", Variable::Tls(TlsVariable::Serial)),
    ("tls_fingerprint", Variable::Tls(TlsVariable::Fingerprint)),
    ("tls_cert", Variable::Tls(TlsVariable::Certificate)),
    ("upstream_addr", LateVariable::ADDRESS),
    ("upstream_status", LateVariable::STATUS),
    ("upstream_time", LateVariable::TIME),
    ("limit_status", Variable::Late(LateVariable::LimitStatus)),
    ("request_time", Variable::Late(LateVariable::RequestTime)),
    ("unix_time", Variable::Late(LateVariable::UnixTime)),
];
