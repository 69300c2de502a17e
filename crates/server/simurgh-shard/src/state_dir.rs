//! Files in `state_dir`: a line that names their content and its version, then lines of JSON.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::saved::write_whole;

const VERSION: u32 = 1;

fn head(name: &str) -> String {
    format!(r#"{{"simurgh":"{name}","version":{VERSION}}}"#)
}

/// Where a file of this name is.
pub fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.jsonl"))
}

/// Replaces the file of this name; its owner alone can read it.
///
/// # Errors
/// It cannot be written; the old file stays.
pub fn write(directory: &Path, name: &str, lines: &[u8]) -> io::Result<()> {
    write_whole(&path(directory, name), |file| {
        writeln!(file, "{}", head(name))?;
        file.write_all(lines)
    })
}

/// The lines of the file of this name. Nothing if there is none, or with a log line if it is
/// unreadable or of another version.
pub fn read(directory: &Path, name: &str) -> Vec<u8> {
    let path = path(directory, name);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::error!(?path, %error, "cannot read a file of state_dir: starting without it");
            return Vec::new();
        }
    };
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (first, lines) = bytes.split_at(end);
    if first != head(name).as_bytes() {
        let why = "is damaged or of another version: starting without it";
        tracing::error!(?path, "a file of state_dir {why}");
        return Vec::new();
    }
    lines.to_vec()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn file_is_read_back_and_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), "blocks"), b"");
        write(dir.path(), "blocks", b"{}\n[]\n").unwrap();
        assert_eq!(read(dir.path(), "blocks"), b"\n{}\n[]\n");
        let mode = fs::metadata(path(dir.path(), "blocks")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn damaged_file_and_one_of_another_version_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = path(dir.path(), "blocks");
        for content in ["", "x\n{}\n", "{\"simurgh\":\"blocks\",\"version\":0}\n{}\n"] {
            fs::write(&file, content).unwrap();
            assert_eq!(read(dir.path(), "blocks"), b"", "{content:?}");
        }
        write(dir.path(), "grants", b"{}\n").unwrap();
        fs::copy(path(dir.path(), "grants"), &file).unwrap();
        assert_eq!(read(dir.path(), "blocks"), b"", "another content");
    }
}
