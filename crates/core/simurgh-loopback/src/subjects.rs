//! Subjects and wildcards with their subscribers.

use std::collections::BTreeMap;
use std::sync::Arc;

use simurgh_cluster::Space;

/// The text of a subject or a wildcard.
pub(super) type Name = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct Subjects(BTreeMap<Name, Vec<u32>>);

impl Subjects {
    pub(super) fn subscribe(&mut self, node: u32, name: &Name, is_wanted: bool) {
        let subscribers = self.0.entry(Arc::clone(name)).or_default();
        match (subscribers.iter().position(|it| *it == node), is_wanted) {
            (None, true) => subscribers.push(node),
            (Some(at), false) => drop(subscribers.swap_remove(at)),
            _ => {}
        }
    }

    pub(super) fn is_subscribed(&self, node: u32, name: &str) -> bool {
        self.subscribers(name).contains(&node)
    }

    /// The receivers of a message on a subject, each once however many subscriptions match.
    pub(super) fn receivers(&self, subject: &str) -> impl Iterator<Item = u32> {
        let exact = self.subscribers(subject);
        let whole = whole(subject).map_or(&[][..], |whole| self.subscribers(&whole));
        exact.iter().chain(whole.iter().filter(move |it| !exact.contains(it))).copied()
    }

    fn subscribers(&self, name: &str) -> &[u32] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// The wildcard that matches a subject; `None` for one without a topic.
pub(super) fn whole(subject: &str) -> Option<String> {
    let (start, _) = subject.rsplit_once('.').filter(|_| space(subject).is_some())?;
    Some(format!("{start}.*"))
}

/// The subject to which the broker publishes what was stored under this one.
pub(super) fn republished(stored: &str) -> Name {
    stored.replacen(".h.", ".b.", 1).into()
}

/// The space by the letter behind the prefix; `None` for the subject of all nodes, or of one.
pub(super) fn space(subject: &str) -> Option<Space> {
    match subject.split('.').nth(1) {
        Some("b") => Some(Space::Broadcast),
        Some("h") => Some(Space::Store),
        Some("p") => Some(Space::Presence),
        _ => None,
    }
}
