//! How tests wait for the end of channels and sockets.

use std::time::Duration;

use simurgh::driver::What;

use crate::check::report;
use crate::fail;
use crate::socket::{TestChannel, TestSocket};

/// A channel or a socket.
pub trait Ends {
    /// The value that the assertion returns.
    type Value;

    /// Waits until it is closed as intended; panics if that does not happen in time.
    fn assert_closed(&self, timeout_ms: Option<u64>) -> Self::Value;
}

impl Ends for TestChannel {
    type Value = ();

    #[track_caller]
    fn assert_closed(&self, timeout_ms: Option<u64>) {
        let is_it =
            |what: &What| matches!(what, What::ChannelClosed { topic } if **topic == *self.topic());
        end(self.socket(), timeout_ms, is_it, &format!("{} was closed", self.topic()));
    }
}

impl Ends for TestSocket {
    type Value = Option<u16>;

    #[track_caller]
    fn assert_closed(&self, timeout_ms: Option<u64>) -> Option<u16> {
        let is_it = |what: &What| matches!(what, What::Closed { .. });
        match end(self, timeout_ms, is_it, &format!("{self} was closed")) {
            What::Closed { code } => code,
            _ => None,
        }
    }
}

impl<E: Ends> Ends for &E {
    type Value = E::Value;

    #[track_caller]
    fn assert_closed(&self, timeout_ms: Option<u64>) -> E::Value {
        E::assert_closed(self, timeout_ms)
    }
}

/// Waits for the end of a socket with this code.
#[track_caller]
pub fn closed_with(socket: &TestSocket, code: impl Into<Code>, timeout_ms: Option<u64>) {
    let Code(code) = code.into();
    let is_it = |what: &What| matches!(what, What::Closed { code: it } if *it == Some(code));
    end(socket, timeout_ms, is_it, &format!("{socket} was closed with {code}"));
}

/// Waits until a channel crashes.
#[track_caller]
pub fn crashed(channel: &TestChannel, timeout_ms: Option<u64>) {
    let topic = channel.topic();
    let is_it = |what: &What| matches!(what, What::ChannelCrashed { topic: it } if **it == *topic);
    end(channel.socket(), timeout_ms, is_it, &format!("{topic} crashed"));
}

#[track_caller]
fn end(
    socket: &TestSocket,
    timeout_ms: Option<u64>,
    is_it: impl Fn(&What) -> bool,
    event: &str,
) -> What {
    let shared = &socket.shared;
    let time = timeout_ms.map_or_else(|| shared.lock().assert_time, Duration::from_millis);
    let found = shared.look(time, |state| {
        let mailbox = state.mailboxes.get_mut(socket.at)?;
        let is_over = mailbox.is_closed();
        let found = mailbox.left().find(|(_, what)| is_it(what));
        match found.map(|(number, what)| (number, what.clone())) {
            Some((number, what)) => {
                mailbox.take(number);
                Some(Some(what))
            }
            None => is_over.then_some(None),
        }
    });
    match found.flatten() {
        Some(what) => what,
        None => fail(&report::goes_on(&shared.lock(), socket.at, event, time)),
    }
}

/// A close code.
pub struct Code(u16);

impl From<u16> for Code {
    fn from(code: u16) -> Self {
        Self(code)
    }
}

impl From<simurgh::CloseCode> for Code {
    fn from(code: simurgh::CloseCode) -> Self {
        Self(code.0)
    }
}
