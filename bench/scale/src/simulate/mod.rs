//! Simulations for what formulas do not cover, without servers and repeatable by seed.

pub mod beats;
pub mod envelopes;
pub mod interests;
pub mod random;
pub mod storm;
