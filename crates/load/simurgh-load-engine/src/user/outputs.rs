//! The commands of a user to its driver.

use simurgh_load_record::{Count, ErrorKind, MatchLine, MetricId, OfServer, Origin};
use simurgh_proto::ws::{CloseCode, OpCode};
use simurgh_reactor::Key;

use super::machine::Ended;
use crate::stamp::Stamp;

/// How a connection ends that the user no longer needs; the user gets no further events of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// An orderly close.
    Close,
    Abort,
    /// The server closes it (RFC 6455 §7.1.1), and gets some time for that. If we closed it first,
    /// later data would be answered by a reset, which discards what the server has not read.
    Linger,
    /// It stays open but is not read any more, until it is aborted.
    Abandon,
}

/// The results of a user's steps, carried out by its driver.
pub(crate) trait Outputs {
    /// The current time, nanoseconds: read before each operation.
    fn clock_ns(&self) -> u64;
    /// Sets the next [`Input::Time`](super::Input::Time), in place of the previous one, or none.
    fn set_timer(&mut self, due_tick: Option<u32>);

    fn dial(&mut self, server: u16) -> Result<Key, (ErrorKind, String)>;
    fn send(&mut self, key: Key, bytes: &[u8]);
    fn send_frame(&mut self, key: Key, opcode: OpCode, payload: &[u8]);
    /// From here on messages of a connection may be compressed.
    fn deflate(&mut self, key: Key);
    fn send_close(&mut self, key: Key, code: CloseCode, reason: &str);
    /// Pauses or resumes reading of a connection.
    fn hold(&mut self, key: Key, is_held: bool);
    fn hang_up(&mut self, key: Key, how: HangUp);
    /// This many of the last bytes belong to frames after the upgrade.
    fn unread(&mut self, bytes: usize);
    /// Messages of a poll, to be given to the user one by one after this step.
    fn messages(&mut self, messages: Vec<String>);

    /// The user waits until this many have gathered, over all workers.
    fn gather(&mut self, users: u64);
    /// It no longer waits for them.
    fn leave_gathering(&mut self);
    fn abort_run(&mut self);
    /// The user has left, `life_us` after it was due: its record must be dropped.
    fn left(&mut self, how: Ended, phase: u16, session: u16, life_us: u64);

    fn count(&mut self, count: Count, n: u64);
    fn time(&mut self, metric: impl Into<MetricId>, us: u64);
    fn error(&mut self, kind: ErrorKind, origin: Origin, text: impl FnOnce() -> String);
    fn server(&mut self, server: u16) -> &mut OfServer;
    fn opened(&mut self, server: u16);
    fn closed(&mut self, server: u16);
    /// A step begins this much after its time.
    fn step_lag(&mut self, lag_us: u64);
    fn status(&mut self, status: u16);
    /// A stamped message is sent: its sender, its number, and the time by the run's clock.
    fn published(&mut self, sender: u32, number: u32, sent_ns: u64);
    /// A stamped message has come. `is_news`: for the first time, if that is followed.
    fn delivered(&mut self, stamp: &Stamp, received_ns: u64, is_news: Option<bool>);
    fn match_line(&mut self, line: MatchLine);
    fn dump(&mut self, line: String);
}
