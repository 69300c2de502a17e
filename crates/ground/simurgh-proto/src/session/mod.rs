//! The meaning of messages for the two ends of a socket, without I/O and clock.
//!
//! * [`server`] is the decision table of PROTOCOL §5–§7 and the table of refs in §3.
//! * [`client`] is a virtual client: it numbers its messages and matches their answers.
pub mod client;
pub mod server;
