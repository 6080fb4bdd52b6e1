//! `host` of an upstream: what its servers are asked for.

use super::super::diagnostic::Code;
use super::super::section::Section;
use super::super::values::TextForm;
use crate::route::host_of;

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostHeader {
    /// The host that the client asked for.
    #[default]
    Pass,
    /// Each server's own, as its URL names it.
    Rewrite,
    /// Always this.
    Fixed(Box<str>),
}

/// `host = "pass"`, `"rewrite"`, or a host.
pub(super) fn host(section: &mut Section<'_>) -> HostHeader {
    let kind = TextForm::new(Code::BadHttp, "`pass`, `rewrite` or a host");
    let host = section.parsed("host", kind, |text| match text {
        "pass" => Ok(HostHeader::Pass),
        "rewrite" => Ok(HostHeader::Rewrite),
        text => host_of(text).map(|_| HostHeader::Fixed(text.into())),
    });
    host.map_or(HostHeader::Pass, |host| host.value)
}
