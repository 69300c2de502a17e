//! All subjects ever used, each with a number and its subscribers.
//!
//! A message has a number instead of a text, and finding its receivers takes two look-ups by index.
//! Subjects are never forgotten: a network is short-lived.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use simurgh_cluster::Space;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SubjectId(u32);

#[derive(Debug)]
struct Known {
    text: Box<str>,
    /// `None` for the subject of all nodes, or of one.
    space: Option<Space>,
    /// The wildcard that matches it; `None` for a wildcard or a subject without a topic.
    whole: Option<SubjectId>,
    subscribers: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Subjects {
    by_text: HashMap<Box<str>, SubjectId, FixedState>,
    known: Vec<Known>,
}

impl Subjects {
    pub(super) fn new() -> Self {
        Self { by_text: HashMap::with_hasher(FixedState::with_seed(0)), known: Vec::new() }
    }

    pub(super) fn of(&mut self, text: &str) -> SubjectId {
        if let Some(&name) = self.by_text.get(text) {
            return name;
        }
        let space = space(text);
        let whole = match text.rsplit_once('.') {
            Some((start, token)) if space.is_some() && token != "*" => {
                Some(self.of(&format!("{start}.*")))
            }
            _ => None,
        };
        let name = SubjectId(self.known.len() as u32);
        self.known.push(Known { text: text.into(), space, whole, subscribers: Vec::new() });
        self.by_text.insert(text.into(), name);
        name
    }

    /// The subject to which the broker publishes what was stored under this one.
    pub(super) fn republished(&mut self, stored: SubjectId) -> SubjectId {
        let text = self.get(stored).map_or("", |it| &it.text);
        let (prefix, rest) = text.split_once(".h.").unwrap_or((text, ""));
        let text = format!("{prefix}.b.{rest}");
        self.of(&text)
    }

    pub(super) fn space(&self, name: SubjectId) -> Option<Space> {
        self.get(name).and_then(|it| it.space)
    }

    pub(super) fn whole(&self, name: SubjectId) -> Option<SubjectId> {
        self.get(name).and_then(|it| it.whole)
    }

    pub(super) fn subscribe(&mut self, node: u32, name: SubjectId, is_wanted: bool) {
        let Some(known) = self.known.get_mut(name.0 as usize) else { return };
        let at = known.subscribers.iter().position(|it| *it == node);
        match (at, is_wanted) {
            (None, true) => known.subscribers.push(node),
            (Some(at), false) => drop(known.subscribers.swap_remove(at)),
            _ => {}
        }
    }

    pub(super) fn is_subscribed(&self, node: u32, name: SubjectId) -> bool {
        self.get(name).is_some_and(|it| it.subscribers.contains(&node))
    }

    /// The receivers of a message on a subject, each once however many subscriptions match.
    pub(super) fn receivers(&self, name: SubjectId) -> impl Iterator<Item = u32> {
        let receivers = |name| self.get(name).map_or(&[][..], |it: &Known| &it.subscribers);
        let exact = receivers(name);
        let whole = self.whole(name).map_or(&[][..], receivers);
        exact.iter().chain(whole.iter().filter(move |it| !exact.contains(it))).copied()
    }

    fn get(&self, name: SubjectId) -> Option<&Known> {
        self.known.get(name.0 as usize)
    }
}

/// The space by the letter behind the prefix.
fn space(text: &str) -> Option<Space> {
    match text.split('.').nth(1) {
        Some("b") => Some(Space::Broadcast),
        Some("h") => Some(Space::Store),
        Some("p") => Some(Space::Presence),
        _ => None,
    }
}
