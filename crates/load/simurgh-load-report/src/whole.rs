//! Files that are replaced as a whole.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file atomically: readers see the old or the new one. After an error it is the old.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let written = fs::File::create(&fresh).and_then(|mut file| {
        file.write_all(bytes)?;
        file.flush()?;
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        // Half a file is useless; if it cannot be removed, the write error is enough.
        let _ = fs::remove_file(&fresh);
    }
    written
}
