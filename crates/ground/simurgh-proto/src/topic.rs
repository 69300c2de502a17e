//! Which topics a socket serves: patterns, and the routes made of them (PROTOCOL §5, rows 23–25).
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

/// A topic, or a prefix of topics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Exactly this topic.
    Literal(Box<str>),
    /// Every topic that begins so, the prefix itself included.
    Prefix(Box<str>),
}

impl Pattern {
    /// `"rooms:lobby"` is one topic, `"rooms:*"` all that begin with `rooms:`, `"*"` all there are.
    ///
    /// # Errors
    /// A `*` anywhere but at the end.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let (topic, prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        if topic.contains('*') {
            return Err(PatternError);
        }
        Ok(if prefix { Pattern::Prefix(topic.into()) } else { Pattern::Literal(topic.into()) })
    }

    /// Whether `topic` is one of the pattern's.
    pub fn matches(&self, topic: &str) -> bool {
        match self {
            Pattern::Literal(literal) => topic == &**literal,
            Pattern::Prefix(prefix) => topic.starts_with(&**prefix),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Literal(literal) => f.write_str(literal),
            Pattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// A topic pattern with a `*` that is not at its end. A mistake in the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a topic pattern may hold `*` at its end only")]
pub struct PatternError;

/// What serves a topic: patterns with a value each; of those that match, the first declared counts.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    routes: Vec<(Pattern, T)>,
}

impl<T> Routes<T> {
    /// No routes: every join will be an unmatched topic.
    pub const fn new() -> Self {
        Routes { routes: Vec::new() }
    }

    /// Declares the next route.
    ///
    /// # Errors
    /// See [`Pattern::parse`].
    pub fn add(&mut self, pattern: &str, value: T) -> Result<(), PatternError> {
        self.routes.push((Pattern::parse(pattern)?, value));
        Ok(())
    }

    /// What serves `topic`, if anything does.
    pub fn find(&self, topic: &str) -> Option<&T> {
        self.iter().find(|(pattern, _)| pattern.matches(topic)).map(|(_, value)| value)
    }

    /// The routes in the order they were declared.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.routes.iter().map(|(pattern, value)| (pattern, value))
    }

    /// How many routes there are.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Routes::new()
    }
}

/// The part of a topic behind the first colon, `lobby` of `rooms:lobby`; or the whole topic.
pub fn subtopic(topic: &str) -> &str {
    topic.split_once(':').map_or(topic, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_literal_is_one_topic_and_a_prefix_many() {
        let exact = Pattern::parse("exact").unwrap();
        assert!(exact.matches("exact"));
        assert!(!exact.matches("exact1") && !exact.matches("exac") && !exact.matches(""));
        let test = Pattern::parse("test:*").unwrap();
        assert!(test.matches("test:") && test.matches("test:a:b") && test.matches("test:*"));
        assert!(!test.matches("test") && !test.matches("tes") && !test.matches("xtest:"));
        assert!(Pattern::parse("*").unwrap().matches(""));
        assert!(
            Pattern::parse("").unwrap().matches("") && !Pattern::parse("").unwrap().matches("a")
        );
    }

    #[test]
    fn a_star_stands_at_the_end_only() {
        for text in ["*a", "a*b", "a**", "**", "a:*:b"] {
            assert_eq!(Pattern::parse(text), Err(PatternError), "{text}");
        }
        for text in ["rooms:*", "rooms:lobby", "*", ""] {
            assert_eq!(Pattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_first_declared_match_counts() {
        let mut routes = Routes::default();
        routes.add("rooms:lobby", 1).unwrap();
        routes.add("rooms:*", 2).unwrap();
        routes.add("rooms:late", 3).unwrap();
        assert_eq!(routes.add("r*m", 4), Err(PatternError));
        assert_eq!(routes.len(), 3);
        assert_eq!(routes.find("rooms:lobby"), Some(&1));
        assert_eq!(routes.find("rooms:late"), Some(&2));
        assert_eq!(routes.find("users"), None);
    }
}
