//! The connections of a link: opening, writing, reading, loss.

use std::io;

use simurgh_load_client::http::{Done, Event, Response, ResponseError};
use simurgh_load_client::tls::fault;
use simurgh_load_record::ErrorKind;
use simurgh_reactor::{Closed, ConnectOptions, Key};

use super::job::LIMITS;
use super::link::State;
use super::worker::{Net, Phase, Worker};

/// How long a server that announced a close may take for it.
const LEAVE_NS: u64 = 1_000_000_000;

impl Worker {
    /// The place of the link that has this connection.
    fn place_of(&self, io: &Net, key: Key) -> Option<u32> {
        let place = io.conn_ref(key).copied()?;
        self.links.get(place as usize).filter(|link| link.key == key).map(|_| place)
    }

    /// Opens a connection for a link that has none.
    pub(super) fn open(&mut self, io: &mut Net, place: u32) {
        match self.sources.connect(io, self.job.address, ConnectOptions::default(), place) {
            Ok(key) => {
                let Some(link) = self.links.get_mut(place as usize) else { return };
                link.key = key;
                link.state = State::Connecting;
                link.since_ns = io.now().ns;
                self.opening += 1;
            }
            Err(error) => {
                let kind = ErrorKind::of_connect(&error);
                self.not_connected(io, place, kind, || error.to_string());
            }
        }
    }

    pub(super) fn link_up(&mut self, io: &mut Net, key: Key) {
        let Some(tls) = &self.job.tls else { return self.ready(io, key) };
        if let Err(error) = tls.begin(io, key, &self.job.host) {
            self.not_secured(io, key, error);
        }
    }

    pub(super) fn not_secured(&mut self, io: &mut Net, key: Key, error: String) {
        if let Some(place) = self.place_of(io, key) {
            self.not_connected(io, place, ErrorKind::Tls, || error);
        }
    }

    /// The connection of a link is established, with TLS where it is used.
    pub(super) fn ready(&mut self, io: &mut Net, key: Key) {
        let Some(place) = self.place_of(io, key) else { return };
        self.settle(true);
        let Some(link) = self.links.get_mut(place as usize) else { return };
        link.state = State::Idle;
        let now_ns = io.clock_ns();
        if std::mem::take(&mut link.resend) {
            let due_ns = link.due_ns;
            return self.send(io, place, due_ns, now_ns);
        }
        self.next_request(io, place, now_ns);
    }

    fn settle(&mut self, is_open: bool) {
        self.opening = self.opening.saturating_sub(1);
        if self.phase == Phase::Opening {
            self.settled += 1;
            self.opened += usize::from(is_open);
        }
    }

    /// A connection was not established; the next tick tries again.
    pub(super) fn not_connected(
        &mut self,
        io: &mut Net,
        place: u32,
        kind: ErrorKind,
        text: impl FnOnce() -> String,
    ) {
        self.tally.error(kind, text);
        let Some(link) = self.links.get_mut(place as usize) else { return };
        if link.state == State::Down {
            // It could not be begun, and was not counted.
            self.opening += 1;
        }
        // Not aborted: the server can still read an alert.
        io.close(link.release());
        self.settle(false);
    }

    pub(super) fn send(&mut self, io: &mut Net, place: u32, due_ns: u64, now_ns: u64) {
        let Some(link) = self.links.get_mut(place as usize) else { return };
        link.state = State::Busy;
        link.due_ns = due_ns;
        link.since_ns = now_ns;
        link.response = Response::new(self.job.to_head, LIMITS);
        io.send_shared(link.key, &self.request);
    }

    pub(super) fn answer_in(&mut self, io: &mut Net, key: Key, data: &[u8]) {
        let Some(place) = self.place_of(io, key) else { return };
        self.tally.bytes_in += data.len() as u64;
        let Some(link) = self.links.get_mut(place as usize) else { return };
        if link.state != State::Busy {
            let text = || "the server sent data without a request".to_owned();
            return self.fail(io, place, ErrorKind::HttpMalformed, text);
        }
        let mut rest = data;
        let ended = loop {
            match link.response.next(&mut rest) {
                Ok(Event::More) => return,
                Ok(Event::Head(_) | Event::Body(_)) => {}
                Ok(Event::Done(done)) => break Ok(done),
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(done) => self.answered(io, place, done, rest.is_empty()),
            Err(error) => self.fail(io, place, ErrorKind::HttpMalformed, || error.to_string()),
        }
    }

    fn answered(&mut self, io: &mut Net, place: u32, done: Done, is_all: bool) {
        let now_ns = io.clock_ns();
        let Some(link) = self.links.get_mut(place as usize) else { return };
        self.tally.answered(done.status, now_ns.saturating_sub(link.due_ns));
        link.state = State::Idle;
        link.has_answered = true;
        if !done.keep_alive || self.job.closes {
            let key = link.release();
            self.leaving.push(now_ns + LEAVE_NS, key);
            self.tally.reconnects += 1;
            self.open(io, place);
        } else if is_all {
            self.next_request(io, place, now_ns);
        } else {
            let text = || "the server sent more than its answer".to_owned();
            self.fail(io, place, ErrorKind::HttpMalformed, text);
        }
    }

    pub(super) fn fail(
        &mut self,
        io: &mut Net,
        place: u32,
        kind: ErrorKind,
        text: impl FnOnce() -> String,
    ) {
        self.tally.error(kind, text);
        let Some(link) = self.links.get_mut(place as usize) else { return };
        if link.state == State::Busy && self.pace.is_some() {
            self.tally.waited(io.clock_ns().saturating_sub(link.due_ns));
        }
        let key = link.release();
        io.abort(key);
        self.open_again(io, place);
    }

    fn open_again(&mut self, io: &mut Net, place: u32) {
        if self.phase == Phase::Running {
            self.open(io, place);
        }
    }

    pub(super) fn link_down(&mut self, io: &mut Net, key: Key, place: u32, why: Closed) {
        let link = self.links.get_mut(place as usize).filter(|link| link.key == key);
        let Some(link) = link.filter(|_| self.phase != Phase::Over) else { return };
        match link.state {
            State::Down => {}
            State::Connecting => {
                let kind = match why {
                    Closed::Unconnected(kind) => ErrorKind::of_unconnected(kind),
                    _ => ErrorKind::Tls,
                };
                self.not_connected(io, place, kind, || closed_error(why));
            }
            State::Idle => {
                link.release();
                self.tally.reconnects += 1;
                self.open_again(io, place);
            }
            State::Busy => self.lost(io, place, why),
        }
    }

    /// A connection ended while an answer was awaited.
    fn lost(&mut self, io: &mut Net, place: u32, why: Closed) {
        let Some(link) = self.links.get_mut(place as usize) else { return };
        let ended = link.response.end();
        match ended {
            // Without a length the answer ends with the connection, but not with a reset.
            Ok(done) if why == Closed::PeerEof => self.answered(io, place, done, true),
            Err(ResponseError::NoAnswer) if link.has_answered && fault(why).is_none() => {
                link.release();
                link.resend = true;
                self.tally.reconnects += 1;
                self.open_again(io, place);
            }
            _ => {
                let kind = match why {
                    Closed::Reset(io::ErrorKind::BrokenPipe) => ErrorKind::Send,
                    Closed::Reset(_) | Closed::Unconnected(_) | Closed::Alert(_) => {
                        ErrorKind::ConnectionReset
                    }
                    Closed::Slow => ErrorKind::SendStalled,
                    Closed::PeerEof | Closed::Local => ErrorKind::EndOfStream,
                };
                let text = || match ended {
                    Err(error) if why == Closed::PeerEof => error.to_string(),
                    _ => closed_error(why),
                };
                self.fail(io, place, kind, text);
            }
        }
    }
}

fn closed_error(why: Closed) -> String {
    let error: io::Error = match why {
        Closed::Unconnected(kind) | Closed::Reset(kind) => kind.into(),
        Closed::PeerEof => io::Error::other("the server closed the connection"),
        Closed::Local | Closed::Slow | Closed::Alert(_) => {
            io::Error::other("the attempt to connect was abandoned")
        }
    };
    fault(why).unwrap_or_else(|| error.to_string())
}
