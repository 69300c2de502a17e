//! What a channel's callbacks answer, and why a channel ends.

use std::borrow::Cow;

use simurgh_proto::message::{OwnedRef, Payload};

/// What a handler answers.
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

    /// The end of every `match event`: what Phoenix does with an event that no clause takes, which
    /// is to end the channel with `phx_error`; the client may join again at once.
    pub fn unknown_event() -> Self {
        Self::Stop(Stop::Abnormal)
    }
}

/// A `phx_reply`: a status, usually `ok` or `error`, and a response.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(crate) status: Cow<'static, str>,
    pub(crate) response: Payload<'static>,
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
    /// It is told to: `phx_close`.
    Shutdown,
    /// Something is wrong: `phx_error`, the client rejoins.
    Abnormal,
    /// Its time is over, as that of the token it was joined with: `phx_error`, the client rejoins.
    Expired,
}

/// Why a channel ends, as [`crate::Channel::terminate`] hears it.
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
    /// Whether the client is to join again: it hears `phx_error`, or 1011 on a plain user socket.
    pub(crate) fn is_for_rejoin(self) -> bool {
        matches!(self, Self::Crashed | Self::Stopped(Stop::Abnormal | Stop::Expired))
    }
}

/// Names a message of a client that is still to be answered.
#[derive(Debug, Clone)]
pub struct ReplyRef(pub(crate) OwnedRef);
