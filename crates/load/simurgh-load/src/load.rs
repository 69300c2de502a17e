//! Loads a runnable scenario from a file in any of the languages.

use std::path::Path;

use simurgh_load_scenario::{Diagnostic, Diagnostics, Loaded, Overrides, apply, check, toml};

/// Parses and checks a scenario (XML is Tsung's). Returns all mistakes in file, hosts, flags.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Loaded, Diagnostics> {
    let text = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Err(one(format!("cannot be read: {error}"))),
    };
    let text = String::from_utf8(text).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        Diagnostics(vec![Diagnostic::at(line, "is not UTF-8").help("save the file as UTF-8")])
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    let mut loaded = if is_xml(&text) {
        simurgh_load_tsung::read(&text, base, overrides)?
    } else {
        toml::read(&text, base, overrides)?
    };
    apply(&mut loaded.scenario, overrides);
    check(&loaded.scenario)?;
    Ok(loaded)
}

fn one(what: String) -> Diagnostics {
    Diagnostics(vec![Diagnostic::at(0, what)])
}

/// No TOML begins with a `<`.
fn is_xml(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('<')
}
