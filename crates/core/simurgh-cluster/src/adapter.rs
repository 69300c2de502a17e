//! What carries envelopes between nodes: an engine behind six methods, and what it tells.
//!
//! An adapter never waits and never calls back. What it is told is done in the background; what
//! happened is asked for with [`Adapter::poll_event`]. An adapter bounds what waits in it: what is
//! published by [`QueueFull`], what was received by not taking more from its engine, or by losing
//! it and saying so ([`Event::Lost`]).

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::durations::Durations;
use crate::node_id::NodeId;
use crate::subject::{Interest, Space, Subject};

/// Published envelopes that may be under way: [`QueueFull`] at the next one.
pub const IN_FLIGHT_MAX: usize = 1_024;
/// Bytes of published envelopes that may be under way; one envelope may, whatever its size.
pub const IN_FLIGHT_BYTES_MAX: usize = 1 << 20;
/// Seconds within which a ticket is answered, whatever happens.
pub const TICKET_SECONDS_MAX: u64 = 9;
/// Tickets that may wait for their answer, or whose answer was not polled: [`QueueFull`] at the
/// next.
pub const TICKETS_MAX: usize = 1_024;
/// Subjects that one [`Fetch::LastOf`] may name; those beyond are not answered for.
pub const LAST_OF_MAX: usize = 1_000;
/// Seconds for which the engine remembers the id of what it stored.
pub const ID_SECONDS: u64 = 120;
/// The longest id of what is stored.
pub const ID_BYTES_MAX: usize = 256;

/// An engine, as one node uses it. [`contract`](crate::contract) says what every adapter must do,
/// and tries it.
///
/// # Envelopes
/// Their bytes arrive as they were, none at all included, but for one mark: what is sent again over
/// another link has [`Flags::RESENT`](crate::Flags::RESENT) set by the adapter, if it is as long as
/// a header ([`resent`](crate::resent)). To know one that came twice, an adapter may read origin
/// and number in the header of those that have its version ([`Header`](crate::Header)). Nothing
/// else of them is the adapter's concern.
///
/// # What may be lost
/// While an adapter says neither [`Event::Down`] nor [`Event::Lost`], and the publisher's neither
/// says `Down`, everything arrives. An [`Event::Up`] after a `Down` says of *all* interests that
/// something may have been lost, from some time before the `Down` on: a link is dead for seconds
/// before anybody notices. There is no `Lost` besides for that.
pub trait Adapter: Send {
    /// Connects, in the background and for ever: after a link that broke comes another. Called
    /// once, before everything else. The node hears [`Interest::Nodes`] and its own
    /// [`Interest::Node`] only if it says that it wants to.
    fn start(&mut self, me: NodeId);

    /// Sends an envelope to all other nodes that want to hear the subject: at most once each, and
    /// each topic's in the order of the calls, also over a link that broke. Without a link it is
    /// taken as with one, and sent after the next [`Event::Up`].
    ///
    /// What a broken link may have swallowed is sent again, all of it in the same order and before
    /// anything newer. So there is one exception to "once": after its publisher's reconnect a
    /// receiver may hear again what it heard last, at most [`IN_FLIGHT_MAX`] envelopes, as in
    /// 3, 4, 5, 3, 4, 5, 6. What comes a second time is marked. Who drops what is not above the
    /// highest number it has of that publisher and subject hears each once, in order.
    ///
    /// # Errors
    /// As much is under way as may be: [`IN_FLIGHT_MAX`] or [`IN_FLIGHT_BYTES_MAX`]. The envelope
    /// is not taken. [`Event::Room`] says when more is.
    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull>;

    /// Has the engine keep an envelope; the subject is of [`Space::Store`]. Answered by
    /// [`Event::Stored`] or [`Event::NotStored`], always, within [`TICKET_SECONDS_MAX`]: until
    /// then the adapter repeats it. The same id again within [`ID_SECONDS`] stores nothing and is
    /// answered with the first one's number; an engine may take it so on another subject, too, so
    /// an id is for one subject. What is stored is heard by everybody who wants the topic's
    /// broadcasts, this node included, before or after the answer. It is sent as it is, and never
    /// marked: of what is stored the id says what came twice.
    ///
    /// The engine may forget it after `age`, in whole seconds and at least one; without, after its
    /// own limits. An id has no line breaks, and as many bytes as [`ID_BYTES_MAX`] at most.
    ///
    /// # Errors
    /// As much is under way as may be ([`TICKETS_MAX`]). [`Event::Room`] says when more is taken.
    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull>;

    /// Has the engine forget what is older than this number on a subject of [`Space::Store`];
    /// numbers go on. Answered by [`Event::Purged`], always, within [`TICKET_SECONDS_MAX`].
    ///
    /// # Errors
    /// As much is under way as may be. [`Event::Room`] says when more is taken.
    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull>;

    /// Changes what this node wants to hear, and says the number of this change, one more than the
    /// last, also if it changes nothing. What is wanted is a set: wanted twice is wanted once.
    ///
    /// Changes of one call are one step: what is wanted before and after it, by whatever interest,
    /// is heard without a hole, once, and each publisher's in order. What several interests at once
    /// want is heard once. Of one interest the last change in the call counts.
    ///
    /// [`Event::InForce`] with the number, or a later one, says that the engine has it: what
    /// another node publishes after that is heard, and of what is no longer wanted nothing comes
    /// after that. Without a link the change is remembered, and in force at the next
    /// [`Event::Up`]; its `InForce` follows that.
    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation;

    /// Asks for what is kept. Answered by [`Event::Fetched`], or [`Event::Since`] if that is asked
    /// for, always, within [`TICKET_SECONDS_MAX`].
    ///
    /// # Errors
    /// As much is under way as may be. [`Event::Room`] says when more is taken.
    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull>;

    /// The next thing that happened; the waker is woken when there is another.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event>;

    /// Published envelopes of which it is not certain yet that the engine has them.
    fn in_flight(&self) -> usize;

    /// What it measures of its engine and its link; nothing, unless an adapter does.
    fn measures(&self) -> Measures {
        Measures::default()
    }
}

/// What an adapter measures, to be shown: nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Where the engine is that it is linked to, and of which version, without any secret; none
    /// without a link.
    pub engine: Option<String>,
    /// How durable what the engine keeps is, or why it keeps nothing, in words; none, if that is
    /// not known yet.
    pub keeping: Option<String>,
    /// Stores that were sent again without another link, since the adapter was made.
    pub repeated: u64,
    /// How long the last question to the engine took until its answer was read.
    pub round_trip: Option<Duration>,
    /// The same of all since the adapter was made.
    pub round_trips: Durations,
}

/// An adapter has as much under way as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as much is under way to the engine as may be")]
pub struct QueueFull;

/// Whether something is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// From now on.
    Yes,
    /// No longer.
    No,
}

/// The number of a change of interests; the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// Which call an answer belongs to; the caller's to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A link to the engine: another number for each, growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session(pub u64);

/// What an adapter tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a link, and all interests are in force. Said once for each link. `kept` tells one
    /// state of what the engine keeps from another; none, if it keeps nothing.
    Up {
        /// Of this link.
        session: Session,
        /// The epoch of what is kept.
        kept: Option<u64>,
    },
    /// There is no link any more, or there is still none; said once, and again only when the
    /// reason is another.
    Down(Down),
    /// An envelope of another node, or one that was stored, whoever published it.
    Received(Received),
    /// Of what these interests would have heard something may be lost, without a broken link; said
    /// before or after what is not lost.
    Lost(Vec<Interest>),
    /// The changes up to this number are in force.
    InForce(Generation),
    /// After a [`QueueFull`], once: more is taken.
    Room,
    /// It is kept, under this number.
    Stored {
        /// Of the call.
        ticket: Ticket,
        /// The engine's number for it.
        seq: u64,
        /// It had been stored before with this id, be it by this very call.
        is_duplicate: bool,
    },
    /// It is not kept, or nobody knows.
    NotStored {
        /// Of the call.
        ticket: Ticket,
        /// Why.
        why: NotStored,
    },
    /// What was asked for.
    Fetched {
        /// Of the call.
        ticket: Ticket,
        /// What is there; none, if the engine did not answer in time, or keeps nothing.
        kept: Option<Fetched>,
    },
    /// The answer to [`Fetch::Since`].
    Since {
        /// Of the call.
        ticket: Ticket,
        /// What has a higher number was stored within the age that was asked for, by the engine's
        /// clock, when that answered, or later. Some numbers that are not higher may have been,
        /// too: of what was removed an engine may not know when it was stored. None, if the engine
        /// did not answer in time, keeps nothing, or may remove what is younger for the sake of
        /// its own limits: it is bounded in its size, or keeps nothing for so long.
        behind: Option<u64>,
    },
    /// The engine has forgotten it, or not.
    Purged {
        /// Of the call.
        ticket: Ticket,
        /// None: it has. Else it is not known, or the engine refuses it.
        why: Option<NotStored>,
    },
}

/// What the engine answered to a [`Fetch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Oldest first. Each one's `prev` is the one before it on its subject in this answer, or 0.
    pub messages: Vec<Received>,
    /// Up to this number the engine had everything when it answered; 0, if it does not say. So on
    /// the subjects that were asked for there is nothing up to it, behind the number that was
    /// asked for, but `messages`; if they are cut short, then up to the last of them.
    pub head: u64,
    /// Nothing was cut short by the count or the bytes that were asked for.
    pub is_all: bool,
}

/// An envelope that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What its subject is for; none, if that is for all nodes, or one. What was stored comes as
    /// [`Space::Broadcast`], or as [`Space::Store`] if it was fetched.
    pub space: Option<Space>,
    /// As it was published.
    pub envelope: Bytes,
    /// The engine's numbers, if it was stored.
    pub stored: Option<Number>,
    /// When it was stored, in milliseconds since 1970 by the engine's clock; 0, if it was not
    /// stored, or the engine does not say.
    pub at_ms: u64,
}

/// Where a stored envelope stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// Its own.
    pub seq: u64,
    /// That of the one before it on its subject; 0, if there is none, or none any more.
    pub prev: u64,
}

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Down {
    /// It broke, or none could be made: what the engine or the system said.
    #[error("no link to the engine: {0}")]
    Broken(Box<str>),
    /// The engine does not let this node do what it must: which, in its words.
    #[error("the engine refuses: {0}")]
    Refused(Box<str>),
}

/// Why something was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The engine has not said within the time: it may be stored, or not.
    Unconfirmed,
    /// The engine refused it, in its words; it is not stored.
    Refused(Box<str>),
}

/// What is asked of what the engine keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// What follows a number on a subject.
    After {
        /// On which.
        subject: Subject,
        /// Behind which number; 0: from the first that is kept.
        seq: u64,
        /// So many at most.
        count: u32,
        /// So many bytes at most, but one at least.
        bytes: usize,
        /// Asked of who certainly has all that was ever confirmed, and not of a copy that may lag
        /// behind. Dearer: it may be one question for each message.
        from_leader: bool,
    },
    /// The last on each of these subjects, at most [`LAST_OF_MAX`].
    LastOf {
        /// Of which.
        subjects: Vec<Subject>,
    },
    /// Behind which number everything in a log was stored within some time, until now. So of what
    /// was stored there with a longer age nothing behind it was removed but what was beyond the
    /// count of its subject, or purged; and for as long as the age is longer nothing will be.
    Since {
        /// Any in that log: numbers are those of its log.
        subject: Subject,
        /// How long ago it was stored at most.
        age: Duration,
    },
}

impl<A: Adapter + ?Sized> Adapter for Box<A> {
    fn start(&mut self, me: NodeId) {
        (**self).start(me);
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull> {
        (**self).publish(to, envelope)
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        (**self).store(to, id, age, envelope, ticket)
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        (**self).purge(of, before, ticket)
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        (**self).interest(changes)
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        (**self).fetch(what, ticket)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        (**self).poll_event(context)
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn measures(&self) -> Measures {
        (**self).measures()
    }
}
