//! Scenarios: their one checked form, and how they are written, read and changed.

mod apply;
mod check;
mod explain;
mod fault;
mod load;
mod model;
mod overrides;
mod plan;
mod resolve;
mod say;
mod step;
mod template;
mod walk;

pub use apply::apply;
pub use check::check;
pub use explain::{Machine, explain};
pub use fault::*;
pub use load::{load, read_rows};
pub use model::*;
pub use overrides::*;
pub use resolve::{mapped, resolve};
pub use step::*;
pub use template::*;
