//! What is played through in place of being worked out. Nothing here needs a server, and the same
//! seed gives the same.

pub mod beats;
pub mod chance;
pub mod envelopes;
pub mod interests;
pub mod storm;
