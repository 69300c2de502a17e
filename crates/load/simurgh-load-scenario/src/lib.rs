//! Scenarios: the checked model, and how it is parsed, written and changed.

pub mod answer;
mod check;
mod explain;
pub mod figures;
mod model;
mod overrides;
pub mod placement;
mod protocol;
mod rows;
mod step;
mod template;
pub mod toml;
mod walk;

pub use check::check;
pub use explain::{Machine, explain};
pub use model::*;
pub use overrides::*;
pub use protocol::Protocol;
pub use rows::{Row, read_rows, rows_of};
pub use simurgh_load_client::http::Url;
pub use simurgh_load_client::{AddressRange, Sources, Tls, mapped, resolve};
pub use simurgh_text::{Diagnostic, Diagnostics};
pub use step::*;
pub use template::*;
