//! Numbers, sizes and times of simurgh's commands and tools, their output, and errors in files.
//!
//! [`format`](mod@format) writes all figures of terminals and pages; [`Diagnostic`] is an error in
//! a file with its line; `toml` (a feature) reads TOML and finds all errors at once.

mod diagnostic;
pub mod format;
pub mod output;
mod terminal;
#[cfg(feature = "toml")]
pub mod toml;
mod values;

pub use diagnostic::{Diagnostic, Diagnostics};
pub use terminal::{cut, visible, wrapped};
pub use values::{
    Choice, bytes_at_least_one, duration, duration_or_zero, parse_bytes, whole, word_or,
};
