//! The engine.

mod schedule;
mod wheel;
