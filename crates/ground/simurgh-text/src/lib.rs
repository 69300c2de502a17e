//! Texts of simurgh's tools: figures as people read them, and mistakes in files.
//!
//! [`format`](mod@format) writes all numbers, sizes and times of terminals and pages;
//! [`Diagnostic`] is a mistake in a file with its line; `toml` (a feature) reads TOML and finds
//! all mistakes at once.

mod diagnostic;
pub mod format;
#[cfg(feature = "toml")]
pub mod toml;

pub use diagnostic::{Diagnostic, Diagnostics};
