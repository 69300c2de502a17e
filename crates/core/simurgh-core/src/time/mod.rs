//! Schedules: when records are swept, when channels are asked to hibernate, how fast a drain is.
//! Each is asked at the end of a turn what is due, so none needs a timer.

mod drain;
mod expiry;
mod hibernation;
mod sweep;

pub use drain::DRAIN_GRACE;
pub(crate) use drain::{Drain, Step};
pub(crate) use expiry::Expiry;
pub(crate) use hibernation::{Cursor, Hibernation};
pub(crate) use sweep::Sweep;
