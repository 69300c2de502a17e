//! JSON paths: Tsung's short form, and the standard's (RFC 9535).

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use simurgh_proto::serializer::json::compact;

use super::json_bounds;

/// A compiled path.
///
/// The short form is `a.b[0].c`, with `[*]` for all elements and `[?name=x]` for those that have
/// this value (compared as text), with or without `$.` in front. The path is followed in the text,
/// without a tree. Any other path must be one of RFC 9535.
#[derive(Clone, Debug)]
pub struct JsonPath(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Short(Vec<Segment>),
    Full(serde_json_path::JsonPath),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// A member; in an array, the element with this index.
    Name(String, Option<usize>),
    Index(usize),
    All,
    Filter(String, String),
}

/// Bytes that a path of the standard may find; `$..*` finds nested values once for each level.
const FOUND_BYTES_MAX: usize = 16 << 20;

const CHANNELS_FIELDS: [&str; 5] = ["join_ref", "ref", "topic", "event", "payload"];

impl JsonPath {
    /// Parses a path. An error says why it is not a path, or not an accepted one, for people.
    pub fn new(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("'{text}' is not a supported JSON path: {why}");
        if text.len() > json_bounds::LENGTH_MAX {
            let why = format!("it is longer than {} bytes", json_bounds::LENGTH_MAX);
            return Err(refused(&why));
        }
        if let Some(segments) = short(text) {
            if segments.len() > json_bounds::SEGMENTS_MAX {
                let why = format!("it has more than {} parts", json_bounds::SEGMENTS_MAX);
                return Err(refused(&why));
            }
            return Ok(Self(Kind::Short(segments)));
        }
        let full: Cow<'_, str> = match text.as_bytes().first() {
            Some(b'$') => text.into(),
            Some(b'[' | b'.') => format!("${text}").into(),
            _ => format!("$.{text}").into(),
        };
        match serde_json_path::JsonPath::parse(&full) {
            Ok(path) => {
                json_bounds::check(&full).map_err(|why| refused(&why))?;
                Ok(Self(Kind::Full(path)))
            }
            Err(error) => Err(format!(
                "'{text}' is not a JSON path ({error}): write 'a.b[0].c', 'a[*].b' or \
                 'a[?name=x].b'"
            )),
        }
    }

    /// The path for the array form of a Channels message, if it begins with a field of one.
    pub(super) fn for_array_form(&self) -> Option<Self> {
        let Kind::Short(segments) = &self.0 else { return None };
        let Some((Segment::Name(name, _), rest)) = segments.split_first() else { return None };
        let index = CHANNELS_FIELDS.iter().position(|field| field == name)?;
        let mut segments = vec![Segment::Index(index)];
        segments.extend_from_slice(rest);
        Some(Self(Kind::Short(segments)))
    }

    /// Whether the path consists of exactly these names.
    pub(super) fn is_names(&self, names: &[&str]) -> bool {
        let Kind::Short(segments) = &self.0 else { return false };
        segments.len() == names.len()
            && segments.iter().zip(names).all(|(segment, name)| match segment {
                Segment::Name(found, _) => found == name,
                _ => false,
            })
    }

    /// The values found: strings as their content, all else as compact JSON; none in invalid JSON.
    /// A text may have several documents.
    #[must_use]
    pub fn find(&self, json: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(json, &mut |value| found.push(text_of(value).into_owned()));
        found
    }

    /// As [`JsonPath::find`], but a single array becomes its elements.
    #[must_use]
    pub fn elements(&self, json: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(json, &mut |value| found.push(value.to_owned()));
        if let [array] = found.as_slice()
            && array.starts_with('[')
        {
            return Self(Kind::Short(vec![Segment::All])).find(array.as_bytes());
        }
        found.iter().map(|value| text_of(value).into_owned()).collect()
    }

    pub(super) fn finds(&self, json: &[u8], text: &[u8]) -> bool {
        let mut is_found = false;
        self.walk(json, &mut |value| is_found |= text_of(value).as_bytes() == text);
        is_found
    }

    fn walk(&self, json: &[u8], each: &mut dyn FnMut(&str)) {
        match &self.0 {
            Kind::Short(segments) => {
                if let Ok(root) = serde_json::from_slice::<&RawValue>(json) {
                    return follow(root.get(), segments, each);
                }
                for document in documents::<&RawValue>(json) {
                    follow(document.get(), segments, each);
                }
            }
            Kind::Full(path) => {
                let mut bytes_left = FOUND_BYTES_MAX;
                for document in documents(json) {
                    for value in path.query(&document).iter() {
                        let text = value.to_string();
                        let Some(left) = bytes_left.checked_sub(text.len()) else { return };
                        bytes_left = left;
                        each(&text);
                    }
                }
            }
        }
    }
}

/// The documents of a text, one after the other, such as one on each line. None if one of them is
/// not valid.
fn documents<'j, T: serde::Deserialize<'j>>(json: &'j [u8]) -> Vec<T> {
    let documents = serde_json::Deserializer::from_slice(json).into_iter();
    documents.collect::<Result<_, _>>().unwrap_or_default()
}

/// Parses the short form; `None` if it is not one.
fn short(text: &str) -> Option<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut rest = text.strip_prefix("$.").unwrap_or(text);
    if let Some(bracket) = rest.strip_prefix('$').filter(|rest| rest.starts_with('[')) {
        rest = bracket;
    } else if rest == "$" {
        return Some(segments);
    }
    let mut is_start = true;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inner, after) = inner.split_once(']')?;
            segments.push(bracketed(inner)?);
            rest = after;
        } else {
            rest = if is_start { rest } else { rest.strip_prefix('.')? };
            let (name, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
            if name.is_empty() || name.contains([']', '\'', '"']) {
                return None;
            }
            segments.push(match name {
                "*" => Segment::All,
                name => Segment::Name(name.to_owned(), number(name)),
            });
            rest = after;
        }
        is_start = false;
    }
    (!segments.is_empty()).then_some(segments)
}

fn bracketed(inner: &str) -> Option<Segment> {
    if inner == "*" {
        return Some(Segment::All);
    }
    if let Some(filter) = inner.strip_prefix('?') {
        let (name, value) = filter.split_once('=')?;
        let name = name.trim();
        // These begin the standard's form of a filter.
        let is_standard = name.is_empty() || name.starts_with(['@', '(', '$']);
        let is_operator = name.ends_with(['!', '<', '>']) || value.starts_with('=');
        if is_standard || is_operator {
            return None;
        }
        return Some(Segment::Filter(name.to_owned(), unquoted(value.trim()).to_owned()));
    }
    if let Some(index) = number(inner) {
        return Some(Segment::Index(index));
    }
    let name = unquoted(inner);
    let is_plain = name.len() + 2 == inner.len() && !name.contains(['\\', '\'', '"']);
    is_plain.then(|| Segment::Name(name.to_owned(), None))
}

fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn unquoted(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// Calls `each` with every value that the segments reach.
fn follow(json: &str, segments: &[Segment], each: &mut dyn FnMut(&str)) {
    let Some((segment, rest)) = segments.split_first() else { return each(json) };
    match segment {
        Segment::Name(name, index) => {
            let (mut last, mut number) = (None, 0);
            children(json, |key, value| {
                if key.map_or(*index == Some(number), |key| key == name) {
                    last = Some(value);
                }
                number += 1;
            });
            if let Some(value) = last {
                follow(value, rest, each);
            }
        }
        Segment::Index(index) => {
            let mut number = 0;
            children(json, |key, value| {
                if key.is_none() && number == *index {
                    follow(value, rest, each);
                }
                number += 1;
            });
        }
        Segment::All => children(json, |_, value| follow(value, rest, each)),
        Segment::Filter(name, wanted) => children(json, |key, value| {
            let mut is_it = false;
            children(value, |field, value| {
                if field == Some(name) {
                    is_it = text_of(value) == wanted.as_str();
                }
            });
            if key.is_none() && is_it {
                follow(value, rest, each);
            }
        }),
    }
}

/// Calls `each` with the elements of an array, or with the members of an object and their names.
pub(super) fn children<'j>(json: &'j str, each: impl FnMut(Option<&str>, &'j str)) {
    if json.starts_with(['{', '[']) {
        // What is not valid JSON ends the search.
        let _ = serde_json::Deserializer::from_str(json).deserialize_any(Children(each));
    }
}

struct Children<F>(F);

impl<'de, F: FnMut(Option<&str>, &'de str)> Visitor<'de> for Children<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(value) = seq.next_element::<&'de RawValue>()? {
            (self.0)(None, value.get());
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
            (self.0)(Some(&key.0), value.get());
        }
        Ok(())
    }
}

/// A member's name; a plain `Cow` would never borrow.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string's content, anything else as compact JSON.
fn text_of(json: &str) -> Cow<'_, str> {
    match json.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(inner) if !inner.contains('\\') => Cow::Borrowed(inner),
        // A lone surrogate is valid JSON but not text: it stays escaped.
        Some(inner) => serde_json::from_str(json).map_or(Cow::Borrowed(inner), Cow::Owned),
        None => compact(json),
    }
}
