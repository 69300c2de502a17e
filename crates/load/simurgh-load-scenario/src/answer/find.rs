//! Finds values in answers.

use std::mem;
use std::time::{Duration, Instant};

use html5gum::{DefaultEmitter, Token, Tokenizer};
use regex::bytes::Regex;

use super::header::HeaderPath;
use super::pattern::compile_pattern;
use super::{AnswerText, JsonPath};
use crate::Find;

/// How long a search for further matches may take. One search takes time proportional to the answer
/// and the pattern, but all searches may take quadratic time, and `regex` does not report its
/// progress.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(200);

/// A [`Find`], ready for use.
#[derive(Clone, Debug)]
pub struct CompiledFind(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Regex(Regex),
    Json(JsonPath),
    Header(HeaderPath),
    FormField(String),
}

impl CompiledFind {
    /// Compiles a place of a scenario. An error says what is wrong with it, for people.
    pub fn new(find: &Find) -> Result<Self, String> {
        Ok(Self(match find {
            Find::Regex(pattern) => Kind::Regex(compile_pattern(pattern)?),
            Find::Json(path) => Kind::Json(JsonPath::new(path)?),
            Find::Header(path) => Kind::Header(HeaderPath::new(path)?),
            Find::FormField(name) => Kind::FormField(name.clone()),
        }))
    }

    /// All values found, in the answer's order.
    ///
    /// A regular expression searches head and body, and gives its first group, or the whole match
    /// if it has no group, with the bytes as they came. A JSON path to a single array gives its
    /// elements. In all but regular expressions invalid UTF-8 becomes `U+FFFD`.
    ///
    /// For any answer it takes a few tenths of a second at most: a regular expression or a JSON
    /// path that takes longer finds nothing further.
    #[must_use]
    pub fn find_bytes(&self, answer: &AnswerText<'_>) -> Vec<Vec<u8>> {
        let texts = match &self.0 {
            Kind::Regex(regex) => return matches(regex, answer.whole()),
            Kind::Json(path) => path.elements(answer.body()),
            Kind::Header(path) => answer.head().map(|head| path.find(head)).unwrap_or_default(),
            Kind::FormField(name) => form_values(answer.body(), name),
        };
        texts.into_iter().map(String::into_bytes).collect()
    }

    /// The same as texts: all invalid UTF-8 becomes `U+FFFD`.
    #[must_use]
    pub fn find(&self, answer: &AnswerText<'_>) -> Vec<String> {
        let found = self.find_bytes(answer).into_iter();
        found.map(|value| String::from_utf8_lossy(&value).into_owned()).collect()
    }
}

fn form_values(html: &[u8], name: &str) -> Vec<String> {
    let mut emitter = DefaultEmitter::default();
    // `<` in a script does not begin an element.
    emitter.naively_switch_states(true);
    let mut values = Vec::new();
    for token in Tokenizer::new_with_emitter(html, emitter).flatten() {
        let Token::StartTag(tag) = token else { continue };
        let is_named =
            tag.attributes.get(&b"name"[..]).is_some_and(|found| **found == name.as_bytes());
        if let Some(value) = tag.attributes.get(&b"value"[..]).filter(|_| is_named) {
            values.push(String::from_utf8_lossy(value).into_owned());
        }
    }
    values
}

fn matches(regex: &Regex, text: &[u8]) -> Vec<Vec<u8>> {
    if regex.captures_len() == 1 {
        let found = regex.find_iter(text).map(|found| found.as_bytes().to_vec());
        return in_time(found);
    }
    // A group that did not match is empty, as in Tsung.
    let group = |found: regex::bytes::Captures<'_>| {
        found.get(1).map_or_else(Vec::new, |group| group.as_bytes().to_vec())
    };
    in_time(regex.captures_iter(text).map(group))
}

/// The match that takes too long is the last: one is found even if the machine stands still.
fn in_time(found: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let start = Instant::now();
    let mut is_late = false;
    found.take_while(|_| !mem::replace(&mut is_late, start.elapsed() >= SEARCH_TIME_MAX)).collect()
}
