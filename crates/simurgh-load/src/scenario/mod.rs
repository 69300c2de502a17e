//! Scenarios: their one checked form, and how they are written, read and changed.

mod fault;
mod model;
mod overrides;
mod step;
mod template;

pub use fault::*;
pub use model::*;
pub use overrides::*;
pub use step::*;
pub use template::*;
