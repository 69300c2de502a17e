//! What a user has done by whoever drives it.

use simurgh_load_client::tls::TlsClient;
use simurgh_load_record::{Count, ErrorKind, MatchLine, MetricId, OfServer, Origin};
use simurgh_proto::ws::{CloseCode, OpCode};
use simurgh_reactor::Key;

use super::machine::Ended;
use crate::stamp::Stamp;

/// How a connection ends that the user needs no more; nothing of it reaches the user afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// In good order.
    Close,
    /// By a reset.
    Abort,
    /// The server closes it (RFC 6455 §7.1.1), and has some time for that. Closed from here, what
    /// it still sends would be answered by a reset, which takes away what it has not read.
    Linger,
    /// Not at all, but it is not read any more, until it is aborted.
    Abandon,
}

/// What a user's steps lead to, carried out by whoever drives the user.
pub(crate) trait Outputs {
    /// The time now, nanoseconds: each operation begins with a fresh one.
    fn clock_ns(&self) -> u64;
    /// Has [`Input::Time`](super::Input::Time) come at a time, in place of the one set before; or
    /// not at all.
    fn set_timer(&mut self, due_ms: Option<u32>);

    /// Begins a connection to a server of the scenario.
    fn dial(&mut self, server: u16) -> Result<Key, (ErrorKind, String)>;
    /// Sends bytes, encrypted where the connection is.
    fn send(&mut self, key: Key, tls: Option<&mut TlsClient>, bytes: &[u8]);
    fn send_frame(&mut self, key: Key, tls: Option<&mut TlsClient>, opcode: OpCode, payload: &[u8]);
    /// Sends a close frame.
    fn send_close(&mut self, key: Key, tls: Option<&mut TlsClient>, code: CloseCode);
    /// Does not read a connection, until it is held no longer.
    fn hold(&mut self, key: Key, is_held: bool);
    /// Ends a connection.
    fn hang_up(&mut self, key: Key, how: HangUp);
    /// So many of the last bytes that came belong to frames behind the upgrade.
    fn unread(&mut self, bytes: usize);
    /// A poll has brought these: to be given to the user one by one, after this step.
    fn messages(&mut self, messages: Vec<String>);

    /// The user waits until so many have come, all workers' together.
    fn gather(&mut self, users: u64);
    /// It waits for them no longer.
    fn leave_gathering(&mut self);
    /// The scenario ends the run.
    fn abort_run(&mut self);
    /// The user has left, `life_us` after it was meant to come: its record is to be dropped.
    fn left(&mut self, how: Ended, phase: u16, session: u16, life_us: u64);

    /// Counts.
    fn count(&mut self, count: Count, n: u64);
    /// Records a time in microseconds.
    fn time(&mut self, metric: impl Into<MetricId>, us: u64);
    /// Counts an error; `text` is called only while there is room for it.
    fn error(&mut self, kind: ErrorKind, origin: Origin, text: impl FnOnce() -> String);
    /// What is counted of a server.
    fn server(&mut self, server: u16) -> &mut OfServer;
    /// A connection to a server can be used.
    fn opened(&mut self, server: u16);
    /// It is there no longer.
    fn closed(&mut self, server: u16);
    /// A step begins so much after its time.
    fn step_lag(&mut self, lag_us: u64);
    /// Counts the status of an HTTP answer.
    fn status(&mut self, status: u16);
    /// A stamped message is sent: its sender, its number, and when by the run's clock.
    fn published(&mut self, sender: u32, number: u32, sent_ns: u64);
    /// One has come. `is_news`: for the first time, where that is followed exactly.
    fn delivered(&mut self, stamp: &Stamp, received_ns: u64, is_news: Option<bool>);
    /// A line for `match.log`.
    fn match_line(&mut self, line: MatchLine);
    /// A line for `tsung.dump`.
    fn dump(&mut self, line: String);
}
