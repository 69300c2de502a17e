//! State of the home of a topic's presences for other nodes.

use simurgh_channel::PresenceCallback;
use simurgh_presence::Owner;

use simurgh_presence::ToPeers;

use simurgh_data::prelude::*;

/// How long members wait for the first list while other nodes have not answered.
const ANSWERS_NS: u64 = 300_000_000;
/// How long after its last change a node repeats its version, so that others find out whether they
/// have missed that change. The broker does not report when links were cut: the last time is when a
/// node that was cut off for as long has noticed, also over a new link.
const REPEATS_NS: [u64; 3] = [1_000_000_000, 5_000_000_000, 25_000_000_000];

/// When a node that has not answered is asked again; then after twice as long, and at last every 16
/// seconds.
const AGAIN_NS: u64 = 1_000_000_000;
const AGAIN_MAX_NS: u64 = 16 * AGAIN_NS;

#[derive(Default)]
pub(super) struct Peers {
    pub(super) channels: u32,
    /// The end of the wait for answers; `None`: there is no wait.
    waits_until_ns: Option<u64>,
    /// Nodes that have to answer; `None` while it is unknown which were asked.
    awaited: Option<Vec<Owner>>,
    answered: Vec<Owner>,
    silent: Vec<Owner>,
    /// When they are asked again, and the delay of the time after that.
    again: Option<(u64, u64)>,
    /// When the last own change was sent, and how often its version was repeated.
    output: Option<(u64, usize)>,
    pub(super) lists: Vec<PresenceCallback>,
    pub(super) outbox: Vec<ToPeers>,
}

impl Peers {
    /// All other nodes are about to be asked.
    pub(super) fn ask(&mut self, now_ns: u64) {
        self.waits_until_ns = Some(now_ns.saturating_add(ANSWERS_NS));
        (self.awaited, self.answered) = (None, Vec::new());
    }

    pub(super) fn asked(&mut self, nodes: &[Owner]) {
        if self.waits_until_ns.is_some() {
            let missing = nodes.iter().filter(|it| !self.answered.contains(it));
            self.awaited = Some(missing.copied().collect());
            self.end_wait_if_answered();
        }
    }

    /// These nodes were asked as well, or again.
    pub(super) fn expects(&mut self, nodes: &[Owner], now_ns: u64) {
        let new: Vec<Owner> =
            nodes.iter().filter(|it| !self.silent.contains(it)).copied().collect();
        if !new.is_empty() {
            self.silent.extend(new);
            self.again = Some((now_ns.saturating_add(AGAIN_NS), AGAIN_NS));
        }
    }

    pub(super) fn again_ns(&self) -> Option<u64> {
        self.again.map(|(due_ns, _)| due_ns)
    }

    pub(super) fn ask_again(&mut self, now_ns: u64) {
        let Some((_, span_ns)) = self.again.filter(|it| it.0 <= now_ns) else { return };
        let span_ns = (span_ns * 2).min(AGAIN_MAX_NS);
        self.again = Some((now_ns.saturating_add(span_ns), span_ns));
        self.outbox.extend(self.silent.iter().copied().map(ToPeers::RequestState));
    }

    /// A node has answered, or never will.
    pub(super) fn answers(&mut self, node: Owner) {
        self.silent.retain(|it| *it != node);
        if self.silent.is_empty() {
            (self.silent, self.again) = (Vec::new(), None);
        }
        if self.waits_until_ns.is_none() {
            return;
        }
        match &mut self.awaited {
            Some(awaited) => awaited.retain(|it| *it != node),
            None => self.answered.push(node),
        }
        self.end_wait_if_answered();
    }

    fn end_wait_if_answered(&mut self) {
        if self.awaited.as_ref().is_some_and(Vec::is_empty) {
            self.end_wait();
        }
    }

    fn end_wait(&mut self) {
        self.waits_until_ns = None;
        (self.awaited, self.answered) = (None, Vec::new());
    }

    pub(super) fn waits_until_ns(&self) -> Option<u64> {
        self.waits_until_ns
    }

    /// Whether members may receive the list at this time.
    pub(super) fn has_answers(&mut self, now_ns: u64) -> bool {
        if self.waits_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.end_wait();
        }
        self.waits_until_ns.is_none()
    }

    pub(super) fn note_change(&mut self, now_ns: u64) {
        self.output = Some((now_ns, 0));
    }

    pub(super) fn repeat_ns(&self) -> Option<u64> {
        let (said_ns, times) = self.output?;
        Some(said_ns.saturating_add(*REPEATS_NS.get(times)?))
    }

    pub(super) fn repeats(&mut self, now_ns: u64) -> bool {
        let is_due = self.repeat_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if let Some((_, times)) = self.output.as_mut().filter(|_| is_due) {
            *times += 1;
        }
        is_due
    }

    /// Whether no channel here needs the topic, and nothing is to be repeated.
    pub(super) fn is_unused(&self) -> bool {
        self.channels == 0 && self.lists.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_waits_for_all_nodes_up_to_a_timeout() {
        let mut it = Peers::default();
        assert!(it.has_answers(0));
        it.ask(10);
        it.answers(Owner(3));
        it.asked(&[Owner(2), Owner(3)]);
        assert!(!it.has_answers(11));
        it.answers(Owner(2));
        assert!(it.has_answers(11));
        it.ask(20);
        it.asked(&[]);
        assert!(it.has_answers(20));
        it.ask(30);
        it.asked(&[Owner(2)]);
        assert_eq!(it.waits_until_ns(), Some(30 + ANSWERS_NS));
        assert!(!it.has_answers(29 + ANSWERS_NS) && it.has_answers(30 + ANSWERS_NS));
    }

    #[test]
    fn silent_node_is_queried_until_it_answers_or_is_gone() {
        let asked = |it: &mut Peers, now_ns| {
            it.ask_again(now_ns);
            let asks = core::mem::take(&mut it.outbox).into_iter().map(|what| match what {
                ToPeers::RequestState(owner) => owner.0,
                other => panic!("{other:?}"),
            });
            asks.collect::<Vec<u64>>()
        };
        let mut it = Peers::default();
        it.expects(&[Owner(2), Owner(3)], 7);
        assert_eq!(it.again_ns(), Some(7 + AGAIN_NS));
        assert_eq!(asked(&mut it, 6 + AGAIN_NS), Vec::<u64>::new());
        assert_eq!(asked(&mut it, 7 + AGAIN_NS), [2, 3]);
        it.answers(Owner(2));
        // Another request does not restart the time.
        it.expects(&[Owner(3)], 8 + AGAIN_NS);
        assert_eq!(it.again_ns(), Some(7 + 3 * AGAIN_NS));
        assert_eq!(asked(&mut it, 7 + 3 * AGAIN_NS), [3]);
        let mut now_ns = 7 + 3 * AGAIN_NS;
        for _ in 0..10 {
            now_ns += AGAIN_MAX_NS;
            assert_eq!(asked(&mut it, now_ns), [3]);
        }
        it.answers(Owner(3));
        assert_eq!((it.again_ns(), asked(&mut it, u64::MAX)), (None, Vec::new()));
    }

    #[test]
    fn last_change_is_repeated_after_1_5_and_25_seconds() {
        let mut it = Peers::default();
        assert!(!it.repeats(u64::MAX));
        it.note_change(7);
        assert!(!it.repeats(6 + REPEATS_NS[0]) && it.repeats(7 + REPEATS_NS[0]));
        assert_eq!(it.repeat_ns(), Some(7 + REPEATS_NS[1]));
        assert!(it.repeats(8 + REPEATS_NS[1]) && it.repeats(8 + REPEATS_NS[2]));
        assert!(!it.repeats(u64::MAX));
        it.note_change(100);
        assert_eq!(it.repeat_ns(), Some(100 + REPEATS_NS[0]));
    }
}
