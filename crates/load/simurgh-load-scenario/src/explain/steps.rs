//! Shows steps in the native language, one on each line.

use std::fmt::Write;

use simurgh_load_client::http::Url;
use simurgh_text::{cut, format};

use crate::toml::outline;
use crate::{Dialect, Scenario, Step, Vsn};

/// Longer steps are cut.
const COLUMNS_MAX: usize = 100;

pub(super) fn write(out: &mut String, scenario: &Scenario, steps: &[Step], depth: usize) {
    for step in steps {
        let indent = "  ".repeat(depth);
        let line = if step.line > 0 { format!("line {:<4}", step.line) } else { String::new() };
        let text = Url::without_credentials(&outline(&step.act, scenario));
        let _ = writeln!(out, "{indent}{line}{}", cut(&text, COLUMNS_MAX));
        write(out, scenario, step.act.steps(), depth + 1);
    }
}

pub(super) fn dialect(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Raw => "plain frames",
        Dialect::Phoenix(Vsn::V1) => "Phoenix V1",
        Dialect::Phoenix(Vsn::V2) => "Phoenix V2",
        Dialect::Tsung => "as Tsung does it",
        Dialect::Other(protocol) => protocol.name(),
    }
}

pub(super) fn count(number: f64) -> String {
    format::number(number.max(0.0).round())
}

pub(super) fn of(number: f64, thing: &str) -> String {
    let number = count(number);
    match (number.as_str(), thing.ends_with('s')) {
        ("1", _) => format!("1 {thing}"),
        (_, true) => format!("{number} {thing}es"),
        (_, false) => format!("{number} {thing}s"),
    }
}
