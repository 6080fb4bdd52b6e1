//! Reads certificates in DER.

use std::fmt::Write as _;
use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::{Decode, Encode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

use super::{AltName, Certificate};

/// The names of attributes in RFC 4514, and two other common names.
const NAMES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("2.5.4.5", "serialNumber"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

impl Certificate {
    pub fn read(der: &[u8]) -> Option<Certificate> {
        let parsed = CertificateInner::<Raw>::from_der(der).ok()?;
        let body = parsed.tbs_certificate();
        let alternatives = body.get_extension::<SubjectAltName>().ok().flatten();
        let names = alternatives.map_or_else(Vec::new, |(_, names)| names.0);
        let validity = body.validity();
        Some(Certificate {
            subject: subject(body.subject()),
            issuer: subject(body.issuer()),
            serial: hex(body.serial_number().as_bytes()).to_ascii_uppercase(),
            names: names.iter().filter_map(alt_name).collect(),
            not_before_s: validity.not_before.to_unix_duration().as_secs(),
            not_after_s: validity.not_after.to_unix_duration().as_secs(),
            fingerprint: hex(digest(&SHA256, der).as_ref()),
            der: der.into(),
        })
    }
}

/// Reads an alternative name. Names with control characters are dropped, since other programs read
/// them only up to there.
fn alt_name(name: &GeneralName) -> Option<AltName> {
    let plain = |text: &str| (!text.contains(char::is_control)).then(|| text.to_owned());
    Some(match name {
        GeneralName::DnsName(name) => AltName::Dns(plain(name.as_str())?.to_ascii_lowercase()),
        GeneralName::UniformResourceIdentifier(uri) => AltName::Uri(plain(uri.as_str())?),
        GeneralName::Rfc822Name(mail) => AltName::Email(plain(mail.as_str())?),
        GeneralName::IpAddress(bytes) => match bytes.as_bytes() {
            bytes if bytes.len() == 4 => {
                AltName::Ip(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?))
            }
            bytes => AltName::Ip(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        },
        _ => return None,
    })
}

/// Writes a name as RFC 4514 does: the last part first.
fn subject(name: &Name) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.into_iter().rev() {
        if !text.is_empty() {
            text.push(',');
        }
        for (index, attribute) in part.iter().enumerate() {
            if index > 0 {
                text.push('+');
            }
            write_attribute(&mut text, attribute);
        }
    }
    text
}

/// `CN=value`, or `OID=#` and the value's DER where the kind or the value has no text.
fn write_attribute(text: &mut String, attribute: &AttributeTypeAndValue) {
    let oid = attribute.oid.to_string();
    let known = NAMES.iter().find(|(number, _)| *number == oid);
    if let (Some((_, name)), Some(value)) = (known, value_text(attribute)) {
        let _ = write!(text, "{name}=");
        write_escaped(text, value);
        return;
    }
    let der = attribute.value.to_der().unwrap_or_default();
    let _ = write!(text, "{oid}=#{}", hex(&der));
}

fn value_text(attribute: &AttributeTypeAndValue) -> Option<&str> {
    let value = &attribute.value;
    match value.tag() {
        Tag::Utf8String => Some(Utf8StringRef::try_from(value).ok()?.as_str()),
        Tag::PrintableString => Some(PrintableStringRef::try_from(value).ok()?.as_str()),
        Tag::Ia5String => Some(Ia5StringRef::try_from(value).ok()?.as_str()),
        Tag::TeletexString => Some(TeletexStringRef::try_from(value).ok()?.as_str()),
        _ => None,
    }
}

/// RFC 4514 section 2.4; control characters in hexadecimal, so that the text has one line.
fn write_escaped(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (index, character) in value.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', character]),
            '#' if index == 0 => text.push_str("\\#"),
            ' ' if index == 0 || index == last => text.push_str("\\ "),
            _ if character.is_control() => {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(text, "\\{byte:02x}");
                }
            }
            _ => text.push(character),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType, date_time_ymd};

    use super::*;
    use crate::certificate::Validity;

    fn read(params: &CertificateParams) -> Certificate {
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::read(certificate.der()).unwrap()
    }

    fn with_names(names: &[(DnType, DnValue)]) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        read(&params).subject
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn a_subject_is_written_the_last_part_first() {
        let printable = DnValue::PrintableString("DE".try_into().unwrap());
        let subject = with_names(&[
            (DnType::CountryName, printable),
            (DnType::OrganizationName, utf8("Example")),
            (DnType::CommonName, utf8("worker-7")),
        ]);
        assert_eq!(subject, "CN=worker-7,O=Example,C=DE");
        assert_eq!(with_names(&[]), "");
    }

    #[test]
    fn a_value_cannot_pass_for_more_than_one_part() {
        let subject = |text| with_names(&[(DnType::CommonName, utf8(text))]);
        assert_eq!(subject("a,O=b"), "CN=a\\,O=b");
        assert_eq!(subject("a+b\\\"<>;"), "CN=a\\+b\\\\\\\"\\<\\>\\;");
        assert_eq!(subject(" #a b "), "CN=\\ #a b\\ ");
        assert_eq!(subject("#a"), "CN=\\#a");
        assert_eq!(subject("a\r\nb\u{85}"), "CN=a\\0d\\0ab\\c2\\85");
        assert_eq!(subject("M\u{fc}ller"), "CN=M\u{fc}ller");
    }

    #[test]
    fn a_kind_without_a_name_is_its_number() {
        let kind = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(with_names(&[(kind, utf8("ab"))]), "1.2.3.4=#0c026162");
    }

    #[test]
    fn alternative_names_times_and_fingerprint_are_read() {
        let mut params = CertificateParams::new(["A.example".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::URI("spiffe://x/y".try_into().unwrap()),
            SanType::IpAddress("::1".parse().unwrap()),
            SanType::Rfc822Name("a@b".try_into().unwrap()),
        ]);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        let read = read(&params);
        let expected = [
            AltName::Dns("a.example".to_owned()),
            AltName::Uri("spiffe://x/y".to_owned()),
            AltName::Ip("::1".parse().unwrap()),
            AltName::Email("a@b".to_owned()),
        ];
        assert_eq!(read.names, expected);
        assert_eq!(read.hosts(), ["a.example", "::1"]);
        assert_eq!(
            (read.not_before_s, read.not_after_s),
            (1_577_836_800, 1_609_459_200)
        );
        assert_eq!(read.validity(1_577_836_799), Validity::Early);
        assert_eq!(read.validity(1_600_000_000), Validity::Valid);
        assert_eq!(read.validity(1_609_459_201), Validity::Expired);
        assert_eq!(read.fingerprint.len(), 64);
    }

    #[test]
    fn without_alternative_names_the_common_name_is_the_host() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "Old.Example");
        assert_eq!(read(&params).hosts(), ["old.example"]);
    }

    #[test]
    fn what_is_no_certificate_is_nothing() {
        assert_eq!(Certificate::read(b""), None);
        assert_eq!(Certificate::read(b"\x30\x03\x02\x01\x01"), None);
    }
}
