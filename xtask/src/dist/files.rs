//! Files with a mode, and errors that name them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes a directory and those above it, with the mode that packages want whatever the umask is.
pub(super) fn directory(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        directory(above)?;
    }
    fs::create_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
    mode(path, 0o755)
}

/// Writes a file, and the directories above it.
pub(super) fn write(path: &Path, content: impl AsRef<[u8]>, bits: u32) -> Result<(), String> {
    directory(path.parent().unwrap_or(path))?;
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    mode(path, bits)
}

fn mode(path: &Path, bits: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(bits))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Names in a directory, in order, with sizes.
pub(super) fn list(directory: &Path) -> Result<Vec<(String, u64)>, String> {
    let entries = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut found: Vec<(String, u64)> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| {
            Some((entry.file_name().into_string().ok()?, entry.metadata().ok()?.len()))
        })
        .collect();
    found.sort();
    Ok(found)
}

/// Every file below a directory, as paths from there, in order.
pub(super) fn below(directory: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if let Ok(relative) = path.strip_prefix(directory) {
                found.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// As `gzip` makes it, without name and time, so that the bytes are always the same.
pub(super) fn gzipped(content: &str, work: &Path) -> Result<Vec<u8>, String> {
    let plain = work.join("to-gzip");
    write(&plain, content, 0o644)?;
    super::program("gzip", &["-9", "--no-name", "--force", &plain.to_string_lossy()])?;
    bytes(&work.join("to-gzip.gz"))
}
