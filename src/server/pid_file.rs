//! The file that says which process serves, for those who send signals. It is replaced whole, so
//! that nobody reads half a number, and removed at the end unless a successor has written it.

use std::fs;
use std::io;
use std::path::Path;

/// Says that this process serves.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path) -> io::Result<()> {
    let pid = std::process::id();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{pid}"));
    let fresh = path.with_file_name(name);
    let written = fs::write(&fresh, format!("{pid}\n")).and_then(|()| fs::rename(&fresh, path));
    written.map_err(|error| {
        // Nothing may be there.
        let _ = fs::remove_file(&fresh);
        let text = format!("cannot write the pid file {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    })
}

/// Removes it, if it still names this process.
pub fn remove(path: &Path) {
    let ours =
        fs::read_to_string(path).is_ok_and(|text| text.trim().parse() == Ok(std::process::id()));
    if ours {
        // Whoever removed it meanwhile did the same.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_until_the_end_unless_another_has_written_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        remove(&path);
        assert!(!path.exists());
        fs::write(&path, "1\n").unwrap();
        remove(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let error = write(&directory.path().join("none/pid")).unwrap_err();
        assert!(error.to_string().contains("none/pid"), "{error}");
    }
}
