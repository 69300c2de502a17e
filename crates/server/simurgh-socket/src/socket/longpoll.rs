//! Settings of long polling.

use std::time::Duration;

/// The long-poll settings of a user socket ([`UserSocket::longpoll`](super::UserSocket::longpoll)).
///
/// ```
/// use std::time::Duration;
///
/// use simurgh::{LongPoll, UserSocket};
///
/// let user_socket = UserSocket::new("/socket").longpoll(LongPoll::new());
/// let patient = LongPoll::new().window(Duration::from_secs(15));
/// # let _ = (user_socket, patient);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongPoll {
    window: Duration,
}

impl LongPoll {
    /// As in Phoenix: a window of 10 s.
    pub fn new() -> Self {
        Self { window: Duration::from_secs(10) }
    }

    /// How long a poll waits for messages, and a POST for being handled; at least a millisecond. A
    /// session without a poll for 1.5 windows ends. Clients give up after 20 s by themselves, and
    /// proxies have their own limits (nginx: 60 s). Default 10 s.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window.max(Duration::from_millis(1));
        self
    }

    /// The window.
    #[doc(hidden)]
    pub fn window_time(self) -> Duration {
        self.window
    }
}

impl Default for LongPoll {
    fn default() -> Self {
        Self::new()
    }
}
