//! From a file to a scenario that can be run, whichever language it is written in.

use std::path::Path;

use super::{Fault, Faults, Loaded, Overrides, apply, check};

/// Reads, changes and checks a scenario; XML is taken for Tsung's.
///
/// # Errors
/// All that is wrong with the file, its hosts and the flags.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Loaded, Faults> {
    let text = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(one(format!("cannot be read: {error}"))),
    };
    let text = String::from_utf8(text).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        Faults(vec![Fault::at(line, "is not UTF-8").help("save the file as UTF-8")])
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    let mut loaded = if is_xml(&text) {
        crate::tsung::read(&text, base, overrides)?
    } else {
        crate::toml::read(&text, base, overrides)?
    };
    apply(&mut loaded.scenario, overrides);
    check(&loaded.scenario)?;
    Ok(loaded)
}

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

fn one(what: String) -> Faults {
    Faults(vec![Fault::at(0, what)])
}

/// No TOML begins with a `<`.
fn is_xml(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('<')
}
