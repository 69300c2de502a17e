//! Data files of scenarios.

use std::path::Path;

/// The rows of a data file: its lines without their ends, and without blank ones at the end.
///
/// # Errors
/// Why it cannot be read, in words that follow the name of the key.
pub fn read_rows(base: &Path, path: &str) -> Result<Vec<String>, String> {
    let whole = base.join(path);
    let text = std::fs::read_to_string(&whole)
        .map_err(|error| format!("cannot read {}: {error}", whole.display()))?;
    let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
    while rows.last().is_some_and(|row| row.trim().is_empty()) {
        rows.pop();
    }
    match rows.is_empty() {
        true => Err(format!("{} has no rows", whole.display())),
        false => Ok(rows),
    }
}
