//! Instructions as valgrind counts them, and whether they are what was agreed on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// By how much a count may differ from the agreed one, percent. What the compiler inlines changes
/// with sources elsewhere: up to 13 % were seen in words that nobody had touched.
const TOLERANCE: f64 = 15.0;
/// And instructions, for words of few.
const SLACK: f64 = 6.0;

/// Counts every word, and says whether all are what `file` says; with `--accept`, which `accepting`
/// is how to say, the file says so afterwards.
pub(super) fn hold(names: &[&str], times: usize, (file, accepting): (&str, &str)) -> ExitCode {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let counted = match count(names, times) {
        Ok(counted) => counted,
        Err(trouble) => {
            eprintln!("instructions are not counted: {trouble}");
            return ExitCode::FAILURE;
        }
    };
    if std::env::args().any(|argument| argument == "--accept") {
        let lines = counted
            .iter()
            .map(|(name, count)| format!("{count:>8.0}  {name}\n"));
        let head = format!("# Instructions for each word. Written by `{accepting}`.\n");
        let text = head + &lines.collect::<String>();
        return match std::fs::write(&path, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                ExitCode::FAILURE
            }
        };
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let agreed = read(&text);
    let (table, off) = compare(&counted, &agreed);
    print!("{table}");
    if off == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "\n{off} of {} are not what {file} says, within {TOLERANCE} %. If that is meant, \
         `{accepting}` writes the new counts there; the commit says why.",
        counted.len()
    );
    ExitCode::FAILURE
}

/// Runs this program again under valgrind, which writes a profile each time that the function is
/// left in which a word is said.
fn count(names: &[&str], times: usize) -> Result<Vec<(String, f64)>, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let out = directory.path().join("words");
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        // Two spellings of one name: of two options with the same, valgrind heeds one.
        .arg("--toggle-collect=*said_under_count*")
        .arg("--dump-after=*words::said_under_count*")
        .arg(program)
        .arg("--say")
        .output()
        .map_err(|error| format!("valgrind: {error}; tests/install.sh installs it"))?;
    if !ran.status.success() {
        return Err(String::from_utf8_lossy(&ran.stderr).into_owned());
    }
    let of = |(index, name): (usize, &&str)| {
        let part = PathBuf::from(format!("{}.{}", out.display(), index + 1));
        let total = std::fs::read_to_string(&part).ok().and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("totals: "))?;
            line.trim().parse::<u64>().ok()
        });
        let total = total.ok_or_else(|| format!("no count of \"{name}\""))?;
        Ok(((*name).to_owned(), total as f64 / times as f64))
    };
    names.iter().enumerate().map(of).collect()
}

fn read(text: &str) -> BTreeMap<&str, f64> {
    text.lines()
        .filter_map(|line| {
            let (count, name) = line.trim().split_once("  ")?;
            Some((name, count.parse().ok()?))
        })
        .collect()
}

/// A table of all words, and how many are off.
fn compare(counted: &[(String, f64)], agreed: &BTreeMap<&str, f64>) -> (String, usize) {
    let mut table = format!("{:<36} {:>9} {:>9}\n", "instructions", "agreed", "now");
    let mut off = 0;
    for (name, now) in counted {
        let known = agreed.get(name.as_str());
        let percent = known.map(|known| (now / known - 1.0) * 100.0);
        let is_off = known.is_none_or(|known| {
            let most = (known * TOLERANCE / 100.0).max(SLACK);
            (now - known).abs() > most
        });
        off += usize::from(is_off);
        let known = known.map_or_else(|| "-".to_owned(), |known| format!("{known:.0}"));
        let percent = percent.map_or_else(String::new, |percent| format!("{percent:+.1} %"));
        let mark = if is_off { "  <--" } else { "" };
        // Writing into a String cannot fail.
        let _ = writeln!(table, "{name:<36} {known:>9} {now:>9.0} {percent:>9}{mark}");
    }
    (table, off)
}
