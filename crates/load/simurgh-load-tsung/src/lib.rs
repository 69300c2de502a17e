//! Tsung's XML dialect, lowered to a [`Scenario`](simurgh_load_scenario::Scenario).
//!
//! text -> `repair` (mistakes in hand-copied files, each with a warning) -> `xml` (a tree with line
//! numbers) -> `dtd` (which element may be where) -> `lower` (elements to the model). Nothing is
//! ignored silently: an element or attribute is supported, or ignored with a warning, or refused by
//! name and line. With `strict` the file must be valid by Tsung 1.7.0's DTD, and nothing is
//! repaired.

mod dtd;
mod entity;
mod environment;
mod erlang;
mod lex;
mod lower;
mod repair;
mod subst;
mod xml;

use std::path::Path;

use simurgh_load_scenario::{Diagnostic, Diagnostics, Loaded, Overrides};

use environment::TEXT_BYTES_MAX;
pub use environment::{Environment, Host};

/// Parses a scenario of Tsung. Relative file names start from `base` (if there is no such file,
/// from the current directory, as in Tsung); of `overrides` only the flags for parsers are used.
/// The default seed is 1: unlike in Tsung, a run is repeatable by default. Returns all mistakes, in
/// the order of their lines.
pub fn read(text: &str, base: &Path, overrides: &Overrides) -> Result<Loaded, Diagnostics> {
    read_in(text, overrides, &Host::new(base))
}

/// As [`read`], with the names, files and addresses of another environment.
pub fn read_in(
    text: &str,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<Loaded, Diagnostics> {
    if text.len() > TEXT_BYTES_MAX {
        let what = format!("the file is larger than {TEXT_BYTES_MAX} bytes");
        return Err(Diagnostics(vec![Diagnostic::at(0, what)]));
    }
    let strict = overrides.strict;
    let mut warnings = Vec::new();
    let repaired = if strict { text.into() } else { repair::repair(text, &mut warnings) };
    let mut document =
        xml::parse(&repaired, environment).map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
    let mut diagnostics = dtd::check(&mut document, strict, &mut warnings);
    if diagnostics.is_empty() {
        match lower::lower(&document.root, overrides, environment, &mut warnings) {
            Ok(scenario) => {
                warnings.sort_by_key(|warning| warning.line);
                return Ok(Loaded { scenario, warnings });
            }
            Err(found) => diagnostics = found,
        }
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.line);
    Err(Diagnostics(diagnostics))
}
