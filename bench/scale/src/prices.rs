//! The prices: one file, in which each figure says where it was measured, or that it was not.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const FILE: &str = include_str!("../prices.toml");

/// The origin of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measured in this repository.
    Measured,
    /// A constant of this repository.
    Design,
    /// Measured for the contract, on the same machine.
    Contract,
    /// Documented by others.
    Documented,
    /// Not measured.
    Assumed,
}

impl Kind {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Design => "design",
            Self::Contract => "contract",
            Self::Documented => "documented",
            Self::Assumed => "**assumed**",
        }
    }
}

/// One price.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Its name in the formulas.
    pub name: String,
    /// The value in its unit.
    pub value: f64,
    /// `B`, `ns`, `µs`, `s`, or the things counted.
    pub unit: String,
    /// Its origin.
    pub kind: Kind,
    /// The priced item.
    pub what: String,
    /// Its source: a path of this repository, or a reference.
    pub source: String,
    /// A quotation of that file.
    pub quote: Option<String>,
    /// The clients on one server that it was measured with.
    pub at: Option<f64>,
}

impl Price {
    /// Seconds for times, bytes for bytes, else unchanged.
    fn plain(&self) -> f64 {
        match self.unit.as_str() {
            "ns" => self.value / 1e9,
            "µs" => self.value / 1e6,
            _ => self.value,
        }
    }
}

#[derive(Deserialize)]
struct Table {
    machine: Option<String>,
    #[serde(default)]
    price: Vec<Price>,
}

/// All prices.
#[derive(Clone, Debug)]
pub struct Prices {
    /// The machine they were measured on.
    pub machine: String,
    all: Vec<Price>,
    /// Indices of the prices of one name, by `at`.
    by_name: BTreeMap<String, Vec<usize>>,
}

impl Prices {
    /// The prices of the repository, replaced by those that a file names. It is an error if the
    /// file cannot be read, is not a table of prices, or has an unknown name.
    pub fn read(own: Option<&Path>) -> Result<Self> {
        let mut prices = Self::parse(FILE)?;
        let Some(path) = own else { return Ok(prices) };
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        let table: Table = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
        for price in &table.price {
            let known = prices.by_name.contains_key(&price.name);
            ensure!(known, "{}: there is no price {:?}", path.display(), price.name);
            prices.all.retain(|it| it.name != price.name);
        }
        prices.all.extend(table.price);
        Self::of(table.machine.unwrap_or(prices.machine), prices.all)
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Table = toml::from_str(text).context("prices.toml")?;
        Self::of(table.machine.unwrap_or_default(), table.price)
    }

    fn of(machine: String, all: Vec<Price>) -> Result<Self> {
        let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, price) in all.iter().enumerate() {
            ensure!(
                price.value.is_finite() && price.value >= 0.0,
                "{}: {}",
                price.name,
                price.value
            );
            by_name.entry(price.name.clone()).or_default().push(at);
        }
        let clients = |at: &usize| all.get(*at).and_then(|it| it.at).unwrap_or_default();
        for places in by_name.values_mut() {
            places.sort_by(|one, other| clients(one).total_cmp(&clients(other)));
        }
        Ok(Self { machine, all, by_name })
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Price> {
        self.all.iter()
    }

    /// A price that does not depend on the clients of a server, in seconds, bytes, or unchanged. A
    /// test compares the names of the file with all names that the formulas use.
    pub fn get(&self, name: &str) -> f64 {
        self.at(name, 0.0)
    }

    /// A price with this many clients on a server.
    pub fn at(&self, name: &str, clients: f64) -> f64 {
        let places = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let points = places.iter().filter_map(|at| self.all.get(*at));
        let mut below: Option<(f64, f64)> = None;
        for (at, value) in points.map(|it| (it.at.unwrap_or_default(), it.plain())) {
            match below {
                _ if at < clients => below = Some((at, value)),
                None => return value,
                Some((under, less)) => {
                    return less + (value - less) * (clients - under) / (at - under);
                }
            }
        }
        below.map_or(f64::NAN, |(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn what_is_measured_stands_word_for_word_where_the_price_says() {
        let prices = Prices::read(None).unwrap();
        for price in prices.iter() {
            let is_here = matches!(price.kind, Kind::Measured | Kind::Design);
            assert_eq!(price.quote.is_some(), is_here, "{}", price.name);
            let Some(quote) = &price.quote else { continue };
            let text = std::fs::read_to_string(root().join(&price.source));
            let text = text.unwrap_or_else(|why| panic!("{}: {why}", price.source));
            assert!(text.contains(quote), "{}: {} has no {quote:?}", price.name, price.source);
        }
    }

    /// The file has every name that the formulas use, and no others.
    #[test]
    fn formulas_and_file_have_the_same_names() {
        let prices = Prices::read(None).unwrap();
        let mut sources = String::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => sources += &std::fs::read_to_string(entry.path()).unwrap(),
                }
            }
        }
        for price in prices.iter() {
            let asked = ["get(\"", "at(\"", "price(\""].map(|it| format!("{it}{}\"", price.name));
            assert!(asked.iter().any(|it| sources.contains(it)), "{} is not used", price.name);
        }
        for part in sources.split("prices.get(\"").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(prices.by_name.contains_key(name), "{name} is not in the file");
        }
    }

    #[test]
    fn between_two_sizes_a_price_is_interpolated_and_beyond_them_it_stands_still() {
        let prices = Prices::read(None).unwrap();
        let at = |clients| prices.at("delivery_cpu", clients) * 1e6;
        assert!((at(1.0) - 7.58).abs() < 1e-9 && (at(9e6) - 22.31).abs() < 1e-9);
        assert!((at(1_750_000.0) - (14.21 + 22.31) / 2.0).abs() < 1e-9);
        assert!((at(1e6) - 14.21).abs() < 1e-9);
    }

    #[test]
    fn a_file_of_ones_own_may_change_what_there_is_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("simurgh-scale-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let write = |name: &str| {
            let path = dir.join("prices.toml");
            let text = format!(
                "[[price]]\nname = \"{name}\"\nvalue = 7\nunit = \"µs\"\nkind = \"measured\"\n\
                 what = \"w\"\nsource = \"s\"\n"
            );
            std::fs::write(&path, text).unwrap();
            Prices::read(Some(&path))
        };
        let own = write("delivery_cpu").unwrap();
        assert!((own.at("delivery_cpu", 5e6) - 7e-6).abs() < 1e-12);
        assert!(write("delivery_cost").unwrap_err().to_string().contains("delivery_cost"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
