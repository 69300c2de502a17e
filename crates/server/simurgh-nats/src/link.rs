//! A link: input, output, PINGs and their answers.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use simurgh_cluster::adapter::Down;

use crate::config::Server;
use crate::connect::{self, Established, Stream};
use crate::interests::PingNumber;
use crate::wire::{Decoder, Message, Op};

/// The longest time between two PINGs.
const PING_EVERY_MS: u64 = 2_000;
/// After a PING a link may be silent for this long.
const SILENT_MAX_MS: u64 = 2 * PING_EVERY_MS;
/// How long published envelopes wait for the PING that confirms them: one PING for all of that
/// time.
const CONFIRM_MS: u64 = 20;
/// This many envelopes are confirmed sooner.
const CONFIRM_ENVELOPES: usize = 256;
/// This many bytes are confirmed sooner.
const CONFIRM_BYTES: usize = 256 << 10;
/// The most PINGs without an answer; the next one waits.
const PINGS_MAX: usize = 64;
/// The most bytes to write: envelopes have their own limit, so above this there is a flood of
/// interests.
const OUT_BYTES_MAX: usize = 32 << 20;
const READ_BYTES: usize = 64 << 10;

pub(crate) enum Incoming {
    Message(Message),
    TooLarge(u64),
    Pong {
        ping: PingNumber,
        round_trip: Duration,
    },
    Servers(Vec<Server>),
    /// A request was refused.
    Error(Box<str>),
}

pub(crate) struct Link {
    stream: Box<dyn Stream>,
    decoder: Decoder,
    pub(crate) server: Server,
    pub(crate) version: String,
    pub(crate) out: BytesMut,
    pub(crate) since_ms: u64,
    received_ms: u64,
    pub(crate) next_ping: PingNumber,
    pings: VecDeque<Ping>,
    pinged_ms: u64,
    /// Something waits for the answer to the next PING, which must be sent soon.
    pub(crate) needs_ping: bool,
    /// Envelopes published since the last PING.
    pub(crate) unconfirmed: usize,
    pub(crate) unconfirmed_bytes: usize,
    confirm_ms: Option<u64>,
    /// Changes of interests, each with the PING that follows it.
    generations: VecDeque<(u64, PingNumber)>,
    generation: u64,
    up: Up,
}

#[derive(Clone, Copy, Debug)]
struct Ping {
    number: PingNumber,
    sent: Instant,
    sent_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Up {
    /// Nothing was answered yet: changes belong to the start of the link.
    Fresh(PingNumber),
    /// Up when this PING is answered.
    Soon(PingNumber),
    Yes,
}

impl Link {
    pub(crate) fn new(established: Established, now_ms: u64) -> Self {
        let Established { stream, decoder, server, version, known_servers: _ } = established;
        Self {
            stream,
            decoder,
            server,
            version,
            out: BytesMut::new(),
            since_ms: now_ms,
            received_ms: now_ms,
            next_ping: 1,
            pings: VecDeque::new(),
            pinged_ms: now_ms,
            needs_ping: false,
            unconfirmed: 0,
            unconfirmed_bytes: 0,
            confirm_ms: None,
            generations: VecDeque::new(),
            generation: 0,
            up: Up::Fresh(1),
        }
    }

    pub(crate) fn changed(&mut self, generation: u64) {
        let ping = self.next_ping;
        self.needs_ping = true;
        if let Up::Fresh(_) = self.up {
            self.up = Up::Fresh(ping);
        }
        match self.generations.back_mut() {
            Some(last) if last.1 == ping => last.0 = generation,
            _ => self.generations.push_back((generation, ping)),
        }
    }

    pub(crate) fn pong(&mut self, ping: PingNumber) {
        while let Some(&(generation, of)) = self.generations.front()
            && of <= ping
        {
            self.generation = generation;
            self.generations.pop_front();
        }
        match self.up {
            Up::Yes => {}
            Up::Fresh(of) | Up::Soon(of) => {
                self.up = if of <= ping { Up::Yes } else { Up::Soon(of) };
            }
        }
    }

    /// The last generation that is in force; none before the link is up.
    pub(crate) fn generation(&self) -> Option<u64> {
        (self.up == Up::Yes).then_some(self.generation)
    }

    /// Whether all changes from before the link are in force.
    pub(crate) fn is_up(&self) -> bool {
        self.up == Up::Yes
    }

    /// The next decoded operation.
    ///
    /// # Errors
    /// The server sends something malformed.
    pub(crate) fn next(&mut self) -> Result<Option<Incoming>, Down> {
        loop {
            let Some(op) = self.decoder.next().map_err(connect::broken)? else { return Ok(None) };
            return Ok(Some(match op {
                Op::Message(message) => Incoming::Message(message),
                Op::TooLarge(sid) => Incoming::TooLarge(sid),
                Op::Ping => {
                    self.out.extend_from_slice(b"PONG\r\n");
                    continue;
                }
                Op::Pong => match self.pings.pop_front() {
                    Some(Ping { number, sent, .. }) => {
                        Incoming::Pong { ping: number, round_trip: sent.elapsed() }
                    }
                    None => continue,
                },
                Op::Info(json) => Incoming::Servers(connect::servers_of(&self.server, &json)),
                Op::Error(text) => Incoming::Error(text),
            }));
        }
    }

    pub(crate) fn send_ping(&mut self, now_ms: u64) {
        if self.pings.len() >= PINGS_MAX {
            return;
        }
        if self.unconfirmed > 0 {
            let confirm_ms = *self.confirm_ms.get_or_insert(now_ms + CONFIRM_MS);
            let is_much =
                self.unconfirmed >= CONFIRM_ENVELOPES || self.unconfirmed_bytes >= CONFIRM_BYTES;
            self.needs_ping |= is_much || confirm_ms <= now_ms;
        }
        if !self.needs_ping && now_ms < self.pinged_ms + PING_EVERY_MS {
            return;
        }
        self.out.extend_from_slice(b"PING\r\n");
        let (number, sent) = (self.next_ping, Instant::now());
        self.pings.push_back(Ping { number, sent, sent_ms: now_ms });
        self.next_ping += 1;
        self.pinged_ms = now_ms;
        self.needs_ping = false;
        (self.unconfirmed, self.unconfirmed_bytes, self.confirm_ms) = (0, 0, None);
    }

    pub(crate) fn next_tick_ms(&self) -> u64 {
        let ping = self.pinged_ms + PING_EVERY_MS;
        self.confirm_ms.unwrap_or(u64::MAX).min(ping).min(self.dead_ms().unwrap_or(u64::MAX))
    }

    /// The time at which the link is dead without input. An owner that did not poll for long has
    /// sent no PING in that time, so its silence does not count.
    fn dead_ms(&self) -> Option<u64> {
        Some(self.pings.front()?.sent_ms.max(self.received_ms) + SILENT_MAX_MS)
    }

    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Down>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let written = connect::poll_write(&mut self.stream, &mut self.out, context);
        if self.out.len() > OUT_BYTES_MAX {
            return Poll::Ready(Err(connect::broken("the broker reads too slowly")));
        }
        written.map_err(connect::broken)
    }

    /// Reads at least one byte.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        now_ms: u64,
    ) -> Poll<Result<(), Down>> {
        let buffer = &mut self.decoder.buffer;
        if buffer.capacity() - buffer.len() < READ_BYTES / 2 {
            buffer.reserve(READ_BYTES);
        }
        match std::task::ready!(connect::poll_read(&mut self.stream, buffer, context)) {
            Ok(0) => Poll::Ready(Err(connect::broken("the broker closed the connection"))),
            Ok(_) => {
                self.received_ms = now_ms;
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(connect::broken(error))),
        }
    }

    /// Checks whether the link is alive, after everything was read.
    ///
    /// # Errors
    /// It has been silent for too long.
    pub(crate) fn check(&self, now_ms: u64) -> Result<(), Down> {
        match self.dead_ms() {
            Some(dead_ms) if dead_ms <= now_ms => {
                Err(connect::broken("the broker does not respond"))
            }
            _ => Ok(()),
        }
    }
}
