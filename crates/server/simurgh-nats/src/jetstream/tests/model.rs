//! An engine that answers, is silent, refuses, or disconnects at any moment: the answer to a
//! store's ticket agrees with the log.

use super::*;

/// The engine's reaction to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stores,
    /// It stores, and the answer is lost.
    Silent,
    /// The store is lost before it arrives.
    Lost,
    /// The stream has no leader.
    Nobody,
    Refuses,
}

#[derive(Clone, Debug)]
enum Step {
    Store,
    /// This many requests in flight arrive.
    Arrive(usize, Mode),
    /// The link breaks; this many requests in flight arrive all the same.
    Break(usize),
    Link,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        4 => Just(Mode::Stores),
        1 => Just(Mode::Silent),
        1 => Just(Mode::Lost),
        1 => Just(Mode::Nobody),
        1 => Just(Mode::Refuses),
    ];
    prop_oneof![
        4 => Just(Step::Store),
        6 => (1..6_usize, mode).prop_map(|(count, mode)| Step::Arrive(count, mode)),
        1 => (0..6_usize).prop_map(Step::Break),
        2 => Just(Step::Link),
        3 => prop_oneof![Just(10), 100..900_u64, 900..4_000_u64].prop_map(Step::Pass),
    ]
}

struct Model {
    fixture: Fixture,
    is_linked: bool,
    /// In flight to the engine.
    wire: VecDeque<Sent>,
    /// The stored ids.
    log: Vec<String>,
}

impl Model {
    fn written(&mut self) {
        self.wire.extend(self.fixture.requests());
    }

    fn arrive(&mut self, mode: Mode, can_answer: bool) {
        let Some(sent) = self.wire.pop_front() else { return };
        let id = sent.body.split_once("Nats-Msg-Id: ").map(|it| it.1.split("\r\n").next());
        let Some(Some(id)) = id else {
            if can_answer {
                assert_eq!(self.fixture.answer_check(&sent), Action::Continue);
            }
            return;
        };
        let known = self.log.iter().position(|it| it == id);
        match mode {
            Mode::Lost => {}
            Mode::Nobody if can_answer => {
                self.fixture.status(&sent, 503, "");
            }
            Mode::Refuses if can_answer => {
                self.fixture.fail(&sent, 400, 10_054);
            }
            _ => {
                let at = known.unwrap_or_else(|| {
                    self.log.push(id.to_owned());
                    self.log.len() - 1
                });
                let duplicate = known.is_some();
                self.fixture.last_seq = self.log.len() as u64;
                let body = format!("{{\"seq\":{},\"duplicate\":{duplicate}}}", at + 1);
                if can_answer && mode == Mode::Stores {
                    self.fixture.answer(&sent, &body);
                }
            }
        }
    }

    fn link(&mut self) {
        self.fixture.link();
        self.is_linked = true;
        for _ in 0..4 {
            self.written();
            while !self.wire.is_empty() {
                self.arrive(Mode::Stores, true);
            }
        }
        self.fixture.up();
        self.written();
    }

    /// Time passes; the link ends if it has to.
    fn pass(&mut self, ms: u64) {
        let mut left = ms / 10;
        while left > 0 {
            left -= 1;
            if self.is_linked && self.fixture.pass(10) != Action::Continue {
                self.take(&Step::Break(3));
            } else if !self.is_linked {
                self.fixture.pass_without_link(10);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Store => {
                let id = format!("{}", self.fixture.tickets + 1);
                self.fixture.store(&id);
            }
            Step::Arrive(count, mode) if self.is_linked => {
                (0..count).for_each(|_| self.arrive(mode, true));
            }
            Step::Break(count) if self.is_linked => {
                (0..count).for_each(|_| self.arrive(Mode::Silent, false));
                self.wire.clear();
                self.fixture.unlink();
                self.is_linked = false;
            }
            Step::Link if !self.is_linked => self.link(),
            Step::Pass(ms) => self.pass(ms),
            _ => {}
        }
        match self.is_linked {
            true => self.written(),
            // Without a link nothing is written.
            false => assert!(self.fixture.requests().is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn reported_stores_match_the_log(steps in prop::collection::vec(step(), 1..80)) {
        let fixture = Fixture::new(StreamsConfig::default());
        let wire = VecDeque::new();
        let mut model = Model { fixture, is_linked: false, wire, log: vec![] };
        for step in &steps {
            model.take(step);
        }
        // A request in flight may arrive after its timeout.
        model.pass(9_010);
        (0..model.wire.len()).for_each(|_| model.arrive(Mode::Stores, model.is_linked));
        let mut log = model.log.clone();
        log.sort();
        log.dedup();
        prop_assert_eq!(log.len(), model.log.len(), "none is stored twice");
        let mut answered = vec![];
        for event in model.fixture.events() {
            match event {
                Event::Stored { ticket, seq, .. } => {
                    prop_assert_eq!(&model.log[seq as usize - 1], &ticket.0.to_string());
                    answered.push(ticket.0);
                }
                Event::NotStored { ticket, why } => {
                    if let NotStored::Refused(_) = why {
                        let id = ticket.0.to_string();
                        prop_assert!(!model.log.contains(&id), "{} was refused", id);
                    }
                    answered.push(ticket.0);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        answered.sort_unstable();
        let expected: Vec<u64> = (1..=model.fixture.tickets).collect();
        prop_assert_eq!(answered, expected, "each once");
    }
}
