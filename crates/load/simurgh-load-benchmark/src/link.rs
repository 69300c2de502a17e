//! One place of a benchmark, with the connections that it has one after the other.

use simurgh_load_client::connection::NO_KEY;
use simurgh_load_client::http::Response;
use simurgh_reactor::Key;

use super::job::LIMITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no connection; the next tick tries again.
    Down,
    Connecting,
    Idle,
    Busy,
}

pub(super) struct Link {
    pub(super) key: Key,
    pub(super) state: State,
    /// This connection has answered before: if it now ends without an answer, the server had the
    /// right to close it, and the request is sent again on another.
    pub(super) has_answered: bool,
    /// The request of `due_ns` is sent again as soon as there is a connection.
    pub(super) resend: bool,
    /// When the current request was due, which in a closed loop is when it was sent.
    pub(super) due_ns: u64,
    /// When it was sent, or the connection begun: the start of a time-out.
    pub(super) since_ns: u64,
    pub(super) response: Response,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            key: NO_KEY,
            state: State::Down,
            has_answered: false,
            resend: false,
            due_ns: 0,
            since_ns: 0,
            response: Response::new(false, LIMITS),
        }
    }

    pub(super) fn release(&mut self) -> Key {
        self.state = State::Down;
        self.has_answered = false;
        std::mem::replace(&mut self.key, NO_KEY)
    }
}
