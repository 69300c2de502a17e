//! Runs scenarios against servers made by hand, and holds every run to the sums that must come
//! out whatever the server does.
#![allow(unused_imports, unreachable_pub, reason = "each test file uses a part of it")]

mod ran;
mod secure;
mod server;

pub use ran::*;
pub use secure::*;
pub use server::*;
