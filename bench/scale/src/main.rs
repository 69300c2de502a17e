//! `cargo xtask scale`.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use simurgh_scale::args::Options;
use simurgh_scale::document;
use simurgh_scale::prices::Prices;
use simurgh_scale::tables::Plans;

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
    let plans = Plans::new(
        &options.loads()?,
        &options.machines()?,
        &prices,
        options.costs,
        (!options.formulas_only).then_some(options.seed),
    );
    if options.write {
        return document::write(&plans);
    }
    for (name, table) in plans.tables() {
        println!("# {name}\n\n{table}");
    }
    Ok(())
}
