//! Broadcasts: added to a topic's log, and sent to its members in slices at the end of turns.
//!
//! A topic numbers its broadcasts; each member keeps a cursor, the number of the next one it is to
//! get. A member that joined at number s therefore gets exactly the broadcasts from s on, in order,
//! however the fan-out is cut into slices. A pass over the topic's table sends each member
//! everything from its cursor on, in one write of bytes that were encoded once: a burst of messages
//! costs little more than one. A member is brought up to date before another message is written to
//! it, so slices never change an order that PROTOCOL §6 promises.
//!
//! Broadcasts that go to application code are not delivered here but returned to the caller
//! ([`ChannelDelivery`]).

mod backlog;
mod batch;
mod deliver;
mod delivery;
mod interest;
mod log;
mod publish;
mod slice;
mod state;

pub(crate) use deliver::ChannelDelivery;
pub(crate) use delivery::{Delivery, Registry};
pub(crate) use publish::Spread;
pub(crate) use state::Fanout;

#[cfg(test)]
mod tests;
