//! What flags change in a scenario.

use std::time::Duration;

use super::{AddressRange, Spread};

/// Flags that win over the text. The readers use `map`, `targets`, `local`, `strict` and
/// `exclude_tags`; [`apply`](crate::apply()) puts the rest into the finished scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `--map HOST=ADDR`: another host (or `host:port`) for a name of the text.
    pub map: Vec<(String, String)>,
    /// `--target`: URLs of servers in the place of those that the text names.
    pub targets: Vec<String>,
    /// `--spread`.
    pub spread: Option<Spread>,
    /// `--local`: all clients become local workers.
    pub local: bool,
    /// `--strict`: as Tsung's DTD has it, and no repairs.
    pub strict: bool,
    /// `-x TAG`: requests of these tags are left out.
    pub exclude_tags: Vec<String>,
    /// `--max-users`.
    pub users_max: Option<u64>,
    /// `--duration`.
    pub duration: Option<Duration>,
    /// `--rate`: users per second, in all phases.
    pub rate: Option<f64>,
    /// `--seed`.
    pub seed: Option<u64>,
    /// `--source`.
    pub sources: Vec<AddressRange>,
    /// `--insecure`.
    pub insecure: bool,
}
