//! The prices: one file, in which each figure says where it was measured, or that it was not.

use anyhow::{Context, Result};
use serde::Deserialize;

const FILE: &str = include_str!("../prices.toml");

/// One price. `bench/scale/prices.toml` describes the fields.
#[derive(Debug, Deserialize)]
pub(crate) struct Price {
    name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    kind: String,
    pub(crate) what: String,
    pub(crate) source: String,
    #[serde(default)]
    at: f64,
}

/// All prices, those of one name in the order of `at`.
#[derive(Debug, Deserialize)]
pub(crate) struct Prices {
    price: Vec<Price>,
}

impl Price {
    /// Seconds for times, else the value unchanged.
    fn plain(&self) -> f64 {
        match self.unit.as_str() {
            "ns" => self.value / 1e9,
            "µs" => self.value / 1e6,
            _ => self.value,
        }
    }
}

impl Prices {
    pub(crate) fn read() -> Result<Self> {
        toml::from_str(FILE).context("prices.toml")
    }

    /// The prices that nobody has measured.
    pub(crate) fn assumed(&self) -> impl Iterator<Item = &Price> {
        self.price.iter().filter(|price| price.kind == "assumed")
    }

    /// A price that does not depend on the number of clients; NaN if there is none.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.at(name, 0.0)
    }

    /// A price with this many clients on a server: interpolated between two measurements, and the
    /// nearest one beyond them.
    pub(crate) fn at(&self, name: &str, clients: f64) -> f64 {
        let mut below: Option<&Price> = None;
        for price in self.price.iter().filter(|price| price.name == name) {
            match below {
                _ if price.at < clients => below = Some(price),
                None => return price.plain(),
                Some(less) => {
                    let share = (clients - less.at) / (price.at - less.at);
                    return less.plain() + (price.plain() - less.plain()) * share;
                }
            }
        }
        below.map_or(f64::NAN, Price::plain)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn quoted_measurement_exists_in_its_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file: toml::Table = toml::from_str(FILE).unwrap();
        for price in file["price"].as_array().unwrap() {
            let field = |name: &str| price.get(name).and_then(toml::Value::as_str);
            let (source, quote) = (field("source").unwrap(), field("quote"));
            let is_here = ["measured", "design"].contains(&field("kind").unwrap());
            assert_eq!(quote.is_some(), is_here, "{source}");
            let Some(quote) = quote else { continue };
            let text = std::fs::read_to_string(root.join(source)).unwrap();
            assert!(text.contains(quote), "{source} has no {quote:?}");
        }
    }
}
