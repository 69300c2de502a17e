//! Fields of a payload, cut out of its text: nothing of it is built. Of a field that is there twice
//! the last counts.
//!
//! Looking for them takes some nanoseconds a byte, too long in a turn for a payload of megabytes:
//! of these they are looked for where the text was read, off the shard.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use simurgh_proto::message::Payload;

/// What a field that is not there stands for.
pub(super) const NULL: &str = "null";

/// Where the fields of one payload are.
#[derive(Debug)]
pub(crate) struct Fields {
    names: Arc<[Box<str>]>,
    places: Box<[Option<Range<usize>>]>,
}

impl Fields {
    /// Looks for them; none if none are asked for, or the payload has no text.
    pub(crate) fn find(names: &Arc<[Box<str>]>, payload: &Payload<'_>) -> Option<Box<Self>> {
        let json = payload.json().filter(|_| !names.is_empty())?;
        let mut found = vec![NULL; names.len()];
        cut(json, names, &mut found);
        let place = |text: &str| {
            let start = text.as_ptr().addr().checked_sub(json.as_ptr().addr())?;
            let range = start..start + text.len();
            // What is not part of the text is the word for what is not there.
            json.get(range.clone()).filter(|same| std::ptr::eq(*same, text)).map(|_| range)
        };
        let places = found.into_iter().map(place).collect();
        Some(Box::new(Self { names: Arc::clone(names), places }))
    }

    /// The text of a field of the same payload.
    pub(super) fn get<'j>(&self, json: &'j str, name: &str) -> &'j str {
        let place = self.names.iter().position(|known| **known == *name);
        let range = place.and_then(|place| self.places.get(place)?.clone());
        range.and_then(|range| json.get(range)).unwrap_or(NULL)
    }
}

/// Puts the raw text of these fields of a JSON object into the place of each; what is there stays
/// where there is no such field.
pub(super) fn cut<'j>(json: &'j str, names: &[Box<str>], found: &mut [&'j str]) {
    let mut json = serde_json::Deserializer::from_str(json);
    // What is no object has no fields, and the text is known to be valid.
    let _ = json.deserialize_map(Cut { names, found });
}

struct Cut<'n, 'j> {
    names: &'n [Box<str>],
    found: &'n mut [&'j str],
}

impl<'j> Visitor<'j> for Cut<'_, 'j> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'j>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(field) = map.next_key_seed(Name(self.names))? {
            match field.and_then(|field| self.found.get_mut(field)) {
                Some(text) => *text = map.next_value::<&RawValue>()?.get(),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Tells which of the names a key is, without keeping the key.
struct Name<'n>(&'n [Box<str>]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| **name == *key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_beforehand_is_what_is_found_at_once() {
        let names: Arc<[Box<str>]> = ["a", "b", "null", "é"].map(Box::from).into();
        for json in [
            "{}",
            "null",
            "[1]",
            r#"{"a":1}"#,
            r#"{"a":null,"b":"null","null":[{}]}"#,
            r#"{"a":1,"x":{"a":2},"a":[3]}"#,
            r#"{"\u0061":"\"","\u00e9":{"b":[1,2]},"b":"\\"}"#,
        ] {
            let payload = Payload::checked(json).unwrap();
            let fields = Fields::find(&names, &payload).unwrap();
            let mut found = [NULL; 4];
            cut(json, &names, &mut found);
            for (name, found) in names.iter().zip(found) {
                assert_eq!(fields.get(json, name), found, "{name} of {json}");
            }
            assert_eq!(fields.get(json, "x"), NULL);
        }
        assert!(Fields::find(&names, &Payload::from_bytes(vec![b'{'])).is_none());
        assert!(Fields::find(&Arc::default(), &Payload::EMPTY_OBJECT).is_none());
    }
}
