//! Any messages as answers of JetStream: part of the fuzz target `nats_wire`.
//!
//! Each ticket must be answered once, in time; the messages of a fetch must be in order, and not
//! more than requested.

use std::time::Duration;

use bytes::Bytes;
use simurgh_cluster::adapter::{Fetch, Fetched, LAST_OF_MAX, TICKET_SECONDS_MAX};
use simurgh_cluster::{Space, Subject, Ticket};

use super::*;

pub(crate) const INBOX: &str = "_INBOX_p.";
const COUNT: usize = 4;

fn prefix() -> Prefix {
    Prefix::new("p").expect("it is one")
}

fn subject(topic: &str) -> Subject {
    prefix().topic(Space::Store, topic)
}

/// # Panics
/// An invariant is broken.
pub(crate) fn run(messages: Vec<Message>) {
    let mut jetstream = JetStream::new(&prefix(), Some(StreamsConfig::default()));
    jetstream.inbox = INBOX.to_owned();
    let (mut out, mut events) = (BytesMut::new(), VecDeque::new());
    jetstream.link(0, "2.15.2", &mut out);
    // Up without a check of the streams, so that everything is requested.
    (jetstream.state, jetstream.epochs) = (State::On, Some(Epochs { kept: Some(1), log: None }));
    jetstream.up(0, &mut out, &mut events);
    let tickets = ask(&mut jetstream, &mut out, &mut events);
    let end_ms = TICKET_SECONDS_MAX * 1_000;
    let step_ms = end_ms / (messages.len() as u64 + 1);
    let mut now_ms = 0;
    for message in messages {
        now_ms += step_ms;
        if let Action::Reconnect(why) = jetstream.on_answer(message, now_ms, &mut out, &mut events)
        {
            assert!(!why.is_empty());
            jetstream.unlink();
            jetstream.link(now_ms, "2.15.2", &mut out);
            (jetstream.state, jetstream.epochs) =
                (State::On, Some(Epochs { kept: Some(now_ms), log: None }));
            jetstream.up(now_ms, &mut out, &mut events);
        }
        jetstream.tick(now_ms, Some(&mut out), &mut events);
    }
    jetstream.tick(end_ms, Some(&mut out), &mut events);
    let mut answered: Vec<u64> = events.iter().map(check).collect();
    answered.sort_unstable();
    assert_eq!(answered, (1..=tickets).collect::<Vec<_>>(), "each once");
}

fn ask(jetstream: &mut JetStream, out: &mut BytesMut, events: &mut VecDeque<Event>) -> u64 {
    let topic = subject("t");
    let store = (&topic, "id", None);
    let mut taken = vec![
        jetstream.take(jetstream.store(store, Bytes::new(), Ticket(1)), Some(out), 0, events),
        jetstream.take(jetstream.purge(&topic, 7, Ticket(2)), Some(out), 0, events),
    ];
    for (ticket, from_leader) in [(3, false), (4, true)] {
        let subject = topic.clone();
        let (count, bytes) = (COUNT as u32, 100);
        let what = Fetch::After { subject, seq: 2, count, bytes, from_leader };
        taken.push(jetstream.take(jetstream.fetch(what, Ticket(ticket)), Some(out), 0, events));
    }
    let subjects = vec![subject("a"), subject("b")];
    taken.push(jetstream.take(
        jetstream.fetch(Fetch::LastOf { subjects }, Ticket(5)),
        Some(out),
        0,
        events,
    ));
    let since = Fetch::Since { subject: topic, age: Duration::from_secs(1) };
    taken.push(jetstream.take(jetstream.fetch(since, Ticket(6)), Some(out), 0, events));
    assert!(taken.iter().all(Result::is_ok));
    taken.len() as u64
}

fn check(event: &Event) -> u64 {
    match event {
        Event::Fetched { ticket, kept } => {
            let count_max = if ticket.0 == 5 { LAST_OF_MAX } else { COUNT };
            if let Some(Fetched { messages, head, .. }) = kept {
                assert!(messages.len() <= count_max);
                let seqs: Vec<u64> =
                    messages.iter().filter_map(|it| it.stored).map(|it| it.seq).collect();
                assert!(seqs.is_sorted(), "{seqs:?}");
                assert_eq!(seqs.len(), messages.len());
                assert!(seqs.last().is_none_or(|last| last <= head), "{seqs:?} up to {head}");
            }
            ticket.0
        }
        Event::Stored { ticket, seq, .. } => {
            assert!(*seq > 0);
            ticket.0
        }
        Event::NotStored { ticket, .. }
        | Event::Since { ticket, .. }
        | Event::Purged { ticket, .. } => ticket.0,
        other => panic!("{other:?}"),
    }
}
