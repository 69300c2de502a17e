//! Histories of which a client gets only what is later than its first join: the join is proved by a
//! key that the client was given, and sends again.

use simurgh_channel::Node;
use simurgh_history::{Position, Resume, Since};

use super::Histories;
use crate::prelude::*;

/// Between a position and its signature: no position contains it.
const MARK: char = '~';

impl<N: Node> Histories<N> {
    pub(super) fn is_only_own(&self, topic: &str) -> bool {
        self.kept.rule(topic).is_some_and(|rule| rule.only_own)
    }

    /// The part of such a topic that a client may be given, by its request; and whether its first
    /// join is proved.
    pub(super) fn own_since(&self, topic: &str, resume: &Resume, since: Since) -> (Since, bool) {
        let Some(first) = self.first_join(topic, resume) else {
            // Without a proof it joins for the first time now.
            let since = if since == Since::Now { since } else { Since::Unknown };
            return (since, false);
        };
        match since {
            Since::After(seen) if seen.epoch == first.epoch && seen.place < first.place => {
                (Since::After(first), true)
            }
            other => (other, true),
        }
    }

    fn first_join(&self, topic: &str, resume: &Resume) -> Option<Position> {
        let (position, proof) = resume.key.as_deref()?.split_once(MARK)?;
        let is_ours =
            self.node.is_signed(&signed_text(topic, resume.id.as_deref(), position), proof);
        Position::parse(position).filter(|_| is_ours)
    }

    pub(super) fn own_key(&self, topic: &str, id: Option<&str>, position: Position) -> String {
        let position = position.to_string();
        let proof = self.node.sign(&signed_text(topic, id, &position));
        format!("{position}{MARK}{proof}")
    }
}

/// The signed text. Ids and positions have no NUL, so it can be split in one way only.
fn signed_text(topic: &str, id: Option<&str>, position: &str) -> String {
    format!("history\0{position}\0{}\0{topic}", id.unwrap_or_default().replace('\0', ""))
}
