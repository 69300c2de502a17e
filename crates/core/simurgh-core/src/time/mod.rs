//! What comes with time: when records are swept, when channels are asked to hibernate, how fast a
//! drain goes. Each is a small clockwork that is asked at the end of turns what is due; nobody has
//! a timer of its own.

mod drain;
mod expiry;
mod hibernation;
mod sweep;

pub use drain::DRAIN_GRACE;
pub(crate) use drain::{Drain, Step};
pub(crate) use expiry::Expiry;
pub(crate) use hibernation::{Hand, Hibernation};
pub(crate) use sweep::Sweep;
