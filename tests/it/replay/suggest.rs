//! `tidegate replay --suggest` prints a patch: git applies it, and `tidegate check` accepts the
//! file.

use super::*;

/// A git repository with a configuration in a folder of it.
struct Repository {
    folder: TempDir,
    /// The path of the configuration below the repository.
    file: &'static str,
}

impl Repository {
    fn with(file: &'static str, text: &str) -> Repository {
        let folder = TempDir::new().unwrap();
        let repository = Repository { folder, file };
        let path = repository.path();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        let git = Command::new("git")
            .args(["init", "-q"])
            .current_dir(repository.folder.path())
            .status();
        assert!(git.unwrap().success());
        repository
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(self.file)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    fn replay(&self, arguments: &[&str]) -> Output {
        command(&self.folder)
            .args(["-c", self.file])
            .args(arguments)
            .arg(log(&self.folder))
            .output()
            .unwrap()
    }

    /// Prints a patch, applies it in the same folder, and checks the file. Returns the patch.
    fn apply(&self) -> String {
        let output = self.replay(&["--suggest=25%"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert!(errors.contains("suggested "), "{errors}");
        let patch = text(&output);
        let mut git = Command::new("git")
            .args(["apply", "-"])
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = git.stdin.take().unwrap();
        input.write_all(&output.stdout).unwrap();
        drop(input);
        assert!(git.wait().unwrap().success(), "git refuses\n{patch}");
        let check = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["check", "-c", self.file])
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let found = String::from_utf8_lossy(&check.stderr);
        assert_eq!(check.status.code(), Some(0), "{found}");
        patch
    }
}

/// Writes a log of one minute: clients 1 to 8 send as many requests as their number, half of them
/// to `/login`. A request takes 2.5 s.
fn log(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("access.log");
    let mut lines = String::new();
    for number in 0..8 {
        for client in number + 1..=8 {
            let target = if number % 2 == 0 { "/login" } else { "/" };
            lines.push_str(&format!(
                "192.0.2.{client} - - [20/Nov/2026:22:37:{number:02} +0000] \
                 \"GET {target} HTTP/1.1\" 200 5 \"-\" \"-\" 2.500\n"
            ));
        }
    }
    std::fs::write(&path, lines).unwrap();
    path
}

/// The text of a file with other words in place of these.
fn with(text: &str, changes: &[(&str, &str)]) -> String {
    let change = |text: String, (old, new): &(&str, &str)| text.replacen(old, new, 1);
    changes.iter().fold(text.to_owned(), change)
}

const FILE: &str = "# Our limits.\n\
    upstream = \"http://127.0.0.1:9\" # the API\n\
    \n\
    [limit.login] # guesses\n\
    rate = '3 / minute'   # as agreed\n\
    key = \"ip\"\n\
    \n\
    [limit.all]\n\
    key  = \"ip\"\n\
    rate = [\"100/s\", # bursts\n\
    \x20        \"1_000/h\"]\n\
    candidate = \"50/min\"\n\
    \n\
    [[route]]\n\
    path = \"/login\"\n\
    limits = [\"login\", \"all\"]\n\
    \n\
    [[route]]\n\
    path = \"/*\"\n\
    limits = [\"all\"]\n";

/// The changes of `FILE` for the log: six of eight clients stay below.
const CHANGES: [(&str, &str); 3] = [("100/s", "1/s"), ("1_000/h", "6/h"), ("50/min", "6/min")];

#[test]
fn git_applies_the_patch_and_only_numbers_of_rates_change() {
    let repository = Repository::with("proxy.toml", FILE);
    let patch = repository.apply();
    assert!(
        patch.starts_with("--- a/proxy.toml\n+++ b/proxy.toml\n@@ "),
        "{patch}"
    );
    assert_eq!(repository.text(), with(FILE, &CHANGES));
}

#[test]
fn the_patch_names_the_file_below_this_folder() {
    for file in ["deploy/proxy.toml", "a/our proxy.toml"] {
        let repository = Repository::with(file, FILE);
        // Another file of the same name, in the folder where the patch is applied.
        let other = repository.folder.path().join("proxy.toml");
        std::fs::write(&other, FILE).unwrap();
        let patch = repository.apply();
        assert!(patch.starts_with(&format!("--- a/{file}")), "{patch}");
        assert_eq!(repository.text(), with(FILE, &CHANGES), "{file}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), FILE);
    }
}

#[test]
fn a_candidate_that_would_equal_the_rate_stays() {
    let file = "upstream = \"http://127.0.0.1:9\"\n\
        [limit.default]\nrate = \"100/min\"\ncandidate = \"50/min\"\nkey = \"ip\"\n";
    let repository = Repository::with("proxy.toml", file);
    repository.apply();
    assert_eq!(repository.text(), with(file, &[("100/min", "6/min")]));
}

#[test]
fn a_share_that_is_none_is_named() {
    let repository = Repository::with("proxy.toml", FILE);
    for share in ["--suggest=200%", "--suggest=abc"] {
        let output = repository.replay(&[share]);
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("takes a share such as 0.5%"), "{told}");
    }
}

#[test]
fn every_spelling_of_a_file_stays() {
    let inline = "upstream = \"http://127.0.0.1:9\"\n\
        limit.all = { key = \"ip\", rate = [\"100/s\", \"200/h\"] } # all\n\
        limit.login.rate = \"\"\"20/min\"\"\"\n\
        limit.login.key = \"ip\"\n\
        route = [{ path = \"/login\", limits = [\"login\"] }, { path = \"/*\", limits = [\"all\"] }]";
    let changes = [("100/s", "1/s"), ("200/h", "3/h"), ("20/min", "3/min")];
    let in_place = "upstream = \"http://127.0.0.1:9\"\n\
        [[route]]\npath = \"/login\"\nlimits = [\"20/min\"]\n\
        [[route]]\npath = \"/*\"\nlimits = [\n  \"9/min\", # a rate in place\n  \"9/h\",\n]\n";
    let changes_in_place = [("20/min", "3/min"), ("9/min", "3/min"), ("9/h", "3/h")];
    for (old, changes) in [
        (inline, &changes),
        (in_place, &changes_in_place),
        (FILE, &CHANGES),
    ] {
        for old in [
            old.to_owned(),
            old.trim_end().to_owned(),
            old.replace('\n', "\r\n"),
            format!("\u{feff}{old}"),
        ] {
            let repository = Repository::with("proxy.toml", &old);
            repository.apply();
            assert_eq!(repository.text(), with(&old, changes));
        }
    }
}

#[test]
fn the_patched_file_does_as_predicted() {
    let file =
        "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"100/min\"\nkey = \"ip\"\n";
    let repository = Repository::with("proxy.toml", file);
    let before = json(&repository.replay(&["--suggest=25%", "--json"]));
    let suggested = &before["limits"][0]["suggested"];
    assert_eq!(suggested["rate"], "6/min");
    repository.apply();
    let after = json(&repository.replay(&["--suggest=25%", "--json"]));
    assert_eq!(after["limits"][0]["rate"], "6/min");
    assert_eq!(
        after["limits"][0]["clients_hit"]["own"],
        suggested["clients_hit"]
    );
    // The two largest clients lose what is above 6 requests.
    assert_eq!(after["denied"]["own"], 1 + 2);

    let again = repository.replay(&["--suggest=25%"]);
    assert_eq!(again.status.code(), Some(3));
    assert!(again.stdout.is_empty());
    let told = String::from_utf8(again.stderr).unwrap();
    assert!(told.contains("nothing to change"), "{told}");
}

#[test]
fn tiers_and_slots_are_patched_and_costs_still_fit() {
    let file = "upstream = \"http://127.0.0.1:9\"\n\
        [tier]\nfrom = \"header:x-tier\"\ndefault = \"free\"\n\
        [limit.default]\nrate = \"100/min\"\nkey = \"ip\"\n\
        [limit.default.tiers]\nfree = [\"50/min\"]\n\
        [limit.slots]\nconcurrent = 1_0 # at once\n\
        [limit.posts]\nrate = \"90/min\"\nkey = \"ip\"\ncost = 20\n\
        [[route]]\npath = \"/login\"\nlimits = [\"posts\"]\ncost = 3\n\
        [[route]]\npath = \"/*\"\nlimits = [\"default\", \"slots\"]\n";
    let changes = [("50/min", "3/min"), ("1_0", "2"), ("90/min", "180/min")];
    let repository = Repository::with("proxy.toml", file);
    repository.apply();
    assert_eq!(repository.text(), with(file, &changes));
}

#[test]
fn a_rate_from_the_environment_stays() {
    let file = "upstream = \"http://127.0.0.1:9\"\n\
        [limit.default]\nrate = \"${RATE:-100/min}\"\nkey = \"ip\"\n";
    let repository = Repository::with("proxy.toml", file);
    let output = repository.replay(&["--suggest=25%"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("variable") && told.contains("6/min"),
        "{told}"
    );
}

#[test]
fn a_torn_log_gives_no_patch() {
    let repository = Repository::with("proxy.toml", FILE);
    let torn = repository.folder.path().join("torn.log.gz");
    std::fs::write(&torn, b"\x1f\x8b\x08").unwrap();
    let output = repository.replay(&["--suggest=25%", torn.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}
