//! Outputs that are written while the run goes on, and made again from its journal.

mod outputs;

pub use outputs::{Exporter, Outputs};
