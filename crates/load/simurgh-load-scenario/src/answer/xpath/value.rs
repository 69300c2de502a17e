//! Values of expressions, and their conversions (XPath 1.0 §3, §4).

use std::borrow::Cow;

use crate::answer::tree::{NodeId, Tree};

#[derive(Clone, Debug)]
pub(super) enum Value<'t> {
    /// In document order, without duplicates.
    Nodes(Vec<NodeId>),
    Text(Cow<'t, str>),
    Number(f64),
    Boolean(bool),
}

impl<'t> Value<'t> {
    /// The parser only allows nodes where this is called.
    pub(super) fn into_nodes(self) -> Vec<NodeId> {
        match self {
            Self::Nodes(nodes) => nodes,
            _ => Vec::new(),
        }
    }

    /// §4.2, `string`.
    pub(super) fn into_text(self, tree: &'t Tree) -> Cow<'t, str> {
        match self {
            Self::Nodes(nodes) => nodes.first().map_or("", |node| tree.text(*node)).into(),
            Self::Text(text) => text,
            Self::Number(number) => number_text(number).into(),
            Self::Boolean(is_true) => if is_true { "true" } else { "false" }.into(),
        }
    }

    /// §4.4, `number`.
    pub(super) fn number(&self, tree: &Tree) -> f64 {
        match self {
            Self::Nodes(nodes) => nodes.first().map_or(f64::NAN, |node| number(tree.text(*node))),
            Self::Text(text) => number(text),
            Self::Number(number) => *number,
            Self::Boolean(is_true) => f64::from(u8::from(*is_true)),
        }
    }

    /// §4.3, `boolean`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nodes(nodes) => !nodes.is_empty(),
            Self::Text(text) => !text.is_empty(),
            Self::Number(number) => *number != 0.0 && !number.is_nan(),
            Self::Boolean(is_true) => *is_true,
        }
    }
}

/// §3.5: digits with or without a point, a minus before them, blanks around; else NaN.
pub(super) fn number(text: &str) -> f64 {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_part = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    // Rust also parses letters (`inf`, `1e3`) and a plus, which XPath does not.
    if digits.bytes().all(is_part) { text.parse().unwrap_or(f64::NAN) } else { f64::NAN }
}

fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Zero has no sign as text.
    if number == 0.0 { "0".to_owned() } else { number.to_string() }
}

/// §4.4: to the nearest whole number, halves upwards.
pub(super) fn rounded(number: f64) -> f64 {
    (number + 0.5).floor()
}

/// §4.2, `substring`: `count` characters from `from` on (the first is 1).
pub(super) fn substring(text: &str, from: f64, count: f64) -> String {
    let (first, end) = (rounded(from), rounded(from) + rounded(count));
    let is_in = |position: f64| position >= first && position < end;
    let numbered = text.chars().zip(1_u32..);
    numbered.filter(|(_, at)| is_in(f64::from(*at))).map(|(char, _)| char).collect()
}

/// §4.2, `translate`: each character of `from` becomes its counterpart in `to`, or is removed.
pub(super) fn translate(text: &str, from: &str, to: &str) -> String {
    let mut map = std::collections::HashMap::new();
    let mut to = to.chars();
    for char in from.chars() {
        let new = to.next();
        map.entry(char).or_insert(new);
    }
    text.chars().filter_map(|char| map.get(&char).copied().unwrap_or(Some(char))).collect()
}

/// §4.2, `normalize-space`.
pub(super) fn normalized(text: &str) -> String {
    let words = text.split([' ', '\t', '\r', '\n']).filter(|word| !word.is_empty());
    words.fold(String::new(), |mut all, word| {
        if !all.is_empty() {
            all.push(' ');
        }
        all.push_str(word);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_become_each_other_as_the_standard_says() {
        for (text, wanted) in
            [(" 12 ", 12.0), ("-.5", -0.5), ("3.", 3.0), ("007", 7.0), ("\t1\n", 1.0)]
        {
            assert_eq!(number(text), wanted, "{text:?}");
        }
        for text in ["", "1e3", "+1", "inf", "nan", "- 1", "1 2", "0x1", "1,5", "--1", "."] {
            assert!(number(text).is_nan(), "{text:?}");
        }
        let texts = [1.0, -0.0, 0.5, 1e21, f64::NAN, f64::NEG_INFINITY].map(number_text);
        assert_eq!(texts, ["1", "0", "0.5", "1000000000000000000000", "NaN", "-Infinity"]);
    }

    #[test]
    fn functions_on_text_are_those_of_the_standards_examples() {
        assert_eq!(substring("12345", 1.5, 2.6), "234");
        assert_eq!(substring("12345", 0.0, 3.0), "12");
        assert_eq!(substring("12345", f64::NAN, 3.0), "");
        assert_eq!(substring("12345", 1.0, f64::NAN), "");
        assert_eq!(substring("12345", -42.0, f64::INFINITY), "12345");
        assert_eq!(substring("12345", f64::NEG_INFINITY, f64::INFINITY), "");
        assert_eq!(translate("--aaa--", "abc-", "ABC"), "AAA");
        assert_eq!(translate("aa", "aa", "xy"), "xx");
        assert_eq!(normalized(" a \n\t b\u{a0} "), "a b\u{a0}");
        assert_eq!([-0.5, 2.5, -2.6].map(rounded), [0.0, 3.0, -3.0]);
    }
}
