//! Servers, scenarios and runs that several test files use.

pub(crate) mod hub;
pub(crate) mod made_up;
pub(crate) mod schema;
pub(crate) mod tsung;
