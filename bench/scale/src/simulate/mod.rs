//! What is simulated in place of being worked out. Nothing here needs a server, and the same seed
//! gives the same.

pub mod beats;
pub mod envelopes;
pub mod interests;
pub mod random;
pub mod storm;
