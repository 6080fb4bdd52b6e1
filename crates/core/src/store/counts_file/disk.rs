//! Files as the file of counts needs them: one at a path that others may replace, and one that
//! takes the place of another.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Attempts to lock a file that other processes replace between the open and the lock.
pub(super) const TRIES: usize = 16;
/// Owner only: the file has the key of the hashes.
pub(super) const MODE: u32 = 0o600;

/// Reads until `bytes` are full or the file ends.
pub(super) fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], at + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// A file that is written beside the one whose place it takes.
pub(super) struct NewFile<'p> {
    path: &'p Path,
    beside: PathBuf,
    writer: BufWriter<File>,
}

impl NewFile<'_> {
    /// Begins a file with these bytes.
    pub(super) fn create<'p>(path: &'p Path, head: &[u8]) -> io::Result<NewFile<'p>> {
        let beside = with_ending(path, ".new");
        let file = open_locked(&beside, true)?;
        file.set_len(0)?;
        let mut writer = BufWriter::new(file);
        writer.write_all(head)?;
        Ok(NewFile {
            path,
            beside,
            writer,
        })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Returns the file, locked.
    pub(super) fn put_in_place(self) -> io::Result<File> {
        let file = self
            .writer
            .into_inner()
            .map_err(|failed| failed.into_error())?;
        file.sync_all()?;
        fs::rename(&self.beside, self.path)?;
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        // Not every disk can do this. The rename is then as safe as any.
        let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        Ok(file)
    }
}

/// Refuses a device or a pipe at `path`: an empty one would look like a damaged file, and a file
/// would take its place.
pub(super) fn refuse_device(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(io::Error::other("it is a device or a pipe. Name a file"))
        }
        _ => Ok(()),
    }
}

pub(super) fn create(path: &Path, head: &[u8]) -> io::Result<()> {
    NewFile::create(path, head)?.put_in_place()?;
    Ok(())
}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Opens and locks the file that is at `path` at that time.
pub(super) fn open_locked(path: &Path, creates: bool) -> io::Result<File> {
    for _ in 0..TRIES {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .create(creates)
            .truncate(false);
        let file = options.mode(MODE).open(path)?;
        file.lock()?;
        if is_at(path, &file) {
            return Ok(file);
        }
    }
    Err(io::Error::other("it is replaced all the time"))
}

pub(super) fn is_at(path: &Path, file: &File) -> bool {
    let place = |metadata: fs::Metadata| [metadata.dev(), metadata.ino()];
    match (fs::metadata(path).map(place), file.metadata().map(place)) {
        (Ok(there), Ok(own)) => there == own,
        _ => false,
    }
}
