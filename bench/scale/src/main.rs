//! `cargo xtask scale`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use simurgh_scale::args::Options;
use simurgh_scale::document;
use simurgh_scale::prices::Prices;
use simurgh_scale::tables::Scene;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    ensure!(
        !options.write || options.is_plain(),
        "--write is for the tables of the document: it takes no other flag"
    );
    let prices = Prices::read(options.prices.as_deref())?;
    let scene = Scene::new(
        &options.loads()?,
        &options.machines()?,
        &prices,
        options.costs,
        (!options.formulas_only).then_some(options.seed),
    );
    if options.write {
        return document::write(&scene);
    }
    for (name, table) in scene.tables() {
        println!("# {name}\n\n{table}");
    }
    Ok(())
}
