//! Writes a scenario, so that it is read as the same again. Defaults are left out.

use super::keys::{Keys, TEXT, WEIGHT, Writer, bare, text};
use super::{tables, vars};
use crate::{DataFile, Scenario, Sources, Target, Timeouts, Tls};

/// Writes a scenario, which [`read`](super::read()) reads as the same, except for lines.
pub fn write(scenario: &Scenario) -> String {
    let writer = Writer { scenario, depth: 0, is_outline: false };
    let mut out = lines(&writer.keys(scenario, tables::top));
    let set = vars::set(scenario).into_iter().map(|var| usize::from(var.0));
    if !set.eq(0..scenario.vars.len()) {
        let names: Vec<_> = scenario.vars.iter().map(|name| text(name)).collect();
        out += &format!("vars = [{}]\n", names.join(", "));
    }
    let mut section = |header: &str, keys: Vec<(String, String)>| {
        out += &format!("\n{header}\n{}", lines(&keys));
    };
    for one in &scenario.targets {
        section("[[target]]", writer.keys(one, target));
    }
    if scenario.sources != Sources::default() {
        section("[sources]", writer.keys(&scenario.sources, tables::sources));
    }
    if scenario.timeouts != Timeouts::default() {
        section("[timeouts]", writer.keys(&scenario.timeouts, tables::timeouts));
    }
    for one in &scenario.agents {
        section("[[agent]]", writer.keys(one, tables::agent));
    }
    if scenario.tls != Tls::default() {
        section("[tls]", writer.keys(&scenario.tls, tables::tls));
    }
    if !scenario.files.is_empty() {
        section("[files]", scenario.files.iter().map(file).collect());
    }
    if let Some(run) = &scenario.tsung {
        section("[tsung]", writer.keys(run, tables::tsung));
    }
    for (at, one) in scenario.load.phases.iter().enumerate() {
        section("[[phase]]", writer.keys(one, |keys, one| tables::phase(keys, one, at)));
    }
    for one in &scenario.load.appointments {
        section("[[appointment]]", writer.keys(one, tables::appointment));
    }
    for (at, one) in scenario.sessions.iter().enumerate() {
        section("[[session]]", writer.keys(one, |keys, one| tables::session(keys, one, at)));
    }
    if !scenario.pass.is_empty() {
        section("[pass]", tables::pass_written(&scenario.pass));
    }
    out
}

fn lines(keys: &[(String, String)]) -> String {
    keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

fn target(keys: &mut Keys<'_, '_, '_>, target: &mut Target) {
    keys.needed("url", "", &mut url(target), TEXT);
    let address = (!is_address(target)).then(|| target.address.to_string());
    keys.optional("address", &mut { address }, TEXT);
    keys.key("weight", &mut target.weight, 1.0, WEIGHT);
}

fn url(target: &Target) -> String {
    let scheme = if target.tls { "wss" } else { "ws" };
    let user = target.credentials.as_ref().map_or(String::new(), |user| format!("{user}@"));
    let port = target.address.port();
    match &target.host {
        host if host.contains(':') => format!("{scheme}://{user}[{host}]:{port}"),
        host => format!("{scheme}://{user}{host}:{port}"),
    }
}

/// Whether the host is written as the address and needs no lookup.
fn is_address(target: &Target) -> bool {
    target.host.parse() == Ok(target.address.ip())
}

pub(super) fn target_name(index: usize, scenario: &Scenario) -> String {
    let target = scenario.targets.get(index).filter(|target| is_address(target));
    let first = |target: &&Target| scenario.targets.iter().position(|one| one.is_same(target));
    match target.filter(|target| first(target) == Some(index)) {
        Some(target) => text(&url(target)),
        None => (index + 1).to_string(),
    }
}

fn file(file: &DataFile) -> (String, String) {
    let rows = file.rows.iter().map(|row| text(&String::from_utf8_lossy(row.as_bytes())));
    let rows = || format!("[{}]", rows.collect::<Vec<_>>().join(", "));
    (bare(&file.name), file.path.as_deref().map_or_else(rows, text))
}
