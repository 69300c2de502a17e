//! Data files of scenarios.

use std::path::Path;

/// The rows of a data file: its lines without line ends and trailing blank lines. An error says why
/// it cannot be read, to be put after the name of the key.
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
