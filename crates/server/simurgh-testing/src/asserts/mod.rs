//! The functions behind the macros: a [`Check`] of a socket, a channel, a push or a subscription.

mod ends;

use std::sync::Arc;

pub use crate::check::{Check, Words};
pub use crate::expect::{Anything, Exactly, matching, meeting, meeting_json, typed};
pub use crate::pattern::Pattern;
pub use ends::{Code, Ends, closed_with, crashed};

use crate::check::{Sort, report};
use crate::fail;
use crate::socket::{Push, TestChannel, TestSocket, TestSubscription};

/// Something that receives pushes: a socket on all its topics, a channel on its own.
pub trait HasPushes {
    /// A check for a push.
    fn pushes(&self) -> Check;
}

impl HasPushes for TestSocket {
    fn pushes(&self) -> Check {
        Check { shared: Arc::clone(&self.shared), at: self.at, sort: Sort::Push(None) }
    }
}

impl HasPushes for TestChannel {
    fn pushes(&self) -> Check {
        let sort = Sort::Push(Some(self.topic().into()));
        Check { sort, ..self.socket().pushes() }
    }
}

impl<E: HasPushes> HasPushes for &E {
    fn pushes(&self) -> Check {
        E::pushes(self)
    }
}

/// Something that receives a reply: a push, or the join of a channel.
pub trait HasReply {
    /// A check for the reply.
    fn replies(&self) -> Check;
}

impl HasReply for Push {
    fn replies(&self) -> Check {
        let sort = Sort::Reply(self.to, self.topic.clone());
        Check { shared: Arc::clone(&self.shared), at: self.at, sort }
    }
}

impl HasReply for TestChannel {
    fn replies(&self) -> Check {
        let sort = Sort::Reply(self.join, self.topic().into());
        Check { sort, ..self.socket().pushes() }
    }
}

impl<A: HasReply> HasReply for &A {
    fn replies(&self) -> Check {
        A::replies(self)
    }
}

/// Something with a topic whose broadcasts the test receives.
pub trait HasBroadcasts {
    /// A check for a broadcast.
    fn broadcasts(&self) -> Check;
}

impl HasBroadcasts for TestSubscription {
    fn broadcasts(&self) -> Check {
        let sort = Sort::Broadcast(self.topic.clone());
        Check { shared: Arc::clone(&self.shared), at: self.at, sort }
    }
}

impl HasBroadcasts for TestChannel {
    #[track_caller]
    fn broadcasts(&self) -> Check {
        let shared = Arc::clone(&self.socket().shared);
        let state = shared.lock();
        let listener = state.listener.filter(|_| state.topics.contains(self.topic()));
        drop(state);
        let Some((at, _)) = listener else { fail(&report::not_subscribed(self.topic())) };
        Check { shared, at, sort: Sort::Broadcast(self.topic().into()) }
    }
}

impl<O: HasBroadcasts> HasBroadcasts for &O {
    #[track_caller]
    fn broadcasts(&self) -> Check {
        O::broadcasts(self)
    }
}

/// A check for the reply to a channel's join.
pub fn joined(channel: &TestChannel) -> Check {
    let sort = Sort::Joined(channel.join, channel.topic().into());
    Check { sort, ..channel.socket().pushes() }
}
