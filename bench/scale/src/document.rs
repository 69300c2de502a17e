//! The tables of docs/SCALE.md, each between two comments that name it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use simurgh_bench_kit::pages::with_fresh_tables;

use crate::tables::Plans;

const PREFIX: &str = "scale ";

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SCALE.md")
}

/// Puts the tables into the document; an error if that has other tables than these.
pub fn write(plans: &Plans<'_>) -> Result<()> {
    let path = path();
    let text = std::fs::read_to_string(&path).context("docs/SCALE.md")?;
    std::fs::write(&path, with_tables(&text, &plans.tables())?).context("docs/SCALE.md")
}

/// The text with its tables replaced by these.
fn with_tables(text: &str, tables: &[(&'static str, String)]) -> Result<String> {
    let mut left: BTreeMap<&str, &str> =
        tables.iter().map(|(name, table)| (*name, table.as_str())).collect();
    let fresh = with_fresh_tables(text, |name| {
        let table = name.strip_prefix(PREFIX).and_then(|name| left.remove(name));
        Ok(table.with_context(|| format!("there is no table {name}"))?.to_owned())
    })?;
    ensure!(left.is_empty(), "tables without a place: {:?}", left.keys());
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Options;
    use crate::prices::Prices;

    /// The document must equal the output of `cargo xtask scale --write`, simulations included.
    #[test]
    fn the_document_has_what_the_command_prints() {
        let options = Options { seed: 1, ..Options::default() };
        let prices = Prices::read(None).unwrap();
        let (loads, machines) = (options.loads().unwrap(), options.machines().unwrap());
        let plans = Plans::new(&loads, &machines, &prices, options.costs, Some(options.seed));
        let text = std::fs::read_to_string(path()).unwrap();
        let fresh = with_tables(&text, &plans.tables()).unwrap();
        let differs = text.lines().zip(fresh.lines()).find(|(is, made)| is != made);
        assert!(text == fresh, "cargo xtask scale --write: {differs:?}");
    }

    #[test]
    fn what_is_written_by_hand_stays_and_no_table_is_lost() {
        let text = "a\n<!-- table: scale x -->\nold\n<!-- end of table -->\nb\n";
        let fresh = with_tables(text, &[("x", "new\n".to_owned())]).unwrap();
        assert_eq!(fresh, "a\n<!-- table: scale x -->\nnew\n<!-- end of table -->\nb\n");
        assert!(with_tables(text, &[]).is_err());
        let two = [("x", String::new()), ("y", String::new())];
        assert!(with_tables(text, &two).unwrap_err().to_string().contains('y'));
        assert!(with_tables("<!-- table: scale x -->\nold", &two).is_err());
    }
}
