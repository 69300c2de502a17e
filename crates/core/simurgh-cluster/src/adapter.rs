//! The interface of a broker, which carries envelopes between nodes.
//!
//! An adapter never blocks and never calls back. It works in the background; its events are polled
//! with [`Adapter::poll_event`]. An adapter bounds its queues: publishing by [`QueueFull`],
//! receiving by reading no more from its broker, or by dropping messages and reporting that
//! ([`Event::Lost`]).

use core::task::{Context, Poll};
use core::time::Duration;

use bytes::Bytes;

use crate::durations::Durations;
use crate::node_id::NodeId;
use crate::subject::{Interest, Space, Subject};
use simurgh_data::prelude::*;

/// The most unconfirmed published envelopes; one more is [`QueueFull`].
pub const IN_FLIGHT_MAX: usize = 1_024;
/// The most bytes of unconfirmed published envelopes; a single envelope may be larger.
pub const IN_FLIGHT_BYTES_MAX: usize = 1 << 20;
/// Seconds within which every ticket is answered.
pub const TICKET_SECONDS_MAX: u64 = 9;
/// The most tickets that wait for their answer or for it to be polled; one more is [`QueueFull`].
pub const TICKETS_MAX: usize = 1_024;
/// The most subjects of one [`Fetch::LastOf`]; further ones are ignored.
pub const LAST_OF_MAX: usize = 1_000;
/// Seconds for which the broker remembers the id of a stored envelope.
pub const ID_SECONDS: u64 = 120;
/// The longest id of a stored envelope, in bytes.
pub const ID_BYTES_MAX: usize = 256;

/// A broker, as one node uses it. This project's adapter tests check every adapter against this
/// contract.
///
/// # Envelopes
/// Their bytes arrive unchanged, an empty envelope included, with one exception: the adapter sets
/// [`Flags::RESENT`](crate::Flags::RESENT) in an envelope that it sends again over another link, if
/// it is as long as a header ([`resent`](crate::resent)). To recognize duplicates, an adapter may
/// read origin and number in the header of envelopes that have its version
/// ([`Header`](crate::Header)). It reads nothing else in them.
///
/// # What may be lost
/// While no adapter reports [`Event::Down`] or [`Event::Lost`] and the publisher's adapter reports
/// no `Down`, everything arrives. An [`Event::Up`] after a `Down` means that messages of *any*
/// interest may have been lost, beginning some time before the `Down`: a link is dead for seconds
/// before the adapter notices. No `Lost` is reported for those.
pub trait Adapter: Send {
    /// Connects in the background, and again after each link that breaks. Called once, before
    /// everything else. The node receives messages for [`Interest::Nodes`] and its own
    /// [`Interest::Node`] only if it subscribes to them.
    fn start(&mut self, me: NodeId);

    /// Sends an envelope to all other nodes that subscribe to the subject: at most once to each,
    /// and those of one topic in the order of the calls, also over a link that broke. Without a
    /// link it is queued, and sent after the next [`Event::Up`].
    ///
    /// What a broken link may have lost is sent again, all of it in the same order and before
    /// anything newer. So there is one exception to "once": after its publisher's reconnect a
    /// receiver may receive the last envelopes again, at most [`IN_FLIGHT_MAX`], as in 3, 4, 5, 3,
    /// 4, 5, 6. An envelope that is sent again is marked. A receiver that drops every number not
    /// above the highest of that publisher and subject receives each once, in order.
    ///
    /// # Errors
    /// The limit of envelopes or bytes in flight is reached ([`IN_FLIGHT_MAX`],
    /// [`IN_FLIGHT_BYTES_MAX`]); the envelope is not taken. [`Event::Room`] is reported when there
    /// is room.
    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull>;

    /// Has the broker store an envelope. The subject is of [`Space::Store`], or of the log of
    /// notices ([`Prefix::log`](crate::Prefix::log)). The adapter repeats it until it is answered,
    /// always within [`TICKET_SECONDS_MAX`], by [`Event::Stored`] or [`Event::NotStored`]. The same
    /// id again within [`ID_SECONDS`] stores nothing and is answered with the first one's number; a
    /// broker may do so across subjects, so an id is for one subject. An envelope of a topic is
    /// delivered to all nodes that subscribe to the topic's broadcasts, this one included, before
    /// or after the answer; one of the log to none. It is sent unchanged and never marked:
    /// duplicates are recognized by its id.
    ///
    /// The broker may remove it after `age`, in whole seconds and at least one; without, by its own
    /// limits. It removes nothing of the log. An id has no line breaks, and at most
    /// [`ID_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The limit of open tickets is reached ([`TICKETS_MAX`]). [`Event::Room`] is reported when
    /// there is room.
    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull>;

    /// Has the broker remove the messages below this number from such a subject; numbers do
    /// not restart. Always answered by [`Event::Purged`] within [`TICKET_SECONDS_MAX`].
    ///
    /// # Errors
    /// The limit of open tickets is reached. [`Event::Room`] is reported when there is room.
    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull>;

    /// Changes what this node subscribes to. Returns the number of this change, one more than the
    /// last, even if it changes nothing. Interests are a set: an interest that is wanted twice is
    /// wanted once.
    ///
    /// The changes of one call are one step: what is wanted before and after it, by whatever
    /// interest, is received without a gap, once, and in each publisher's order. A message that
    /// several interests cover is received once. The last change of an interest in a call counts.
    ///
    /// [`Event::InForce`] with the number, or a later one, means that the broker has it: what
    /// another node publishes after that is received, and nothing that is no longer wanted. Without
    /// a link the change is remembered and takes effect at the next [`Event::Up`]; its `InForce`
    /// follows that.
    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation;

    /// Requests stored messages. It is always answered within [`TICKET_SECONDS_MAX`], by
    /// [`Event::Fetched`], or by [`Event::Since`] for [`Fetch::Since`].
    ///
    /// # Errors
    /// The limit of open tickets is reached. [`Event::Room`] is reported when there is room.
    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull>;

    /// The next event. The waker is woken when there is another.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event>;

    /// How many published envelopes the broker has not confirmed.
    fn in_flight(&self) -> usize;

    /// Measurements of its broker and its link; empty for an adapter without any.
    fn measures(&self) -> Measures {
        Measures::default()
    }
}

/// Measurements of an adapter, for display only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Address and version of the broker, without any secret; `None` without a link.
    pub engine: Option<String>,
    /// In words, how durable the broker's storage is, or why it stores nothing; `None` while that
    /// is unknown.
    pub keeping: Option<String>,
    /// Stores that were repeated on the same link.
    pub repeated: u64,
    /// The time from the last request to the broker to its answer.
    pub round_trip: Option<Duration>,
    /// The same for all requests since the adapter was made.
    pub round_trips: Durations,
}

/// The adapter's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too much is in flight to the broker")]
pub struct QueueFull;

/// Whether an interest is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// From now on.
    Yes,
    /// No longer.
    No,
}

/// The number of a change of interests, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// Identifies the call that an answer belongs to; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The number of a link to the broker, growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session(pub u64);

/// An event of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a link, and all interests are in force. Reported once for each link.
    Up {
        /// The link's number.
        session: Session,
        /// The epoch of the broker's storage, which changes when that is lost or created again;
        /// `None` if it stores nothing.
        kept: Option<u64>,
        /// The same of the log of notices.
        log: Option<u64>,
    },
    /// There is no link. Reported once, and again only with another reason.
    Down(Down),
    /// An envelope of another node, or a stored one, whichever node published it.
    Received(Received),
    /// Messages for these interests may have been lost on a link that did not break; reported
    /// before or after those that were not.
    Lost(Vec<Interest>),
    /// The changes of interests up to this number are in force.
    InForce(Generation),
    /// There is room again; reported once after a [`QueueFull`].
    Room,
    /// An envelope is stored.
    Stored {
        /// The ticket of the call.
        ticket: Ticket,
        /// The broker's number for the envelope.
        seq: u64,
        /// It was stored before with this id, perhaps by this very call.
        is_duplicate: bool,
    },
    /// An envelope is not stored, or that is unknown.
    NotStored {
        /// The ticket of the call.
        ticket: Ticket,
        /// Why.
        why: NotStored,
    },
    /// The answer to [`Fetch::After`] or [`Fetch::LastOf`].
    Fetched {
        /// The ticket of the call.
        ticket: Ticket,
        /// The stored messages; `None` if the broker did not answer in time, or stores nothing.
        kept: Option<Fetched>,
    },
    /// The answer to [`Fetch::Since`].
    Since {
        /// The ticket of the call.
        ticket: Ticket,
        /// Everything with a higher number was stored within the requested age, by the broker's
        /// clock when it answered, or later. Some of the lower numbers may have been, too: an
        /// broker may not know when removed messages were stored. `None` if the broker did not
        /// answer in time, stores nothing, or may remove younger messages by its own limits: its
        /// size is bounded, or its own age is shorter.
        behind: Option<u64>,
    },
    /// The answer to [`Adapter::purge`].
    Purged {
        /// The ticket of the call.
        ticket: Ticket,
        /// `None` if the messages are removed; otherwise why that is unknown or was refused.
        why: Option<NotStored>,
    },
}

impl Event {
    /// The ticket that it answers, if it is an answer.
    pub const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Stored { ticket, .. }
            | Self::NotStored { ticket, .. }
            | Self::Fetched { ticket, .. }
            | Self::Since { ticket, .. }
            | Self::Purged { ticket, .. } => Some(*ticket),
            _ => None,
        }
    }
}

/// The answer of the broker to a [`Fetch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The messages, oldest first. The `prev` of each is the one before it on its subject in this
    /// answer, or 0.
    pub messages: Vec<Received>,
    /// The broker had everything up to this number when it answered; 0, if it does not report it.
    /// So up to it the subjects have nothing behind the requested number except `messages`; if
    /// those are cut short, up to the last of them.
    pub head: u64,
    /// Whether nothing was cut off by the requested count or bytes.
    pub is_all: bool,
}

/// A received envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The space of its subject; `None` for the subject of all nodes, or of one. A stored envelope
    /// has [`Space::Broadcast`], or [`Space::Store`] if it was fetched.
    pub space: Option<Space>,
    /// The envelope, as it was published.
    pub envelope: Bytes,
    /// The broker's numbers of a stored envelope.
    pub stored: Option<Number>,
    /// When it was stored, in milliseconds since 1970 by the broker's clock; 0, if it was not
    /// stored, or the broker does not report it.
    pub at_ms: u64,
}

/// The position of a stored envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its number.
    pub seq: u64,
    /// The number before it on its subject; 0, if there is none.
    pub prev: u64,
}

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Down {
    /// It broke, or could not be made: the error of the broker or the system.
    #[error("not connected to the broker: {0}")]
    Broken(Box<str>),
    /// The broker refuses what this node needs: its error text.
    #[error("the broker refuses: {0}")]
    Refused(Box<str>),
}

/// Why something was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The broker has not answered in time: it may be stored, or not.
    Unconfirmed,
    /// The broker refused it, with this text; it is not stored.
    Refused(Box<str>),
}

/// A request for stored messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The messages behind a number on a subject.
    After {
        /// The subject.
        subject: Subject,
        /// The number; 0 for all that are stored.
        seq: u64,
        /// The most messages.
        count: u32,
        /// The most bytes; at least one message is returned.
        bytes: usize,
        /// Whether to ask the leader, which has all confirmed messages, and not a copy that may lag
        /// behind. More expensive: it may take one request for each message.
        from_leader: bool,
    },
    /// The last message on each of these subjects, at most [`LAST_OF_MAX`].
    LastOf {
        /// The subjects.
        subjects: Vec<Subject>,
    },
    /// The number behind which everything in a stream was stored within some time until now. So no
    /// message behind it that was stored with a longer age was removed, except those beyond the
    /// count of their subject and purged ones; and none will be while its age lasts.
    Since {
        /// Any subject of the stream.
        subject: Subject,
        /// The time.
        age: Duration,
    },
}
