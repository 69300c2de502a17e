//! Answers of a channel's callbacks, and reasons for its end.

use alloc::borrow::Cow;

use simurgh_proto::message::{OwnedRef, Payload};

/// The answer of a callback.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// Nothing is answered (now).
    NoReply,
    /// The message is answered.
    Reply(Reply),
    /// The channel ends: `phx_close`, or `phx_error` for [`Stop::Abnormal`].
    Stop(Stop),
    /// The message is answered, then the channel ends.
    ReplyAndStop(Reply, Stop),
}

impl Outcome {
    /// Answers with status `ok`.
    pub fn ok(response: impl Into<Payload<'static>>) -> Self {
        Self::Reply(Reply::ok(response))
    }

    /// Answers with status `error`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self::Reply(Reply::error(response))
    }

    /// For the last arm of every `match event`: ends the channel with `phx_error`, as Phoenix does
    /// for an event that no clause takes. The client may join again at once.
    pub fn unknown_event() -> Self {
        Self::Stop(Stop::Abnormal)
    }
}

/// A `phx_reply`: a status, usually `ok` or `error`, and a response.
#[derive(Debug, Clone)]
pub struct Reply {
    #[doc(hidden)]
    pub status: Cow<'static, str>,
    #[doc(hidden)]
    pub response: Payload<'static>,
}

impl Reply {
    /// Status `ok`.
    pub fn ok(response: impl Into<Payload<'static>>) -> Self {
        Self::new("ok", response)
    }

    /// Status `error`.
    pub fn error(response: impl Into<Payload<'static>>) -> Self {
        Self::new("error", response)
    }

    /// Any status; clients match on the word.
    pub fn new(
        status: impl Into<Cow<'static, str>>,
        response: impl Into<Payload<'static>>,
    ) -> Self {
        Self { status: status.into(), response: response.into() }
    }

    /// The status.
    pub fn status(&self) -> &str {
        &self.status
    }

    /// The response.
    pub fn response(&self) -> &Payload<'static> {
        &self.response
    }
}

/// How a channel stops itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is done: `phx_close`, the client does not rejoin.
    Normal,
    /// It was asked to stop: `phx_close`.
    Shutdown,
    /// An error: `phx_error`, the client rejoins.
    Abnormal,
    /// Its lifetime is over, for example its token's: `phx_error`, the client rejoins.
    Expired,
    /// An order of a back end: `phx_error`, the client rejoins.
    Kicked,
}

/// Why a channel ends, for [`ShardChannel::terminate`](crate::ShardChannel::terminate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The client left.
    Left,
    /// The client joined the same topic again.
    Rejoined,
    /// The channel stopped itself.
    Stopped(Stop),
    /// A callback panicked.
    Crashed,
    /// The transport is gone, or the server closes it.
    Closed,
}

impl Reason {
    /// Whether the client is to join again: it gets `phx_error`, or 1011 on a plain user socket.
    pub fn is_for_rejoin(self) -> bool {
        matches!(self, Self::Crashed | Self::Stopped(Stop::Abnormal | Stop::Expired | Stop::Kicked))
    }
}

/// Names a message of a client that is still to be answered.
#[derive(Debug, Clone)]
pub struct ReplyRef(#[doc(hidden)] pub OwnedRef);
