//! The native language of scenarios. `reference.txt` lists every key with its values and an
//! example; docs/SCENARIOS.md is made from it. `simurgh load init` prints a commented example.

mod answer;
mod keys;
mod read;
mod reference;
mod steps;
mod tables;
mod target;
mod template;
mod units;
mod vars;
mod verbs;
mod write;

pub use answer::XPATH_HELP;
pub(crate) use keys::text;
pub use read::read;
pub use reference::reference;
pub(crate) use steps::{matcher, outline};
pub use tables::spread;
pub use target::url as target_url;
pub(crate) use template::print as print_template;
pub use units::{address_range, rate};
pub use write::write;

#[cfg(test)]
pub(crate) mod tests;
