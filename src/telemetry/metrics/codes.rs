//! The methods and status codes that have a series of their own. All others share series, so that
//! clients cannot create series.

use http::Method;

/// Methods with a series of their own, and a word for all others.
pub const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other",
];

/// Status codes with a series of their own, and for each hundred a word for its other codes.
pub const CODES: [&str; 48] = [
    "101", "200", "201", "202", "203", "204", "206", "207", "301", "302", "303", "304", "307",
    "308", "400", "401", "402", "403", "404", "405", "406", "408", "409", "410", "411", "412",
    "413", "414", "415", "416", "417", "421", "422", "425", "428", "429", "431", "451", "500",
    "501", "502", "503", "504", "1xx", "2xx", "3xx", "4xx", "5xx",
];

/// The index of `1xx`.
const HUNDREDS: usize = CODES.len() - 5;

/// The indices in `CODES` of the statuses from 100 to 599.
static INDEX: [u8; 500] = index();

const fn index() -> [u8; 500] {
    let mut table = [0; 500];
    let mut status = 0;
    while status < table.len() {
        table[status] = (HUNDREDS + status / 100) as u8;
        status += 1;
    }
    let mut code = 0;
    while code < HUNDREDS {
        let digits = CODES[code].as_bytes();
        let number = (digits[0] - b'0') as usize * 100
            + (digits[1] - b'0') as usize * 10
            + (digits[2] - b'0') as usize;
        table[number - 100] = code as u8;
        code += 1;
    }
    table
}

/// The index of a status in [`CODES`]. A number that is no status of HTTP counts as 5xx.
pub fn code_of(status: u16) -> usize {
    let index = INDEX.get(usize::from(status).wrapping_sub(100));
    index.map_or(CODES.len() - 1, |index| usize::from(*index))
}

/// The index of a method in [`METHODS`].
pub fn method_of(method: &Method) -> u8 {
    match *method {
        Method::GET => 0,
        Method::HEAD => 1,
        Method::POST => 2,
        Method::PUT => 3,
        Method::PATCH => 4,
        Method::DELETE => 5,
        Method::OPTIONS => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_counted_as_itself_or_with_its_hundred() {
        for status in 0..=u16::MAX {
            let code = CODES[code_of(status)];
            let own = code == status.to_string();
            let hundred = code.ends_with("xx") && code.starts_with(&(status / 100).to_string());
            let odd = !(100..600).contains(&status) && code == "5xx";
            assert!(own || hundred || odd, "{status} is counted as {code}");
        }
        assert_eq!(CODES[code_of(429)], "429");
        assert_eq!(CODES[code_of(418)], "4xx");
    }

    #[test]
    fn every_method_has_a_place() {
        for (index, name) in METHODS.iter().enumerate() {
            let method = Method::from_bytes(name.as_bytes()).unwrap();
            assert_eq!(usize::from(method_of(&method)), index);
        }
        let odd = Method::from_bytes(b"BREW").unwrap();
        assert_eq!(METHODS[usize::from(method_of(&odd))], "other");
    }
}
