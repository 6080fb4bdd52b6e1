//! What `tidegate help CODE` shows, done: of the two examples of a code, the first earns it, and
//! the second does not.

use std::io;
use std::path::Path;

use super::super::diagnostic::Code;
use super::super::load::read_text;
use super::super::reader::Surroundings;

/// Those that are about files or times, shown by a command.
const NO_EXAMPLE: [&str; 3] = ["T100", "T210", "T220"];
/// Those whose example is wrong or right by what its files hold.
const BY_FILES: [&str; 1] = ["T108"];
/// Those whose correction names certificates. The files of this test hold none.
const BY_CERTIFICATES: [&str; 1] = ["T243"];

fn codes(example: &str, files: bool) -> Vec<&'static str> {
    let read = |_: &Path, _| match files {
        true => Ok(b"0123456789abcdef pro".to_vec()),
        false => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let around = Surroundings {
        base: std::path::Path::new(""),
        forwards: true,
        env: &|_| None,
        now_s: 1_800_000_000,
        read: &read,
    };
    // Most show a part; what they do not show has somewhere to go.
    let whole = example.contains("upstream");
    let before = if whole {
        ""
    } else {
        "upstream = \"http://10.9.9.9\"\n"
    };
    let text = format!("{before}{example}");
    let found = match read_text("proxy.toml", &text, &around).0 {
        Ok((_, found)) | Err(found) => found,
    };
    found.all().map(|one| one.code.as_str()).collect()
}

#[test]
fn examples_of_codes_earn_them_and_their_corrections_do_not() {
    for code in Code::ALL.iter().map(|code| code.as_str()) {
        let text = code.parse::<Code>().unwrap().explain();
        let examples = text.split("```toml\n").skip(1);
        let examples: Vec<&str> = examples
            .map(|rest| rest.split("```").next().unwrap())
            .collect();
        match examples[..] {
            [] => assert!(NO_EXAMPLE.contains(&code), "{code}"),
            [by_files] => {
                assert!(BY_FILES.contains(&code), "{code}");
                assert!(codes(by_files, false).contains(&code), "{code}");
                assert!(!codes(by_files, true).contains(&code), "{code}");
            }
            [wrong, right] => {
                let (wrong, right) = (codes(wrong, true), codes(right, true));
                assert!(wrong.contains(&code), "{code}: {wrong:?}");
                let has_none = |one: &str| one == "T108" && BY_CERTIFICATES.contains(&code);
                // A limit alone is used by no route, which is told too; so are notes.
                assert!(
                    right
                        .iter()
                        .all(|one| *one == "T206" || one.starts_with("T3") || has_none(one)),
                    "{code}: {right:?}"
                );
                assert!(!right.contains(&code), "{code}");
            }
            _ => panic!("{code} has {} examples", examples.len()),
        }
    }
}
