//! What the home of a topic's presences remembers for the other nodes' sake.

use simurgh_presence::Owner;

use super::call::PresenceAnswer;
use simurgh_presence::ToPeers;

/// How long members wait for the first list while other nodes have not answered.
const ANSWERS_NS: u64 = 300_000_000;
/// How long after its last change a node says its version again, so that others find out whether
/// they have missed that change.
const REPEATS_NS: [u64; 2] = [1_000_000_000, 5_000_000_000];

/// Of one topic.
#[derive(Default)]
pub(super) struct Peers {
    /// Channels of this node that use the topic's presences.
    pub(super) channels: u32,
    /// Until when answers of other nodes are waited for; none, if they are not.
    waits_until_ns: Option<u64>,
    /// Whose answers; none, while it is not known who was asked.
    awaited: Option<Vec<Owner>>,
    /// Who has answered already.
    answered: Vec<Owner>,
    /// When the last change of own entries was said, and how often it was said again.
    said: Option<(u64, usize)>,
    /// Who wants the list once all have answered, and is no member.
    pub(super) lists: Vec<PresenceAnswer>,
    /// What is to be said to them next.
    pub(super) outbox: Vec<ToPeers>,
}

impl Peers {
    /// All other nodes are about to be asked.
    pub(super) fn ask(&mut self, now_ns: u64) {
        self.waits_until_ns = Some(now_ns.saturating_add(ANSWERS_NS));
        (self.awaited, self.answered) = (None, Vec::new());
    }

    /// These were.
    pub(super) fn asked(&mut self, nodes: &[Owner]) {
        if self.waits_until_ns.is_some() {
            let missing = nodes.iter().filter(|it| !self.answered.contains(it));
            self.awaited = Some(missing.copied().collect());
            self.look();
        }
    }

    /// One has answered, or never will.
    pub(super) fn answers(&mut self, node: Owner) {
        if self.waits_until_ns.is_none() {
            return;
        }
        match &mut self.awaited {
            Some(awaited) => awaited.retain(|it| *it != node),
            None => self.answered.push(node),
        }
        self.look();
    }

    fn look(&mut self) {
        if self.awaited.as_ref().is_some_and(Vec::is_empty) {
            self.waits_no_more();
        }
    }

    fn waits_no_more(&mut self) {
        self.waits_until_ns = None;
        (self.awaited, self.answered) = (None, Vec::new());
    }

    /// Until when the list is not told, because answers are missing.
    pub(super) fn waits_until_ns(&self) -> Option<u64> {
        self.waits_until_ns
    }

    /// Whether the list may be told at this time.
    pub(super) fn has_answers(&mut self, now_ns: u64) -> bool {
        if self.waits_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.waits_no_more();
        }
        self.waits_until_ns.is_none()
    }

    /// A change of own entries is said.
    pub(super) fn says(&mut self, now_ns: u64) {
        self.said = Some((now_ns, 0));
    }

    /// When its version is to be said again.
    pub(super) fn repeats_ns(&self) -> Option<u64> {
        let (said_ns, times) = self.said?;
        Some(said_ns.saturating_add(*REPEATS_NS.get(times)?))
    }

    /// Whether that is now.
    pub(super) fn repeats(&mut self, now_ns: u64) -> bool {
        let is_due = self.repeats_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if let Some((_, times)) = self.said.as_mut().filter(|_| is_due) {
            *times += 1;
        }
        is_due
    }

    /// Whether nobody here needs the topic any more, but for what is to be said again.
    pub(super) fn is_unused(&self) -> bool {
        self.channels == 0 && self.lists.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_waits_for_all_who_were_asked_but_not_for_ever() {
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
    fn the_last_change_is_said_again_after_one_second_and_after_five() {
        let mut it = Peers::default();
        assert!(!it.repeats(u64::MAX));
        it.says(7);
        assert!(!it.repeats(6 + REPEATS_NS[0]) && it.repeats(7 + REPEATS_NS[0]));
        assert_eq!(it.repeats_ns(), Some(7 + REPEATS_NS[1]));
        assert!(it.repeats(8 + REPEATS_NS[1]) && !it.repeats(u64::MAX));
        it.says(100);
        assert_eq!(it.repeats_ns(), Some(100 + REPEATS_NS[0]));
    }
}
