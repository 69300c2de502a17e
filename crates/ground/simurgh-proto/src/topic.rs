//! Patterns of the topics that a channel serves (PROTOCOL §5, rows 23–25).
use alloc::boxed::Box;
use core::fmt;

use thiserror::Error;

/// A topic, or a prefix of topics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Exactly this topic.
    Literal(Box<str>),
    /// Every topic with this prefix, including the prefix itself.
    Prefix(Box<str>),
}

impl Pattern {
    /// `"rooms:lobby"` is one topic, `"rooms:*"` all that begin with `rooms:`, `"*"` all there are.
    ///
    /// # Errors
    /// If a `*` is anywhere but at the end.
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

    /// Whether `topic` matches the pattern.
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

/// A topic pattern with a `*` that is not at its end. An error of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a topic pattern may contain `*` only at its end")]
pub struct PatternError;

/// The part of a topic after the first colon, `lobby` of `rooms:lobby`; or the whole topic.
pub fn subtopic(topic: &str) -> &str {
    topic.split_once(':').map_or(topic, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn topic_pattern_literal_matches_one_topic_and_prefix_many() {
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
    fn star_is_allowed_only_at_the_end_of_a_pattern() {
        for text in ["*a", "a*b", "a**", "**", "a:*:b"] {
            assert_eq!(Pattern::parse(text), Err(PatternError), "{text}");
        }
        for text in ["rooms:*", "rooms:lobby", "*", ""] {
            assert_eq!(Pattern::parse(text).unwrap().to_string(), text);
        }
    }
}
