//! `cargo xtask scale`: the machines for a load, computed from measured prices.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use simurgh_text::format::{aligned, bytes, number, scaled};

use plan::{Load, Part, Plan, sum};
use prices::Prices;

mod plan;
mod prices;

const LOADS: &str = include_str!("../loads.toml");
const USAGE: &str = "\
Usage: cargo xtask scale [LOAD] [NAME=VALUE]...

Computes nodes, memory, CPU and NATS traffic for a load. LOAD is lobby, chat, notifications or
pages; without it all four are shown. NAME=VALUE changes a value: bench/scale/loads.toml lists
all names.

  cargo xtask scale chat clients=5e6 rooms=1e5 nodes=20

A cluster per part of the topics (a cell): compute one with its part of clients and rooms.
docs/SCALE.md explains the figures and their limits.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("scale: {error:#}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[String]) -> Result<String> {
    let names = ["lobby", "chat", "notifications", "pages"];
    let loads = match words {
        [] => names.iter().map(|name| load(&[(*name).to_owned()])).collect::<Result<Vec<_>>>()?,
        words => vec![load(words)?],
    };
    let prices = Prices::read()?;
    let plans: Vec<Plan> = loads.iter().map(|load| Plan::new(load, &prices)).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for figures in plans.iter().map(figures) {
        rows.resize_with(figures.len(), Vec::new);
        for (row, (name, figure)) in rows.iter_mut().zip(figures) {
            if row.is_empty() {
                row.push(name);
            }
            row.push(figure);
        }
    }
    let mut text = aligned(&rows, |column| column == 0);
    for plan in &plans {
        text += &format!("\n{}, most used limits first:\n", plan.load.name);
        for (name, used) in plan.limits(&prices).into_iter().take(8) {
            text += &format!("{:>7} %  {name}\n", number((used * 100.0).round()));
        }
    }
    text += "\nAssumed, and measured by nobody:\n";
    for price in prices.assumed() {
        text += &format!("- {}: {} {} ({})\n", price.what, price.value, price.unit, price.source);
    }
    Ok(text)
}

/// The load of these words: a name, and changes of its values.
fn load(words: &[String]) -> Result<Load> {
    let mut loads: toml::Table = toml::from_str(LOADS).context("loads.toml")?;
    let mut take = |name: &str| loads.remove(name).and_then(|load| load.as_table().cloned());
    let mut load = take("defaults").unwrap_or_default();
    let is_name = |word: &&String| !word.contains('=');
    let name = words.iter().find(is_name).map_or("chat", String::as_str);
    ensure!(words.iter().filter(is_name).count() <= 1, "more than one load");
    load.extend(take(name).with_context(|| format!("there is no load {name:?}"))?);
    load.insert("name".to_owned(), name.into());
    let changes: Vec<&str> =
        words.iter().map(String::as_str).filter(|it| it.contains('=')).collect();
    load.extend(toml::from_str::<toml::Table>(&changes.join("\n"))?);
    let load = Load::deserialize(load)?;
    ensure!(load.clients > 0.0 && load.session > 0.0, "clients and session must be more than 0");
    Ok(load)
}

fn count(value: f64) -> String {
    if value >= 9_995.0 { scaled(value, "") } else { number(value) }
}

fn cores(value: f64) -> String {
    format!("{} cores", number((value * 1e3).round() / 1e3))
}

/// The figures of a plan and their names.
fn figures(plan: &Plan) -> Vec<(String, String)> {
    let load = &plan.load;
    let bits = |value: f64| scaled(value, "bit/s");
    let named = |name: &str, text: String| (name.to_owned(), text);
    let parts = |parts: &[Part], show: fn(f64) -> String| -> Vec<(String, String)> {
        parts.iter().map(|(name, value)| (format!("  {name}"), show(*value))).collect()
    };
    let mut all = vec![
        named("", load.name.clone()),
        named("clients", count(load.clients)),
        named("published a second", count(load.published())),
        named("delivered a second", count(load.delivered())),
        named("presence to clients a second", count(load.presence_delivered())),
        named("nodes", count(plan.nodes)),
        named("clients of a node", count(plan.clients())),
        named("memory of a node", bytes(sum(&plan.memory))),
    ];
    all.extend(parts(&plan.memory, bytes));
    all.push(named("CPU of a node", cores(sum(&plan.cpu))));
    all.extend(parts(&plan.cpu, cores));
    all.extend([
        named("network of a node: clients", bits(plan.bits.0)),
        named("network of a node: brokers", bits(plan.bits.1)),
        named("topics of a node", count(plan.topics)),
        named("broadcasts received by a node a second", count(plan.flows.heard)),
        named("of these with a member", count(plan.flows.wanted)),
        named("brokers", count(plan.brokers.servers)),
        named("CPU of all brokers", cores(plan.brokers.cores)),
        named("copies to nodes a second", count(plan.brokers.copies.0)),
        named("copies between brokers a second", count(plan.brokers.copies.1)),
        named("network of a broker", bits(plan.brokers.bits)),
        named("stored a second", count(load.stored())),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_change_a_load_and_errors_name_the_mistake() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let changed = load(&words("rate=2.5 nodes=7 clients=5_000_000")).unwrap();
        let plan = Plan::new(&changed, &Prices::read().unwrap());
        assert_eq!((changed.name.as_str(), changed.clients, plan.nodes), ("chat", 5e6, 7.0));
        assert!((changed.published() - 2e6 * 2.5).abs() < 1.0);
        for (text, part) in [
            ("mall", "no load \"mall\""),
            ("chat pages", "more than one"),
            ("chat rates=1", "rates"),
            ("clients=0", "more than 0"),
        ] {
            let error = format!("{:#}", load(&words(text)).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
