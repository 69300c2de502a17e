//! What messages mean to the two ends of a socket, with no I/O and no clock.
//!
//! * [`server`] is the decision table of PROTOCOL §5–§7 and the table of refs in §3.
//! * [`client`] is a virtual client: it numbers its messages and knows what answers them.
pub mod client;
pub mod server;
