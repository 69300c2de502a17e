//! How the commands of `simurgh` read and write numbers, sizes and times, and print their results.

mod figures;
pub mod output;
mod values;

pub use figures::{bytes, cut, decimal, grouped, span, table, time, visible, wrapped};
pub use values::{
    Choice, bytes_at_least_one, duration, duration_or_zero, parse_bytes, whole, word_or,
};
