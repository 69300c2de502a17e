//! The functions of XPath 1.0 (§4), without `lang`.

use super::value::{Value, normalized, rounded, translate};
use crate::answer::tree::Name;

/// The computation of a function; its default argument is the context node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    Constant(bool),
    Boolean(fn(bool) -> bool),
    Number(fn(f64) -> f64),
    /// Of up to three texts; missing ones are empty.
    Text(fn(&str, &str, &str) -> Value<'static>),
    /// Of the name of the first node.
    Name(fn(&Name) -> String),
    Concat,
    Count,
    Id,
    Last,
    Position,
    Substring,
    Sum,
}

impl Body {
    pub(super) fn wants_nodes(self) -> bool {
        matches!(self, Self::Count | Self::Name(_) | Self::Sum)
    }
}

fn text(text: impl Into<String>) -> Value<'static> {
    Value::Text(text.into().into())
}

fn whole_name(name: &Name) -> String {
    let prefix = name.prefix.as_ref().map(|prefix| format!("{prefix}:"));
    prefix.unwrap_or_default() + &name.local
}

fn after(all: &str, part: &str, _: &str) -> Value<'static> {
    text(all.split_once(part).map_or("", |(_, after)| after))
}

fn before(all: &str, part: &str, _: &str) -> Value<'static> {
    text(all.split_once(part).map_or("", |(before, _)| before))
}

/// Name, minimum and maximum number of arguments, and body.
pub(super) static FUNCTIONS: [(&str, usize, usize, Body); 26] = [
    ("boolean", 1, 1, Body::Boolean(|is_true| is_true)),
    ("ceiling", 1, 1, Body::Number(f64::ceil)),
    ("concat", 2, usize::MAX, Body::Concat),
    ("contains", 2, 2, Body::Text(|all, part, _| Value::Boolean(all.contains(part)))),
    ("count", 1, 1, Body::Count),
    ("false", 0, 0, Body::Constant(false)),
    ("floor", 1, 1, Body::Number(f64::floor)),
    ("id", 1, 1, Body::Id),
    ("last", 0, 0, Body::Last),
    ("local-name", 0, 1, Body::Name(|name| name.local.to_string())),
    ("name", 0, 1, Body::Name(whole_name)),
    ("namespace-uri", 0, 1, Body::Name(|name| name.prefix.clone().unwrap_or_default().into())),
    ("normalize-space", 0, 1, Body::Text(|all, _, _| text(normalized(all)))),
    ("not", 1, 1, Body::Boolean(|is_true| !is_true)),
    ("number", 0, 1, Body::Number(|number| number)),
    ("position", 0, 0, Body::Position),
    ("round", 1, 1, Body::Number(rounded)),
    ("starts-with", 2, 2, Body::Text(|all, part, _| Value::Boolean(all.starts_with(part)))),
    ("string", 0, 1, Body::Text(|all, _, _| text(all))),
    ("string-length", 0, 1, Body::Text(|all, _, _| Value::Number(all.chars().count() as f64))),
    ("substring", 2, 3, Body::Substring),
    ("substring-after", 2, 2, Body::Text(after)),
    ("substring-before", 2, 2, Body::Text(before)),
    ("sum", 1, 1, Body::Sum),
    ("translate", 3, 3, Body::Text(|all, from, to| text(translate(all, from, to)))),
    ("true", 0, 0, Body::Constant(true)),
];
