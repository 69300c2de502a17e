//! Places in answers.

use regex::bytes::Regex;

use super::header::HeaderPath;
use super::pattern::compile_pattern;
use super::xpath::XPath;
use super::{AnswerText, JsonPath};
use crate::scenario::Find;

/// A [`Find`], ready for use.
#[derive(Clone, Debug)]
pub struct CompiledFind(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Regex(Regex),
    Json(JsonPath),
    XPath(XPath),
    Header(HeaderPath),
    FormField(String),
}

impl CompiledFind {
    /// From what a scenario says.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn new(find: &Find) -> Result<Self, String> {
        Ok(Self(match find {
            Find::Regex(pattern) => Kind::Regex(compile_pattern(pattern)?),
            Find::Json(path) => Kind::Json(JsonPath::new(path)?),
            Find::XPath(expression) => Kind::XPath(XPath::new(expression)?),
            Find::Header(path) => Kind::Header(HeaderPath::new(path)?),
            Find::FormField(name) => Kind::FormField(name.clone()),
        }))
    }

    /// All that is found, in the answer's order; empty if nothing is.
    ///
    /// A regular expression looks at head and body, and gives its first group, or all that it
    /// matched where it has none. A JSON path that leads to one array gives its elements. What is
    /// not UTF-8 becomes `U+FFFD`.
    #[must_use]
    pub fn find(&self, answer: &AnswerText<'_>) -> Vec<String> {
        match &self.0 {
            Kind::Regex(regex) => matches(regex, answer.whole()),
            Kind::Json(path) => path.elements(answer.body()),
            Kind::XPath(xpath) => xpath.find(answer.markup()),
            Kind::Header(path) => answer.head().map(|head| path.find(head)).unwrap_or_default(),
            Kind::FormField(name) => super::markup::form_values(answer.body(), name),
        }
    }
}

fn matches(regex: &Regex, text: &[u8]) -> Vec<String> {
    let groups = regex.captures_iter(text).filter_map(|found| found.get(1).or(found.get(0)));
    if regex.captures_len() == 1 {
        let all = regex.find_iter(text);
        return all.map(|found| String::from_utf8_lossy(found.as_bytes()).into_owned()).collect();
    }
    groups.map(|found| String::from_utf8_lossy(found.as_bytes()).into_owned()).collect()
}
