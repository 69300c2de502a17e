//! A node under test, and checks of each of its events.

use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use simurgh_cluster::adapter::{Down, IN_FLIGHT_MAX, NotStored};
use simurgh_cluster::{
    Adapter, Event, Generation, Interest, NodeId, QueueFull, Received, Session, Subject, Ticket,
    Wanted,
};

use super::message::TestMessage;

pub(super) struct Node {
    pub(super) adapter: Option<Box<dyn Adapter>>,
    pub(super) id: NodeId,
    pub(super) received: Vec<Received>,
    pub(super) session: Option<Session>,
    pub(super) is_up: bool,
    pub(super) ups: usize,
    pub(super) downs: usize,
    pub(super) lost: Vec<Interest>,
    pub(super) rooms: usize,
    pub(super) kept: Option<u64>,
    pub(super) log: Option<u64>,
    pub(super) answers: Vec<(Ticket, Event)>,
    pub(super) in_force: Option<Generation>,
    reported_down: Option<Down>,
    generation: Generation,
    pub(super) is_full: bool,
    pub(super) unanswered: BTreeSet<Ticket>,
    /// The number of the last envelope that it published.
    pub(super) n: u64,
    /// The received messages, by publisher and number.
    numbers: BTreeSet<(NodeId, u64)>,
}

impl Node {
    pub(super) fn new(adapter: Box<dyn Adapter>, id: NodeId) -> Self {
        Self {
            adapter: Some(adapter),
            id,
            received: Vec::new(),
            session: None,
            is_up: false,
            ups: 0,
            downs: 0,
            lost: Vec::new(),
            rooms: 0,
            kept: None,
            log: None,
            answers: Vec::new(),
            in_force: None,
            reported_down: None,
            generation: Generation(0),
            is_full: false,
            unanswered: BTreeSet::new(),
            n: 0,
            numbers: BTreeSet::new(),
        }
    }

    #[track_caller]
    pub(super) fn adapter(&mut self) -> &mut dyn Adapter {
        match &mut self.adapter {
            Some(adapter) => adapter.as_mut(),
            None => unreachable!("the node is gone"),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.adapter.as_ref().map_or(0, |it| it.in_flight())
    }

    /// Changes interests; the generation grows by one.
    #[track_caller]
    pub(super) fn change(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        let generation = self.adapter().interest(changes);
        assert_eq!(generation, Generation(self.generation.0 + 1), "numbers of changes");
        self.generation = generation;
        generation
    }

    /// Publishes an envelope, and counts it.
    #[track_caller]
    pub(super) fn publish(&mut self, to: &Subject, envelope: &Bytes) -> Result<(), QueueFull> {
        let result = self.adapter().publish(to, envelope.clone());
        match result {
            Ok(()) => self.n += 1,
            Err(QueueFull) => self.is_full = true,
        }
        let in_flight = self.in_flight();
        assert!(in_flight <= IN_FLIGHT_MAX, "{in_flight} are under way");
        result
    }

    /// Stores a small envelope, and counts it.
    #[track_caller]
    pub(super) fn store(
        &mut self,
        to: &Subject,
        id: &str,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        let envelope =
            TestMessage { origin: self.id, n: self.n + 1, topic: "", payload: id }.encode();
        let result = self.adapter().store(to, id, None, envelope, ticket);
        match result {
            Ok(()) => self.n += 1,
            Err(QueueFull) => self.is_full = true,
        }
        if result.is_ok() {
            self.unanswered.insert(ticket);
        }
        result
    }

    pub(super) fn answer(&self, ticket: Ticket) -> Option<&Event> {
        self.answers.iter().find(|(it, _)| *it == ticket).map(|(_, event)| event)
    }

    pub(super) fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while let Some(adapter) = &mut self.adapter
            && let Poll::Ready(event) = adapter.poll_event(&mut context)
        {
            self.take(event);
        }
    }

    /// Checks the conditions that every event has to fulfil in every case.
    fn take(&mut self, event: Event) {
        match event {
            Event::Up { session, kept, log } => {
                assert!(!self.is_up, "up twice, without a down between");
                assert!(self.session < Some(session), "{session:?} after {:?}", self.session);
                (self.is_up, self.session, self.reported_down) = (true, Some(session), None);
                (self.kept, self.log) = (kept, log);
                self.ups += 1;
            }
            Event::Down(why) => {
                assert_ne!(self.reported_down.as_ref(), Some(&why), "down twice, for one reason");
                self.downs += usize::from(self.is_up);
                (self.is_up, self.reported_down) = (false, Some(why));
            }
            Event::Received(received) => {
                let is_new =
                    TestMessage::number(&received).is_none_or(|it| self.numbers.insert(it));
                assert!(
                    is_new || TestMessage::is_marked(&received),
                    "twice, not marked: {received:?}"
                );
                self.received.push(received);
            }
            Event::Lost(interests) => {
                assert!(!interests.is_empty(), "something is lost, of no interest");
                self.lost.extend(interests);
            }
            Event::InForce(generation) => {
                assert!(generation <= self.generation, "in force, and not wanted yet");
                assert!(self.in_force <= Some(generation), "in force, and no longer");
                self.in_force = Some(generation);
            }
            Event::Room => {
                assert!(self.is_full, "room, and it was not full");
                self.is_full = false;
                self.rooms += 1;
            }
            answer => {
                let Some(ticket) = answer.ticket() else { unreachable!("{answer:?}") };
                assert!(self.unanswered.remove(&ticket), "{ticket:?} is answered, and not asked");
                self.answers.push((ticket, answer));
            }
        }
    }

    /// Whether it was notified of a possible loss, after it was up first.
    pub(super) fn was_warned(&self) -> bool {
        self.downs > 0 || !self.lost.is_empty()
    }

    /// Whether it was notified that there is no link.
    pub(super) const fn has_reported_down(&self) -> bool {
        self.reported_down.is_some()
    }

    pub(super) fn is_unconfirmed(&self, ticket: Ticket) -> bool {
        matches!(self.answer(ticket), Some(Event::NotStored { why: NotStored::Unconfirmed, .. }))
    }

    pub(super) fn is_answered(&self, ticket: Ticket) -> bool {
        self.answer(ticket).is_some()
    }
}
