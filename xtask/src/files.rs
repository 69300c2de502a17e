//! Files with a mode, and errors that name them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::process::program;

pub(crate) fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// Makes a directory and those above it, with the mode for packages whatever the umask is.
pub(crate) fn directory(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        directory(above)?;
    }
    fs::create_dir(path).with_context(|| path.display().to_string())?;
    mode(path, 0o755)
}

pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>, bits: u32) -> Result<()> {
    directory(path.parent().unwrap_or(path))?;
    fs::write(path, content).with_context(|| path.display().to_string())?;
    mode(path, bits)
}

fn mode(path: &Path, bits: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(bits))
        .with_context(|| path.display().to_string())
}

pub(crate) fn list(directory: &Path) -> Result<Vec<(String, u64)>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
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
pub(crate) fn below(directory: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
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

/// Like `gzip`, without name and time, so that the bytes are always the same.
pub(crate) fn gzipped(content: &str, work: &Path) -> Result<Vec<u8>> {
    let plain = work.join("to-gzip");
    write(&plain, content, 0o644)?;
    program("gzip", &["-9", "--no-name", "--force", &plain.to_string_lossy()])?;
    bytes(&work.join("to-gzip.gz"))
}
