//! Finds values in JSON text and checks them (RFC 8259), without building anything.
//!
//! Only three fields of a message are read; the other two pass through. So instead of a parser that
//! makes a tree, a scanner yields each value as its text. It accepts what a strict parser accepts —
//! numbers of any length, strings whose surrogates are paired — and is a loop, not a recursion,
//! with one bit of memory for each level of nesting: no input can exhaust the stack or the heap.

mod escape;

use alloc::borrow::Cow;
use alloc::string::String;

use thiserror::Error;

use self::escape::{code_unit, plain_len};
pub use self::escape::{escape_into, quoted, unescape};

/// Levels of arrays and objects that one value may have.
pub const DEPTH_MAX: usize = 1024;

/// Text that is not JSON, or exceeds the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// Not JSON.
    #[error("not JSON at byte {at}")]
    Syntax {
        /// Offset in bytes from the start of the text.
        at: usize,
    },
    /// More than [`DEPTH_MAX`] levels of arrays and objects.
    #[error("JSON nests too deep")]
    TooDeep,
}

/// Checks that `text` is one JSON value, possibly with whitespace around it.
///
/// # Errors
/// If it is not, or nests too deep.
pub fn validate(text: &str) -> Result<(), JsonError> {
    Scanner::new(text).only_value().map(|_| ())
}

/// The checked JSON value in `text`, without whitespace around or within.
///
/// # Errors
/// If `text` is not one JSON value, or nests too deep.
pub fn validated(text: &str) -> Result<Cow<'_, str>, JsonError> {
    Scanner::new(text).only_value().map(Raw::compact)
}

/// Walks the object in `text`, checked, and passes each key (unescaped) and the text of its value
/// to `member`, in order and with repetitions.
///
/// # Errors
/// If `text` is not one JSON object, or nests too deep. Earlier members were passed.
pub fn members<'a>(text: &'a str, mut member: impl FnMut(&str, &'a str)) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text);
    scanner.blanks();
    scanner.object(|key, raw| member(key, raw.text))?;
    scanner.end()
}

/// Valid JSON text without the whitespace between its tokens; borrows when there is none.
///
/// Clients may write blanks, but V2 output must not have any: JavaPhoenixClient's decoder breaks on
/// them (PROTOCOL §13, row 50).
pub fn compact(raw: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = raw;
    // Within a string nothing is removed; outside of strings everything is ASCII.
    while let Some(at) = outer_blank(rest) {
        let (kept, blanks) = rest.split_at(at);
        out.reserve(rest.len());
        out.push_str(kept);
        rest = blanks.trim_start_matches(is_blank);
        if rest.is_empty() {
            return Cow::Owned(out);
        }
    }
    if rest.len() == raw.len() {
        return Cow::Borrowed(raw);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The text of one JSON value, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    text: &'a str,
    /// Whether there was whitespace between its tokens.
    spaced: bool,
}

impl<'a> Raw<'a> {
    pub(crate) fn compact(self) -> Cow<'a, str> {
        if self.spaced { compact(self.text) } else { Cow::Borrowed(self.text) }
    }

    /// The unescaped text, if the value is a string.
    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        quoted(self.text).map(unescape)
    }
}

pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Scanner { text, at: 0 }
    }

    pub(crate) fn blanks(&mut self) -> bool {
        let before = self.at;
        while self.peek().is_some_and(|byte| is_blank(char::from(byte))) {
            self.at += 1;
        }
        self.at > before
    }

    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let next = self.is_next(byte);
        self.at += usize::from(next);
        next
    }

    pub(crate) fn is_next(&self, byte: u8) -> bool {
        self.peek() == Some(byte)
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.take(byte) { Ok(()) } else { Err(self.error()) }
    }

    /// Checks that only whitespace is left.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(self.error()) }
    }

    /// Reads one value, which must begin here.
    pub(crate) fn value(&mut self) -> Result<Raw<'a>, JsonError> {
        let start = self.at;
        let spaced = match self.peek() {
            Some(b'{' | b'[') => self.nested()?,
            _ => {
                self.scalar()?;
                false
            }
        };
        // Tokens begin and end with ASCII, so the slice is always whole.
        let text = self.text.get(start..self.at).ok_or_else(|| self.error())?;
        Ok(Raw { text, spaced })
    }

    /// Walks an object that must begin here, passing each key (unescaped) and value to `member`.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&str, Raw<'a>),
    ) -> Result<(), JsonError> {
        self.expect(b'{')?;
        self.blanks();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.blanks();
            let start = self.at;
            self.string()?;
            let key = self.text.get(start..self.at).and_then(quoted).map(unescape);
            let key = key.ok_or_else(|| self.error())?;
            self.blanks();
            self.expect(b':')?;
            self.blanks();
            member(&key, self.value()?);
            self.blanks();
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Reads a text's only value, with whitespace around it.
    fn only_value(&mut self) -> Result<Raw<'a>, JsonError> {
        self.blanks();
        let value = self.value()?;
        self.end()?;
        Ok(value)
    }

    /// Reads an array or object with its content; returns whether there was whitespace in it.
    fn nested(&mut self) -> Result<bool, JsonError> {
        let mut levels = Levels::new();
        let mut spaced = false;
        loop {
            // A value begins here. An empty array or object is complete with its second bracket;
            // any other is entered, and its first value begins.
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    self.at += 1;
                    spaced |= self.blanks();
                    if !self.take(closing(open)) {
                        levels.enter(open)?;
                        if open == b'{' {
                            spaced |= self.key()?;
                        }
                        continue;
                    } else if levels.depth == DEPTH_MAX {
                        return Err(JsonError::TooDeep);
                    }
                }
                _ => self.scalar()?,
            }
            // A value ended here: either the next one of its level begins, or the level ends.
            while let Some(open) = levels.innermost() {
                spaced |= self.blanks();
                if self.take(b',') {
                    spaced |= self.blanks();
                    if open == b'{' {
                        spaced |= self.key()?;
                    }
                    break;
                }
                self.expect(closing(open))?;
                levels.leave();
            }
            if levels.depth == 0 {
                return Ok(spaced);
            }
        }
    }

    /// Reads a key, its colon and the blanks around it; returns whether there were any.
    fn key(&mut self) -> Result<bool, JsonError> {
        self.string()?;
        let before = self.blanks();
        self.expect(b':')?;
        Ok(self.blanks() | before)
    }

    fn scalar(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.literal("null"),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            _ => Err(self.error()),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), JsonError> {
        if !self.rest().starts_with(word.as_bytes()) {
            return Err(self.error());
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count > 0 { Ok(()) } else { Err(self.error()) }
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect(b'"')?;
        loop {
            self.at += plain_len(self.rest());
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(self.error()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.rest().get(1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.unit()? {
                0xd800..=0xdbff => match self.unit()? {
                    0xdc00..=0xdfff => Ok(()),
                    _ => Err(self.error()),
                },
                0xdc00..=0xdfff => Err(self.error()),
                _ => Ok(()),
            },
            _ => Err(self.error()),
        }
    }

    fn unit(&mut self) -> Result<u16, JsonError> {
        let digits = self.rest().strip_prefix(b"\\u");
        let unit = digits.and_then(code_unit).ok_or_else(|| self.error())?;
        self.at += 6;
        Ok(unit)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn error(&self) -> JsonError {
        JsonError::Syntax { at: self.at }
    }
}

/// The opening bracket of each entered level: one bit a level.
struct Levels {
    depth: usize,
    objects: [u64; DEPTH_MAX / 64],
}

impl Levels {
    fn new() -> Self {
        Levels { depth: 0, objects: [0; DEPTH_MAX / 64] }
    }

    fn enter(&mut self, open: u8) -> Result<(), JsonError> {
        let word = self.objects.get_mut(self.depth / 64).ok_or(JsonError::TooDeep)?;
        let bit = 1 << (self.depth % 64);
        *word = if open == b'{' { *word | bit } else { *word & !bit };
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn innermost(&self) -> Option<u8> {
        let level = self.depth.checked_sub(1)?;
        let word = self.objects.get(level / 64)?;
        Some(if word >> (level % 64) & 1 == 1 { b'{' } else { b'[' })
    }
}

fn closing(open: u8) -> u8 {
    if open == b'{' { b'}' } else { b']' }
}

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\r')
}

/// The offset of the first whitespace outside of strings.
fn outer_blank(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => return Some(at),
            b'"' => at = string_end(bytes, at + 1),
            _ => at += 1,
        }
    }
    None
}

/// The end, after the closing quote, of the string whose content begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn valid_json_is_accepted() {
        let deep = format!("{}0{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        let long = format!("-{}.{}E+{}", "9".repeat(400), "0".repeat(400), "7".repeat(40));
        for text in [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "0.5",
            "10e-3",
            "1E9",
            "\"\"",
            "[]",
            "{}",
            "[{}]",
            " [ 1 , { \"a\" : [ ] } ] \n",
            "{\"a\":{\"b\":[1,2,[3]]},\"c\":\"\\ud83d\\ude00\"}",
            "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\"",
            "[\"é\u{7f}\u{2028}\"]",
            &deep,
            &long,
        ] {
            assert_eq!(validate(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in [
            "",
            " ",
            "nul",
            "nulll",
            "True",
            "01",
            "-",
            "1.",
            ".5",
            "+1",
            "1e",
            "1e+",
            "0x1",
            "NaN",
            "\"",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\n\"",
            "\"\\ud800\\ud800\"",
            "\"\n\"",
            "\"\u{1f}\"",
            "[",
            "]",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1}",
            "{]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{1:1}",
            "{,}",
            "{\"a\":1 \"b\":2}",
            "1 2",
            "[] []",
            "\u{feff}1",
            "[1]\u{a0}",
            "'a'",
            "[1]//",
            "\"\\u+123\"",
        ] {
            assert!(matches!(validate(text), Err(JsonError::Syntax { .. })), "{text:?}");
        }
    }

    #[test]
    fn errors_give_the_position_and_nesting_is_limited() {
        assert_eq!(validate("[1,x]"), Err(JsonError::Syntax { at: 3 }));
        for (open, inner, close) in [("[", "0", "]"), ("[", "[]", "]"), ("{\"a\":", "{}", "}")] {
            let levels = DEPTH_MAX + usize::from(inner == "0");
            let text = format!("{}{inner}{}", open.repeat(levels), close.repeat(levels));
            assert_eq!(validate(&text), Err(JsonError::TooDeep), "{open}{inner}");
            let text = text.replacen(open, "", 1);
            assert_eq!(validate(text.strip_suffix(close).unwrap()), Ok(()), "{open}{inner}");
        }
        assert_eq!(validate(&"[".repeat(1_000_000)), Err(JsonError::TooDeep));
    }

    #[test]
    fn whitespace_is_removed_only_outside_strings() {
        assert_eq!(
            compact(" { \"a b\" :\t[ 1 ,\r\n2 ] , \"\\\" \" : \" x \\\\\" } "),
            r#"{"a b":[1,2],"\" ":" x \\"}"#
        );
        for text in ["{\"a b\":[1,2]}", "\" \"", "", "1"] {
            assert!(matches!(compact(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(compact("  "), "");
        assert!(matches!(validated(" [1,2] ").unwrap(), Cow::Borrowed("[1,2]")));
        assert_eq!(validated(" [1, 2] ").unwrap(), "[1,2]");
    }

    #[test]
    fn object_members_are_listed_in_order() {
        let mut seen = Vec::new();
        let text = r#"{ "a" : 1 , "\u0062":{"c": [ ]},"":"x" }"#;
        let mut scanner = Scanner::new(text);
        scanner.object(|key, raw| seen.push((String::from(key), raw.compact()))).unwrap();
        scanner.end().unwrap();
        let expected = [("a", "1"), ("b", r#"{"c":[]}"#), ("", "\"x\"")];
        assert!(
            seen.iter().map(|(key, raw)| (key.as_str(), raw.as_ref())).eq(expected),
            "{seen:?}"
        );
    }

    #[test]
    fn members_are_listed_for_exactly_one_object() {
        let mut seen = Vec::new();
        members(" { \"a\\n\": [ 1 ],\"a\":\"x\" } ", |key, value| {
            seen.push(format!("{key}={value}"));
        })
        .unwrap();
        assert_eq!(seen, ["a\n=[ 1 ]", "a=\"x\""]);
        assert_eq!(members("{}", |_, _| unreachable!()), Ok(()));
        for text in ["", "[]", "1", "{} {}", "{\"a\":}", "{\"a\":1"] {
            assert!(matches!(members(text, |_, _| {}), Err(JsonError::Syntax { .. })), "{text}");
        }
    }
}
