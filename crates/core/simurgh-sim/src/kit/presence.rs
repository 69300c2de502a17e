//! Events of presence, read strictly: each key once, each meta as it was made, then its refs.

use simurgh_proto::serializer::json;

/// Events of presence and their letters.
pub(crate) const EVENTS: [(&str, u8); 3] =
    [("presence_diff", b'D'), ("presence_state", b'S'), ("presence_summary", b'U')];
/// Keys that channels track themselves under.
pub(crate) const KEYS: [&str; 5] = ["a", "", "b", "__proto__", "é\"\\\u{1}"];
const REF_BYTES: usize = 16;

pub(crate) fn letter_of(name: &str) -> Option<u8> {
    EVENTS.iter().find(|(it, _)| *it == name).map(|(_, letter)| *letter)
}

/// The ref of one state of one entry.
pub(crate) type PhxRef = [u8; REF_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Its index in [`KEYS`].
    pub(crate) key: u8,
    /// The number that it was made with.
    pub(crate) number: u32,
    pub(crate) phx_ref: PhxRef,
    /// The ref of the state before it, if members have received that.
    pub(crate) prev: Option<PhxRef>,
}

#[derive(Clone, Debug)]
pub(crate) enum PresenceEvent {
    State(Vec<Meta>),
    Diff {
        joins: Vec<Meta>,
        leaves: Vec<Meta>,
    },
    Summary {
        count: usize,
        keys: usize,
        /// Some entries, of as many keys.
        sample: Vec<Meta>,
    },
}

impl PresenceEvent {
    /// Reads the payload of an event; `None` if its form is wrong.
    pub(crate) fn read(event: &str, text: &str) -> Option<Self> {
        let mut it = Reader(text);
        let told = match event {
            "presence_state" => Self::State(it.metas_by_key()?),
            "presence_diff" => {
                it.skip("{\"joins\":")?;
                let joins = it.metas_by_key()?;
                it.skip(",\"leaves\":")?;
                let leaves = it.metas_by_key()?;
                it.skip("}")?;
                Self::Diff { joins, leaves }
            }
            _ => {
                it.skip("{\"count\":")?;
                let count = it.number()? as usize;
                it.skip(",\"keys\":")?;
                let keys = it.number()? as usize;
                it.skip(",\"sample\":")?;
                let sample = it.metas_by_key()?;
                it.skip("}")?;
                Self::Summary { count, keys, sample }
            }
        };
        it.0.is_empty().then_some(told)
    }

    /// Applies the event to a client's states, as `Presence.syncDiff` of phoenix.js does.
    pub(crate) fn apply_to(&self, numbers: &mut Vec<u32>) {
        match self {
            Self::State(metas) => *numbers = metas.iter().map(|it| it.number).collect(),
            Self::Diff { joins, leaves } => {
                for it in joins {
                    if !numbers.contains(&it.number) {
                        numbers.push(it.number);
                    }
                }
                numbers.retain(|it| leaves.iter().all(|is| is.number != *it));
            }
            Self::Summary { .. } => {}
        }
    }

    pub(crate) fn metas(&self) -> impl Iterator<Item = &Meta> {
        let (one, other): (&[Meta], &[Meta]) = match self {
            Self::State(metas) | Self::Summary { sample: metas, .. } => (metas, &[]),
            Self::Diff { joins, leaves } => (joins, leaves),
        };
        one.iter().chain(other)
    }
}

struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    fn number(&mut self) -> Option<u32> {
        let len = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        digits.parse().ok()
    }

    fn key(&mut self) -> Option<u8> {
        let mut bytes = Vec::new();
        let place = KEYS.iter().position(|key| {
            bytes.clear();
            json::escape_into(&mut bytes, key);
            bytes.extend_from_slice(b":{\"metas\":[");
            self.0.as_bytes().starts_with(&bytes)
        })?;
        self.0 = self.0.get(bytes.len()..)?;
        Some(place as u8)
    }

    fn phx_ref(&mut self) -> Option<PhxRef> {
        let (text, rest) = self.0.split_at_checked(REF_BYTES)?;
        self.0 = rest.strip_prefix('"')?;
        text.as_bytes().try_into().ok()
    }

    /// `{"i":number,…,"phx_ref":"…"}`, with other members in between.
    fn meta(&mut self, key: u8) -> Option<Meta> {
        self.skip("{\"i\":")?;
        let number = self.number()?;
        if self.skip(",\"p\":\"").is_some() {
            self.0 = self.0.trim_start_matches('p').strip_prefix('"')?;
        }
        self.skip(",\"phx_ref\":\"")?;
        let phx_ref = self.phx_ref()?;
        let prev = match self.skip(",\"phx_ref_prev\":\"") {
            Some(()) => Some(self.phx_ref()?),
            None => None,
        };
        self.skip("}")?;
        Some(Meta { key, number, phx_ref, prev })
    }

    /// `{key:{"metas":[…]},…}`.
    fn metas_by_key(&mut self) -> Option<Vec<Meta>> {
        let (mut metas, mut seen) = (Vec::new(), [false; KEYS.len()]);
        self.skip("{")?;
        while self.skip("}").is_none() {
            if !metas.is_empty() {
                self.skip(",")?;
            }
            let key = self.key()?;
            if std::mem::replace(seen.get_mut(usize::from(key))?, true) {
                return None;
            }
            metas.push(self.meta(key)?);
            while self.skip(",").is_some() {
                metas.push(self.meta(key)?);
            }
            self.skip("]}")?;
        }
        Some(metas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_events_are_parsed_strictly() {
        let meta = |n: u32| format!(r#"{{"i":{n},"p":"pp","phx_ref":"AAAAAAAAAAAAAAA{n}"}}"#);
        let list = format!(
            r#"{{"":{{"metas":[{},{}]}},"a":{{"metas":[{}]}}}}"#,
            meta(1),
            meta(2),
            meta(3)
        );
        let Some(PresenceEvent::State(metas)) = PresenceEvent::read("presence_state", &list) else {
            panic!("{list}")
        };
        let read: Vec<_> = metas.iter().map(|it| (it.key, it.number, it.prev)).collect();
        assert_eq!(read, [(1, 1, None), (1, 2, None), (0, 3, None)]);
        let twice = format!(r#"{{"a":{{"metas":[{}]}},"a":{{"metas":[{}]}}}}"#, meta(1), meta(2));
        let empty = r#"{"a":{"metas":[]}}"#.to_owned();
        for wrong in [twice, empty, list.replace("\"i\":1", "\"i\":1,\"x\":1"), list + " "] {
            assert!(PresenceEvent::read("presence_state", &wrong).is_none(), "{wrong}");
        }
    }
}
