//! The services of a worker for its users: connections, measurements, events to the collector.

use std::sync::Arc;

use simurgh_load_client::SourcePool;
use simurgh_load_client::connection::Leaving;
use simurgh_load_client::tls::TlsConfig;
use simurgh_load_client::tun::Stack;
use simurgh_load_record::{
    Count, ErrorKind, MatchLine, MetricId, OfServer, Origin, Recorder, Seen,
};
use simurgh_proto::ws::{self, CloseCode, DEFLATE_BYTES_MIN, Deflater, Inflater, OpCode};
use simurgh_reactor::{ConnectOptions, Io, Key};

use super::tun;
use crate::command::WorkerEvent;
use crate::program::Program;
use crate::stamp::Stamp;
use crate::user::{Ended, HangUp, Outputs};

/// The reactor with the data of a connection.
pub(super) type Net = Io<Conn>;

/// The data of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Conn {
    /// Its user's place, and [`DEFLATE`].
    pub(super) owner: u32,
    /// Its place in the TUN device's stack, if it has no socket.
    pub(super) place: u32,
}

impl Conn {
    pub(super) const NO_PLACE: u32 = u32::MAX;
    pub(super) const NOBODY: Self = Self::socket(NOBODY);

    pub(super) const fn socket(owner: u32) -> Self {
        Self { owner, place: Self::NO_PLACE }
    }
}

/// Receives the events of workers, on their threads.
pub(crate) type EventSender = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// A connection that has no user any more.
pub(super) const NOBODY: u32 = u32::MAX >> 1;
/// The bit of a connection with permessage-deflate.
pub(super) const DEFLATE: u32 = 1 << 31;
/// How long a server may take to close a WebSocket that we closed, also at the end of the run.
pub(super) const LINGER_NS: u64 = 3_000_000_000;

pub(super) struct Services {
    pub(super) recorder: Recorder,
    /// Sends to the collector, on this or another host.
    pub(super) events: EventSender,
    pub(super) sources: SourcePool,
    /// The connections without a socket, if there is a TUN device.
    pub(super) tun: Option<Stack>,
    pub(super) tls: Option<TlsConfig>,
    pub(super) mask: fastrand::Rng,
    /// None until messages are compressed.
    pub(super) deflater: Option<Box<Deflater>>,
    pub(super) inflater: Option<Box<Inflater>>,
    /// Connections ready for use.
    pub(super) connected: u64,
    /// Connections without a user.
    pub(super) leaving: Leaving,
    /// The last stamped messages of each user; empty if they are not measured.
    pub(super) seen: Vec<Seen>,
    /// Users that wait for all others.
    pub(super) gathering: Vec<u32>,
    /// Left by the last step for its user: bytes after an upgrade, and messages of a poll.
    pub(super) unread: usize,
    pub(super) polled: Vec<String>,
}

/// Carries out the outputs of one step of a user.
pub(super) struct StepOutputs<'a> {
    pub(super) io: &'a mut Net,
    pub(super) services: &'a mut Services,
    pub(super) program: &'a Program,
    pub(super) place: u32,
    /// The new timer of the user. It is set after the step: the wheel uses the users' own records.
    pub(super) timer: Option<Option<u32>>,
}

/// Appends a frame, of the payload's short form if it has one.
fn encode(
    opcode: OpCode,
    short: Option<&[u8]>,
    payload: &[u8],
    mask: Option<[u8; 4]>,
    out: &mut Vec<u8>,
) {
    match short {
        None => ws::encode(opcode, payload, mask, out),
        Some(short) => ws::encode_compressed(opcode, short, mask, out),
    }
}

impl Services {
    pub(super) fn report(&self, event: WorkerEvent) {
        (self.events)(event);
    }
}

impl Outputs for StepOutputs<'_> {
    #[inline]
    fn clock_ns(&self) -> u64 {
        self.io.clock_ns()
    }

    #[inline]
    fn set_timer(&mut self, due_tick: Option<u32>) {
        self.timer = Some(due_tick);
    }

    fn dial(&mut self, server: u16) -> Result<Key, (ErrorKind, String)> {
        let scenario = &self.program.scenario;
        let Some(target) = scenario.targets.get(usize::from(server)) else {
            return Err((ErrorKind::Internal, "there is no such server".to_owned()));
        };
        self.count(Count::ConnectsTried, 1);
        self.server(server).connects_tried += 1;
        if let Some(tun) = &mut self.services.tun {
            let dialled = tun::dial(self.io, tun, target.address, self.place);
            return dialled.map_err(|error| (ErrorKind::of_connect(&error), error.to_string()));
        }
        let how = ConnectOptions {
            receive_buffer_bytes: scenario.sources.receive_buffer_bytes,
            send_buffer_bytes: scenario.sources.send_buffer_bytes,
            ..ConnectOptions::default()
        };
        let conn = Conn::socket(self.place);
        let dialled = self.services.sources.connect(self.io, target.address, how, conn);
        dialled.map_err(|error| (ErrorKind::of_connect(&error), error.to_string()))
    }

    fn send(&mut self, key: Key, bytes: &[u8]) {
        self.count(Count::BytesOut, bytes.len() as u64);
        self.io.send(key, bytes);
    }

    fn send_frame(&mut self, key: Key, opcode: OpCode, payload: &[u8]) {
        let mask = Some(self.services.mask.u32(..).to_ne_bytes());
        // It may have ended in this turn; the event follows at the turn's end.
        let Some(conn) = self.io.conn_ref(key).copied() else { return };
        match opcode {
            OpCode::Text => self.count(Count::FramesOutText, 1),
            OpCode::Binary => self.count(Count::FramesOutBinary, 1),
            _ => {}
        }
        let mut short = None;
        if conn.owner & DEFLATE != 0 && payload.len() >= DEFLATE_BYTES_MIN && !opcode.is_control() {
            short = self.services.deflater.get_or_insert_default().deflate(payload);
        }
        let written = self.io.write_with(key, |_, out| {
            let before = out.len();
            encode(opcode, short, payload, mask, out);
            out.len() - before
        });
        self.count(Count::BytesOut, written.unwrap_or(0) as u64);
    }

    fn deflate(&mut self, key: Key) {
        if let Some(conn) = self.io.conn(key) {
            conn.owner |= DEFLATE;
        }
    }

    fn send_close(&mut self, key: Key, code: CloseCode, reason: &str) {
        let mut close = Vec::new();
        let mask = Some(self.services.mask.u32(..).to_ne_bytes());
        ws::encode_close(code, reason, mask, &mut close);
        self.send(key, &close);
    }

    fn hold(&mut self, key: Key, is_held: bool) {
        if is_held { self.io.hold(key) } else { self.io.release(key) }
    }

    fn hang_up(&mut self, key: Key, how: HangUp) {
        if let Some(conn) = self.io.conn(key) {
            conn.owner = NOBODY;
        }
        match how {
            HangUp::Close => self.io.close(key),
            HangUp::Abort => {
                let place = self.io.conn_ref(key).map(|conn| conn.place);
                if let Some((tun, place)) = self.services.tun.as_mut().zip(place) {
                    tun.abort(self.io, (place, key));
                }
                self.io.abort(key);
            }
            HangUp::Abandon => self.io.hold(key),
            HangUp::Linger => {
                self.io.release(key);
                let until_ns = self.io.clock_ns() + LINGER_NS;
                self.services.leaving.push(until_ns, key);
            }
        }
    }

    fn unread(&mut self, bytes: usize) {
        self.services.unread = bytes;
    }

    fn messages(&mut self, messages: Vec<String>) {
        self.services.polled = messages;
    }

    fn gather(&mut self, users: u64) {
        self.services.report(WorkerEvent::Came { users });
        self.services.gathering.push(self.place);
    }

    fn leave_gathering(&mut self) {
        self.services.gathering.retain(|waiting| *waiting != self.place);
    }

    fn abort_run(&mut self) {
        self.services.report(WorkerEvent::AbortRun);
    }

    fn left(&mut self, how: Ended, phase: u16, session: u16, life_us: u64) {
        match how {
            Ended::Finished => self.services.recorder.user_finished(phase, session, life_us),
            Ended::Aborted => self.services.recorder.user_aborted(phase, session, life_us),
        }
    }

    #[inline]
    fn count(&mut self, count: Count, n: u64) {
        self.services.recorder.count(count, n);
    }

    #[inline]
    fn time(&mut self, metric: impl Into<MetricId>, us: u64) {
        self.services.recorder.time(metric, us);
    }

    fn error(&mut self, kind: ErrorKind, origin: Origin, text: impl FnOnce() -> String) {
        self.services.recorder.error_with(kind, origin, text);
    }

    #[inline]
    fn server(&mut self, server: u16) -> &mut OfServer {
        self.services.recorder.at(server)
    }

    fn opened(&mut self, server: u16) {
        self.services.connected += 1;
        self.server(server).connected += 1;
    }

    fn closed(&mut self, server: u16) {
        self.services.connected = self.services.connected.saturating_sub(1);
        self.server(server).disconnected();
    }

    #[inline]
    fn step_lag(&mut self, lag_us: u64) {
        self.services.recorder.step_lag(lag_us);
    }

    #[inline]
    fn status(&mut self, status: u16) {
        self.services.recorder.status(status);
    }

    fn published(&mut self, sender: u32, number: u32, sent_ns: u64) {
        self.services.recorder.published(sender, number, sent_ns, 0);
    }

    #[inline]
    fn delivered(&mut self, stamp: &Stamp, received_ns: u64, is_news: Option<bool>) {
        let Services { recorder, seen, .. } = &mut *self.services;
        let Stamp { sender, number, at_ns, .. } = *stamp;
        match is_news {
            Some(is_news) => recorder.delivered(sender, number, at_ns, received_ns, is_news),
            None => {
                let seen = seen.get_mut(self.place as usize);
                recorder.delivery(sender, number, at_ns, received_ns, seen);
            }
        }
    }

    fn match_line(&mut self, line: MatchLine) {
        self.services.recorder.match_line(line);
    }

    fn dump(&mut self, line: String) {
        self.services.recorder.dump(line);
    }
}
