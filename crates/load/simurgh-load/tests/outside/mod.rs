//! Runs scenarios against test servers, and checks the sums that every run must have.
#![allow(unused_imports, unreachable_pub, reason = "each test file uses a part of it")]

mod ran;
mod secure;
mod server;

pub use ran::*;
pub use secure::*;
pub use server::*;
