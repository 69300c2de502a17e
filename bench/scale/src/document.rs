//! The tables of docs/SCALE.md: each stands between two comments that name it, and a test makes all
//! of them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::tables::Scene;

const BEGIN: &str = "<!-- table: scale ";
const CLOSE: &str = " -->\n";
const END: &str = "<!-- end of table -->";

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SCALE.md")
}

/// Puts the tables into the document.
///
/// # Errors
/// It cannot be read or written, or does not have exactly the tables that there are.
pub fn write(scene: &Scene<'_>) -> Result<()> {
    let path = path();
    let text = std::fs::read_to_string(&path).context("docs/SCALE.md")?;
    std::fs::write(&path, made_again(&text, &scene.tables())?).context("docs/SCALE.md")
}

/// The text with each table made again.
fn made_again(text: &str, tables: &[(&'static str, String)]) -> Result<String> {
    let mut left: BTreeMap<&str, &str> =
        tables.iter().map(|(name, table)| (*name, table.as_str())).collect();
    let (mut fresh, mut rest) = (String::new(), text);
    while let Some((before, from)) = rest.split_once(BEGIN) {
        let Some((name, from)) = from.split_once(CLOSE) else { bail!("a table without a name") };
        let Some((_, behind)) = from.split_once(END) else { bail!("no end of the table {name}") };
        let table = left.remove(name).with_context(|| format!("there is no table {name}"))?;
        fresh += &format!("{before}{BEGIN}{name}{CLOSE}{table}{END}");
        rest = behind;
    }
    ensure!(left.is_empty(), "tables without a place: {:?}", left.keys());
    Ok(fresh + rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Options;
    use crate::prices::Prices;

    /// As `cargo xtask scale --write` makes it, simulations included.
    #[test]
    fn the_document_has_what_the_command_prints() {
        let options = Options { seed: 1, ..Options::default() };
        let prices = Prices::read(None).unwrap();
        let (loads, machines) = (options.loads().unwrap(), options.machines().unwrap());
        let scene = Scene::new(&loads, &machines, &prices, options.costs, Some(options.seed));
        let text = std::fs::read_to_string(path()).unwrap();
        let fresh = made_again(&text, &scene.tables()).unwrap();
        let differs = text.lines().zip(fresh.lines()).find(|(is, made)| is != made);
        assert!(text == fresh, "cargo xtask scale --write: {differs:?}");
    }

    #[test]
    fn what_is_written_by_hand_stays_and_no_table_is_lost() {
        let text = "a\n<!-- table: scale x -->\nold\n<!-- end of table -->\nb\n";
        let fresh = made_again(text, &[("x", "new\n".to_owned())]).unwrap();
        assert_eq!(fresh, "a\n<!-- table: scale x -->\nnew\n<!-- end of table -->\nb\n");
        assert!(made_again(text, &[]).is_err());
        let two = [("x", String::new()), ("y", String::new())];
        assert!(made_again(text, &two).unwrap_err().to_string().contains('y'));
        assert!(made_again("<!-- table: scale x -->\nold", &two).is_err());
    }
}
