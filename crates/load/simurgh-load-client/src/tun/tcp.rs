//! One TCP connection as its client, without I/O and clock (RFC 9293).
//!
//! It has the parts of TCP that a load generator's connections on one machine need: handshake,
//! acknowledgement, retransmission with backoff, windows, FIN and RST in both directions. It
//! deviates where that saves memory or code:
//!
//! - No congestion control, no fast retransmission: it sends what the peer's window allows. It must
//!   not be used over a network that others share.
//! - The only option is MSS. So windows end at 64 KiB, and there are no time stamps.
//! - Segments out of order are dropped, and come again. After a timeout everything that was not
//!   acknowledged is sent again.
//! - The peer's window is the one of the last segment: a segment that was overtaken may show an old
//!   one, until the next.
//! - No simultaneous open, no urgent data, no TIME-WAIT: what comes later is answered by a reset.

use std::collections::VecDeque;
use std::ops::Range;

use super::segment::{ACK, FIN, PSH, RST, SYN, Segment};

/// The receive window without waiting bytes.
pub(super) const WINDOW: u16 = u16::MAX;
/// The largest segment that a peer without the option takes (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;
/// The longest time between retransmissions (RFC 6298 (2.5)), ms.
pub(super) const RTO_MAX_MS: u32 = 60_000;
/// Retransmissions in a row after which a connection ends: about 3 minutes.
const TRIES_MAX: u8 = 8;
/// How long a closed connection waits for its peer's FIN, ms, as on Linux.
const FIN_WAIT_MS: u32 = 60_000;

/// A segment with an acknowledgement is to be sent, even if it has no data.
const ACK_DUE: u8 = 1;
/// The user has closed: a FIN follows the output.
const FIN_DUE: u8 = 1 << 1;
const FIN_ACKED: u8 = 1 << 2;
const PEER_FIN: u8 = 1 << 3;
/// The first segment under way was sent once, at `armed_ms` (Karn's algorithm).
const TIMED: u8 = 1 << 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    SynSent,
    /// Established, also while it closes.
    Open,
    Dead,
}

pub(super) struct Tcp {
    /// The first byte that is not acknowledged.
    una: u32,
    /// The next byte to send; after a timeout, an earlier one than `max`.
    nxt: u32,
    /// The end of what was ever sent.
    max: u32,
    /// The next byte to receive.
    rcv: u32,
    /// When the timer was started.
    armed_ms: u32,
    /// The bytes that the peer takes from `una` on.
    window: u16,
    /// The most payload of a segment.
    mss: u16,
    /// The number of the peer's address; the stack's, here because there is room.
    pub(super) remote: u16,
    /// Retransmissions in a row.
    tries: u8,
    state: State,
    flags: u8,
    /// Only while bytes wait.
    buffers: Option<Box<Buffers>>,
}

#[derive(Default)]
struct Buffers {
    /// From `una` on, without SYN and FIN.
    out: VecDeque<u8>,
    /// Received, but the user does not read.
    held: Vec<u8>,
}

/// The changes by a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) is_connected: bool,
    /// The part of the payload that is new.
    pub(super) data: Range<usize>,
    pub(super) end: Option<End>,
    /// The time from a segment to its acknowledgement.
    pub(super) rtt_ms: Option<u32>,
    /// It is to be answered by a reset.
    pub(super) is_refused: bool,
}

/// How a connection ended, for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer refused it.
    Refused,
    /// The peer has reset it.
    Reset,
    /// The peer did not answer; `true`: although the connection was established.
    TimedOut(bool),
    /// The peer sends no more.
    Closed,
}

/// Whether `a` is before `b` in sequence space.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Tcp {
    pub(super) fn new(first: u32, remote: u16) -> Self {
        Self {
            una: first,
            nxt: first,
            max: first,
            rcv: 0,
            armed_ms: 0,
            window: 0,
            mss: 0,
            remote,
            tries: 0,
            state: State::SynSent,
            flags: 0,
            buffers: None,
        }
    }

    pub(super) fn dead(first: u32) -> Self {
        Self { state: State::Dead, ..Self::new(first, 0) }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// The end of what was ever sent: a later connection between the same ends begins after it.
    pub(super) fn last(&self) -> u32 {
        self.max
    }

    fn out_bytes(&self) -> usize {
        self.buffers.as_ref().map_or(0, |buffers| buffers.out.len())
    }

    fn receive_window(&self) -> u16 {
        let held = self.buffers.as_ref().map_or(0, |buffers| buffers.held.len());
        WINDOW.saturating_sub(u16::try_from(held).unwrap_or(WINDOW))
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Adds output, which [`Self::transmit`] sends. Returns the bytes that now wait.
    pub(super) fn send(&mut self, bytes: &[u8]) -> usize {
        if self.is_dead() || self.has(FIN_DUE) || bytes.is_empty() {
            return 0;
        }
        let out = &mut self.buffers.get_or_insert_default().out;
        out.extend(bytes);
        out.len()
    }

    /// Keeps received bytes until the user reads: the window shrinks.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.buffers.get_or_insert_default().held.extend_from_slice(bytes);
    }

    /// The bytes that were kept; the window opens again.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        let held = self.buffers.as_mut().map(|buffers| std::mem::take(&mut buffers.held));
        let held = held.unwrap_or_default();
        if !held.is_empty() {
            self.flags |= ACK_DUE;
            self.tidy();
        }
        held
    }

    /// Whether the peer has sent its last byte.
    pub(super) fn peer_has_closed(&self) -> bool {
        self.has(PEER_FIN)
    }

    /// The user sends and receives no more; what it has sent is still delivered.
    pub(super) fn close(&mut self) {
        match self.state {
            State::SynSent => self.state = State::Dead,
            State::Open | State::Dead => self.flags |= FIN_DUE,
        }
    }

    /// Ends at once. Returns the reset for the peer, if it knows the connection.
    pub(super) fn abort(&mut self) -> Option<Segment> {
        let reset =
            Segment { seq: self.max, ack: self.rcv, flags: RST | ACK, ..Segment::default() };
        let before = std::mem::replace(&mut self.state, State::Dead);
        (before == State::Open).then_some(reset)
    }

    /// Whether nothing more will come, or be sent.
    pub(super) fn is_done(&self) -> bool {
        self.is_dead() || (self.has(FIN_ACKED) && self.has(PEER_FIN) && !self.has(ACK_DUE))
    }

    /// Handles a segment of the peer.
    pub(super) fn receive(&mut self, now_ms: u32, segment: &Segment, payload: usize) -> Received {
        let mut received = Received::default();
        match self.state {
            State::SynSent => self.receive_first(now_ms, segment, &mut received),
            State::Open => self.receive_next(now_ms, segment, payload, &mut received),
            State::Dead => {}
        }
        received
    }

    /// In the state SYN-SENT (RFC 9293 §3.10.7.3).
    fn receive_first(&mut self, now_ms: u32, segment: &Segment, received: &mut Received) {
        let is_acked = segment.has(ACK) && self.max != self.una && segment.ack == self.max;
        if segment.has(ACK) && !is_acked {
            received.is_refused = !segment.has(RST);
            // The peer remembers an earlier connection. After the reset, it accepts this one.
            if received.is_refused && self.tries == 0 {
                (self.nxt, self.tries) = (self.una, 1);
                self.flags &= !TIMED;
            }
        } else if segment.has(RST) && is_acked {
            self.state = State::Dead;
            received.end = Some(End::Refused);
        } else if segment.has(SYN) && is_acked && !segment.has(RST) {
            self.state = State::Open;
            self.rcv = segment.seq.wrapping_add(1);
            self.mss = segment.mss.unwrap_or(MSS_DEFAULT).clamp(1, super::MSS);
            self.window = segment.window;
            self.flags |= ACK_DUE;
            received.is_connected = true;
            self.progress(now_ms, segment.ack, received);
        }
    }

    /// In all other states (RFC 9293 §3.10.7.4, RFC 5961 §3 and §4).
    fn receive_next(
        &mut self,
        now_ms: u32,
        segment: &Segment,
        payload: usize,
        received: &mut Received,
    ) {
        let window = u32::from(self.receive_window());
        let length = payload as u32 + u32::from(segment.has(SYN)) + u32::from(segment.has(FIN));
        // How far it begins before what is expected.
        let before = self.rcv.wrapping_sub(segment.seq);
        let begins = before as i32 >= 0 || before.wrapping_neg() < window;
        let is_acceptable = match length {
            0 => before == 0 || (before as i32) < 0 && begins,
            _ => window > 0 && begins && (before as i32) < length as i32,
        };
        if segment.has(RST) {
            if before == 0 {
                self.state = State::Dead;
                received.end = Some(End::Reset);
            } else if is_acceptable {
                self.flags |= ACK_DUE;
            }
            return;
        }
        if !is_acceptable || segment.has(SYN) {
            self.flags |= ACK_DUE;
            // With a closed window, acknowledgements still count.
            if before != 0 || segment.has(SYN) {
                return;
            }
        }
        if !segment.has(ACK) || !self.acknowledged(now_ms, segment, received) {
            return;
        }
        if is_acceptable && length > 0 {
            self.receive_data(segment, before as i32, payload, window as usize, received);
        }
    }

    /// Handles the acknowledgement; `false` if the segment is to be dropped.
    fn acknowledged(&mut self, now_ms: u32, segment: &Segment, received: &mut Received) -> bool {
        if is_before(self.max, segment.ack) {
            // Of what was never sent.
            self.flags |= ACK_DUE;
            return false;
        }
        if is_before(segment.ack, self.una) {
            return true;
        }
        let before = std::mem::replace(&mut self.window, segment.window);
        if segment.ack != self.una {
            self.progress(now_ms, segment.ack, received);
        } else if self.window == 0 {
            // As long as the peer answers, its window may stay closed.
            self.tries = self.tries.min(TRIES_MAX - 2);
        } else if before == 0 {
            // It did not take the byte that asked for its window.
            (self.nxt, self.tries) = (self.una, 0);
            self.flags &= !TIMED;
        }
        true
    }

    /// The peer has acknowledged more.
    fn progress(&mut self, now_ms: u32, ack: u32, received: &mut Received) {
        if self.has(TIMED) {
            received.rtt_ms = Some(now_ms.wrapping_sub(self.armed_ms));
        }
        // SYN and FIN are not in the buffer.
        let acked = ack.wrapping_sub(self.una) as usize - usize::from(received.is_connected);
        let taken = acked.min(self.out_bytes());
        if let Some(buffers) = &mut self.buffers {
            buffers.out.drain(..taken);
        }
        if acked > taken {
            self.flags |= FIN_ACKED;
        }
        (self.una, self.tries, self.armed_ms) = (ack, 0, now_ms);
        self.flags &= !TIMED;
        if is_before(self.nxt, ack) {
            self.nxt = ack;
        }
        self.tidy();
    }

    fn receive_data(
        &mut self,
        segment: &Segment,
        before: i32,
        payload: usize,
        window: usize,
        received: &mut Received,
    ) {
        self.flags |= ACK_DUE;
        // A later segment would leave a gap.
        let Ok(known) = usize::try_from(before) else { return };
        if self.has(PEER_FIN) {
            return;
        }
        let end = payload.min(known.saturating_add(window));
        if known < end {
            if self.has(FIN_DUE) {
                // Nobody reads it any more.
                self.state = State::Dead;
                received.is_refused = true;
                return;
            }
            received.data = known..end;
            self.rcv = self.rcv.wrapping_add((end - known) as u32);
        }
        if segment.has(FIN) && end == payload {
            self.rcv = self.rcv.wrapping_add(1);
            self.flags |= PEER_FIN;
            received.end = Some(End::Closed);
        }
    }

    fn tidy(&mut self) {
        let is_empty = |buffers: &Buffers| buffers.out.is_empty() && buffers.held.is_empty();
        if self.buffers.as_deref().is_some_and(is_empty) {
            self.buffers = None;
        }
    }

    /// Sends all that can be sent now.
    pub(super) fn transmit(&mut self, now_ms: u32, mut send: impl FnMut(&Segment, &[u8])) {
        match self.state {
            State::SynSent if self.nxt == self.una => {
                let (mss, seq) = (Some(super::MSS), self.una);
                self.sent(now_ms, 1);
                send(&Segment { seq, flags: SYN, window: WINDOW, mss, ..Segment::default() }, &[]);
            }
            State::Open => {
                while self.transmit_one(now_ms, &mut send) {}
                if self.has(ACK_DUE) {
                    self.flags &= !ACK_DUE;
                    send(&self.segment(self.max, ACK), &[]);
                }
            }
            State::SynSent | State::Dead => {}
        }
    }

    fn segment(&self, seq: u32, flags: u8) -> Segment {
        Segment { seq, ack: self.rcv, flags, window: self.receive_window(), mss: None }
    }

    /// Sends the next segment with data or FIN; `false` if there is none.
    fn transmit_one(&mut self, now_ms: u32, send: &mut impl FnMut(&Segment, &[u8])) -> bool {
        let (seq, out_bytes) = (self.nxt, self.out_bytes());
        let sent = seq.wrapping_sub(self.una) as usize;
        if sent > out_bytes || self.has(FIN_ACKED) {
            return false;
        }
        // After a timeout at a closed window, one byte asks whether it has opened.
        let window = self.window.max(u16::from(self.tries > 0));
        let room = usize::from(window).saturating_sub(sent);
        let unsent = self.buffers.as_ref().map(|buffers| {
            let (first, second) = buffers.out.as_slices();
            match sent.checked_sub(first.len()) {
                Some(sent) => second.get(sent..).unwrap_or_default(),
                None => first.get(sent..).unwrap_or_default(),
            }
        });
        let bytes = unsent.map_or(0, <[u8]>::len).min(room).min(self.mss.into());
        let is_last = sent + bytes == out_bytes;
        let is_fin = is_last && self.has(FIN_DUE);
        if bytes == 0 && !is_fin {
            return false;
        }
        let flags = ACK | if is_fin { FIN } else { 0 } | if is_last { PSH } else { 0 };
        let payload = unsent.and_then(|unsent| unsent.get(..bytes)).unwrap_or_default();
        send(&self.segment(seq, flags), payload);
        self.sent(now_ms, bytes as u32 + u32::from(is_fin));
        self.flags &= !ACK_DUE;
        true
    }

    fn sent(&mut self, now_ms: u32, count: u32) {
        if self.una == self.max {
            self.armed_ms = now_ms;
            self.flags |= if self.tries == 0 { TIMED } else { 0 };
        }
        self.nxt = self.nxt.wrapping_add(count);
        if is_before(self.max, self.nxt) {
            self.max = self.nxt;
        }
    }

    /// When [`Self::timeout`] must be called, if nothing happens before.
    pub(super) fn deadline_ms(&self, rto_ms: u32) -> Option<u32> {
        let is_waiting = self.una != self.max || self.out_bytes() > 0;
        let wait_ms = match self.state {
            State::Open if self.has(FIN_ACKED) => FIN_WAIT_MS,
            State::SynSent | State::Open if is_waiting => {
                rto_ms.saturating_mul(1 << self.tries.min(TRIES_MAX)).min(RTO_MAX_MS)
            }
            _ => return None,
        };
        Some(self.armed_ms.wrapping_add(wait_ms))
    }

    /// The deadline has passed: what was not acknowledged is to be sent again (RFC 6298 §5), or the
    /// connection has ended.
    pub(super) fn timeout(&mut self, now_ms: u32) -> Option<End> {
        let is_open = self.state == State::Open;
        if self.has(FIN_ACKED) || self.tries >= TRIES_MAX {
            self.state = State::Dead;
            return (!self.has(FIN_ACKED)).then_some(End::TimedOut(is_open));
        }
        self.tries += 1;
        self.armed_ms = now_ms;
        self.nxt = self.una;
        self.flags &= !TIMED;
        None
    }
}
