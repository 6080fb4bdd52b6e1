//! Reads the key of a limit, and checks that the file has what its parts need.

use crate::config::section::SectionsPresent;
use crate::config::*;
use crate::limit::key::{Alternatives, Key, MAX_CHOICES, Part};

pub(super) fn read(section: &mut Section<'_>, present: SectionsPresent) -> Option<Located<Key>> {
    let allowed = format!("1 to {MAX_CHOICES} parts");
    section.declare("key", || ValueKind::Keys);
    let texts = section.counted_texts("key", 1..=MAX_CHOICES, &allowed)?;
    let form = TextForm::new(Code::BadKey, "a key");
    let mut parts: Vec<Alternatives> = Vec::new();
    for part in section.parse_all("key", Some(texts), form, Key::parse_part) {
        if parts.contains(&part.value) {
            duplicate("the same part twice in one key")
                .at(&part.span, "changes nothing")
                .report_to(section.reader);
        }
        check_sections(section, &part.value, &part.span, present);
        parts.push(part.value);
    }
    (!parts.is_empty()).then(|| section.located("key", Key::new(parts)))
}

/// Reports a member of a body where only heads are read.
fn check_body(section: &Section<'_>, part: &Part, span: &TextSpan) {
    if matches!(part, Part::Body(_)) && !section.reader.surroundings.forwards {
        contradiction(format!("`{part}` is for the proxy"))
            .at(span, "the library reads no bodies")
            .help("let the program make a key of it: `Limits::key_by`")
            .report_to(section.reader);
    }
}

/// Reports parts of a key that need another section.
pub(in crate::config) fn check_sections(
    section: &Section<'_>,
    parts: &Alternatives,
    span: &TextSpan,
    present: SectionsPresent,
) {
    for part in &parts.0 {
        check_body(section, part, span);
        let (needed, why, example) = match part {
            Part::Jwt(_) if !present.jwt => (
                "[auth.jwt]",
                "a client can invent the claims of a token that is not verified",
                "jwks_file = \"/etc/tidegate/jwks.json\"",
            ),
            Part::Tier if !present.tier => (
                "[tier]",
                "no setting gives the tier of a client",
                "from = \"jwt:plan\"",
            ),
            Part::Tls(_) if !present.client_ca => (
                "[tls]",
                "the proxy asks clients for no certificates",
                "client_ca = \"/etc/tidegate/clients.pem\"",
            ),
            _ => continue,
        };
        contradiction(format!("`{part}` needs `{needed}`"))
            .at(span, why)
            .help(format!("write for example `{needed}` with `{example}`"))
            .report_to(section.reader);
    }
}
