//! Simulations for what formulas do not cover. Nothing here needs a server, and the same seed gives
//! the same result.

pub mod beats;
pub mod envelopes;
pub mod interests;
pub mod random;
pub mod storm;
