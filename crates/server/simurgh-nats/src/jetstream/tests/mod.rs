//! JetStream against a simulated broker that answers, is silent, or answers wrongly.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use simurgh_cluster::adapter::{Fetch, Fetched, NotStored};
use simurgh_cluster::{QueueFull, Space, Subject, Ticket};

use super::*;
use crate::streams::{Replicas, StreamCount};
use crate::wire::{Decoder, Op};

mod fetches;
mod model;
mod stores;
mod streams;

fn prefix() -> Prefix {
    Prefix::new("p").unwrap()
}

fn subject(topic: &str) -> Subject {
    prefix().topic(Space::Store, topic)
}

/// The answer to `STREAM.INFO` of a stream that fits.
fn info(last_seq: u64) -> Value {
    let config = StreamsConfig::default().stream(&prefix(), 0);
    json!({ "config": config, "created": "x", "state": { "last_seq": last_seq } })
}

#[derive(Clone, Debug)]
struct Sent {
    subject: String,
    reply: String,
    body: String,
}

/// The state machine and a simulated broker.
struct Fixture {
    jetstream: JetStream,
    out: BytesMut,
    events: VecDeque<Event>,
    now_ms: u64,
    tickets: u64,
    /// As in the answer to `STREAM.INFO`.
    created: String,
    last_seq: u64,
    /// Its clock.
    ts: String,
    config: Value,
}

impl Fixture {
    fn new(streams: StreamsConfig) -> Self {
        let config = streams.stream(&prefix(), 0);
        Self {
            jetstream: JetStream::new(&prefix(), Some(streams)),
            out: BytesMut::new(),
            events: VecDeque::new(),
            now_ms: 5_000,
            tickets: 0,
            created: "2026-01-01T00:00:00Z".to_owned(),
            last_seq: 0,
            ts: String::new(),
            config,
        }
    }

    /// Linked to a broker whose stream fits.
    fn on(streams: StreamsConfig) -> Self {
        let mut fixture = Self::new(streams);
        fixture.link();
        fixture.fits();
        fixture
    }

    fn link(&mut self) {
        self.jetstream.link(self.now_ms, "2.15.2", &mut self.out);
    }

    fn unlink(&mut self) {
        self.jetstream.unlink();
        self.out.clear();
    }

    /// Answers all requests about streams as a valid broker does, and reports the link as up.
    fn fits(&mut self) {
        for _ in 0..9 {
            for sent in self.requests() {
                self.answer_check(&sent);
            }
        }
        self.up();
    }

    fn up(&mut self) -> Option<u64> {
        let kept = self.jetstream.decided().expect("it is decided").kept;
        self.jetstream.up(self.now_ms, &mut self.out, &mut self.events);
        kept
    }

    fn answer_check(&mut self, sent: &Sent) -> Action {
        let subject = &*sent.subject;
        if subject.contains(".INFO.") || subject.contains(".CREATE.") {
            return self.answer(sent, &self.info().to_string());
        }
        if subject.contains(".UPDATE.") {
            self.config = serde_json::from_str(&sent.body).unwrap();
            return self.answer(sent, &self.info().to_string());
        }
        if subject.contains("DIRECT.GET") {
            return self.status(sent, 404, "");
        }
        let code = if subject.contains("MSG.GET") { 10_037 } else { 10_060 };
        self.fail(sent, 400, code)
    }

    fn info(&self) -> Value {
        json!({
            "config": self.config, "created": self.created, "state": { "last_seq": self.last_seq },
            "cluster": { "leader": "a" }, "ts": self.ts,
        })
    }

    fn requests(&mut self) -> Vec<Sent> {
        let written = self.out.split();
        let mut rest = &written[..];
        let mut found = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = str::from_utf8(&rest[..end]).unwrap().trim_end();
            rest = &rest[end + 1..];
            let fields: Vec<&str> = line.split(' ').collect();
            let (subject, reply, bytes) = match fields[..] {
                ["PUB", subject, reply, bytes] | ["HPUB", subject, reply, _, bytes] => {
                    (subject.to_owned(), reply.to_owned(), bytes.parse::<usize>().unwrap())
                }
                ["SUB", ..] => continue,
                _ => panic!("{line}"),
            };
            let body = String::from_utf8(rest[..bytes].to_vec()).unwrap();
            rest = &rest[bytes + 2..];
            found.push(Sent { subject, reply, body });
        }
        found
    }

    fn on_answer(&mut self, text: &str) -> Action {
        let Self { jetstream, out, events, now_ms, .. } = self;
        let mut then = Action::Continue;
        for message in messages(text.as_bytes()) {
            let next = jetstream.on_answer(message, *now_ms, out, events);
            then = if next == Action::Continue { then } else { next };
        }
        then
    }

    fn answer(&mut self, sent: &Sent, body: &str) -> Action {
        self.on_answer(&format!("MSG {} 0 {}\r\n{body}\r\n", sent.reply, body.len()))
    }

    fn fail(&mut self, sent: &Sent, code: u32, err_code: u32) -> Action {
        let error = json!({ "code": code, "err_code": err_code, "description": "no" });
        self.answer(sent, &json!({ "error": error }).to_string())
    }

    fn status(&mut self, sent: &Sent, status: u16, headers: &str) -> Action {
        self.with_headers(sent, &format!("NATS/1.0 {status} x\r\n{headers}\r\n"), "")
    }

    fn with_headers(&mut self, sent: &Sent, headers: &str, text: &str) -> Action {
        let (some, all) = (headers.len(), headers.len() + text.len());
        self.on_answer(&format!("HMSG {} 0 {some} {all}\r\n{headers}{text}\r\n", sent.reply))
    }

    /// A message in the answer to `DIRECT.GET`.
    fn message(&mut self, sent: &Sent, seq: u64, prev: u64, text: &str) {
        let headers = format!(
            "NATS/1.0\r\nNats-Sequence: {seq}\r\nNats-Last-Sequence: {prev}\r\n\
             Nats-Time-Stamp: 1970-01-01T00:00:0{}Z\r\n\r\n",
            seq % 10
        );
        self.with_headers(sent, &headers, text);
    }

    fn ends(&mut self, sent: &Sent, last: u64, pending: u64) {
        let headers = format!("Nats-Last-Sequence: {last}\r\nNats-Num-Pending: {pending}\r\n");
        self.status(sent, 204, &headers);
    }

    /// Lets time pass in steps, until the link has to end.
    fn pass(&mut self, ms: u64) -> Action {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            let then = self.jetstream.tick(self.now_ms, Some(&mut self.out), &mut self.events);
            if then != Action::Continue {
                return then;
            }
        }
        Action::Continue
    }

    fn pass_without_link(&mut self, ms: u64) {
        self.now_ms += ms;
        self.jetstream.tick(self.now_ms, None, &mut self.events);
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn store(&mut self, id: &str) -> Ticket {
        self.store_for(id, None)
    }

    /// As [`store`](Self::store), of an envelope that may be removed after a time.
    fn store_for(&mut self, id: &str, age: Option<Duration>) -> Ticket {
        let ticket = self.ticket();
        let envelope = Bytes::copy_from_slice(id.as_bytes());
        let Self { jetstream, out, events, now_ms, .. } = self;
        let what = (&subject("t"), id, age);
        jetstream
            .take(jetstream.store(what, envelope, ticket), Some(out), *now_ms, events)
            .unwrap();
        ticket
    }

    fn fetch(&mut self, what: Fetch) -> Ticket {
        let ticket = self.ticket();
        let Self { jetstream, out, events, now_ms, .. } = self;
        jetstream.take(jetstream.fetch(what, ticket), Some(out), *now_ms, events).unwrap();
        ticket
    }

    fn after(&mut self, from_leader: bool) -> Ticket {
        self.fetch(Fetch::After { subject: subject("t"), seq: 3, count: 5, bytes: 9, from_leader })
    }

    fn events(&mut self) -> Vec<Event> {
        self.events.drain(..).inspect(|_| self.jetstream.tickets.taken()).collect()
    }

    fn fetched(&mut self) -> Fetched {
        match &self.events()[..] {
            [Event::Fetched { kept: Some(kept), .. }] => kept.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn messages(bytes: &[u8]) -> Vec<Message> {
    let mut decoder = Decoder::default();
    decoder.buffer.extend_from_slice(bytes);
    let mut found = Vec::new();
    while let Ok(Some(op)) = decoder.next() {
        if let Op::Message(message) = op {
            found.push(message);
        }
    }
    found
}

fn three() -> StreamsConfig {
    StreamsConfig { replicas: Replicas::Three, ..StreamsConfig::default() }
}

fn texts(fetched: &Fetched) -> Vec<(u64, u64, u64, &str)> {
    let read = |it: &simurgh_cluster::Received| {
        let number = it.stored.unwrap();
        (number.seq, number.prev, it.at_ms)
    };
    fetched
        .messages
        .iter()
        .map(|it| (read(it).0, read(it).1, read(it).2, str::from_utf8(&it.envelope).unwrap()))
        .collect()
}

proptest! {
    /// Whatever the broker sends, each ticket is answered once, in time.
    #[test]
    fn arbitrary_response_does_no_harm(data in prop::collection::vec(any::<u8>(), 0..400)) {
        super::fuzz::run(messages(&data));
    }

    #[test]
    fn well_formed_response_does_no_harm(
        answers in prop::collection::vec(
            (0..40_u64, 0..4_u64, 0..9_usize, 0..30_u64, 0..30_u64),
            0..60,
        ),
    ) {
        let mut stream = Vec::new();
        for (key, attempt, form, seq, prev) in answers {
            let reply = format!("{}{:x}", super::fuzz::INBOX, (key << 16) | attempt);
            let error = json!({ "error": { "code": 503, "err_code": 10_030 + seq } });
            let message = json!({ "message": { "seq": seq, "data": "aGk=", "time": "x" } });
            let text = match form {
                0 => format!("{{\"seq\":{seq},\"duplicate\":true,\"success\":true}}"),
                1 => error.to_string(),
                2 => message.to_string(),
                3 => info(seq).to_string(),
                _ => "x".to_owned(),
            };
            let headers = match form {
                4 => format!(
                    "NATS/1.0 204 x\r\nNats-Last-Sequence: {seq}\r\n\
                     Nats-Num-Pending: {prev}\r\n\r\n"
                ),
                5 => "NATS/1.0 404 x\r\n\r\n".to_owned(),
                6 => "NATS/1.0 503 x\r\n\r\n".to_owned(),
                7 => format!(
                    "NATS/1.0\r\nNats-Sequence: {seq}\r\nNats-Last-Sequence: {prev}\r\n\r\n"
                ),
                8 => "NATS/1.0 408 x\r\n\r\n".to_owned(),
                _ => "NATS/1.0\r\n\r\n".to_owned(),
            };
            let (some, all) = (headers.len(), headers.len() + text.len());
            let answer = format!("HMSG {reply} 0 {some} {all}\r\n{headers}{text}\r\n");
            stream.extend_from_slice(answer.as_bytes());
        }
        super::fuzz::run(messages(&stream));
    }
}
