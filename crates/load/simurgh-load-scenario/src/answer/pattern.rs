//! Converts regular expressions of Tsung's files (PCRE) to the syntax of the `regex` crate.

use regex::bytes::{Regex, RegexBuilder};

/// Bytes of a compiled pattern: compile time, and the search at each byte, may grow with them.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles a pattern for bytes in any encoding.
///
/// The syntax is that of Erlang's `re`, except for what needs backtracking. A `{` that does not
/// begin a count, a `[` within a class and `\<` are literals, because patterns for JSON and HTML
/// have them. An error says what is wrong with it, for people.
pub fn compile_pattern(pattern: &str) -> Result<Regex, String> {
    let adapted = adapted(pattern);
    // Bytes first: then `.` is any byte, so that Latin-1 pages match too, and `\d` only 0 to 9,
    // both as in PCRE. Classes with non-ASCII letters need Unicode.
    let built = |unicode: bool| {
        RegexBuilder::new(&adapted).unicode(unicode).size_limit(COMPILED_BYTES_MAX).build()
    };
    built(false).or_else(|_| built(true)).map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("'{pattern}' is not a supported regular expression: {reason}")
    })
}

/// The end, or before a line feed there.
const END: &str = r"(?:\n?\z)";

fn adapted(pattern: &str) -> String {
    let flags =
        |group: &str| group.split([':', ')', '-']).next().is_some_and(|set| set.contains('m'));
    let is_multi_line = pattern
        .split("(?")
        .skip(1)
        .any(|group| group.starts_with(|c: char| c.is_ascii_lowercase()) && flags(group));
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(char) = rest.chars().next() {
        let (piece, after) = match char {
            '\\' => escape(rest, &mut out),
            '[' => class(rest, &mut out),
            '$' if !is_multi_line => {
                out.push_str(END);
                (0, 1)
            }
            '{' if !is_count(rest) => {
                out.push_str("\\{");
                (0, 1)
            }
            char => (char.len_utf8(), char.len_utf8()),
        };
        let (taken, left) = rest.split_at(after);
        out.push_str(taken.get(..piece).unwrap_or_default());
        rest = left;
    }
    out
}

/// Converts an escape at the front of `rest`; returns how much of it is kept, and its length.
fn escape(rest: &str, out: &mut String) -> (usize, usize) {
    match rest.chars().nth(1) {
        // Word borders in `regex`, literals in PCRE.
        Some(sign @ ('<' | '>' | '_' | ',' | '\'' | '"')) => {
            out.push(sign);
            (0, 2)
        }
        Some('e') => {
            out.push_str("\\x1b");
            (0, 2)
        }
        Some('Z') => {
            out.push_str(END);
            (0, 2)
        }
        Some('h') => {
            out.push_str("[ \\t]");
            (0, 2)
        }
        Some('R') => {
            out.push_str("(?:\\r\\n|[\\n\\x0b\\x0c\\r])");
            (0, 2)
        }
        Some(char) => (1 + char.len_utf8(), 1 + char.len_utf8()),
        None => (1, 1),
    }
}

/// Converts a class at the front of `rest`; all characters in it become literals.
fn class(rest: &str, out: &mut String) -> (usize, usize) {
    let mut inner = rest.char_indices().skip(1).peekable();
    out.push('[');
    if inner.next_if(|(_, char)| *char == '^').is_some() {
        out.push('^');
    }
    let mut is_first = true;
    while let Some((at, char)) = inner.next() {
        let tail = rest.get(at..).unwrap_or_default();
        match char {
            ']' if !is_first => {
                out.push(']');
                return (0, at + 1);
            }
            ']' => out.push_str("\\]"),
            '[' => match tail.find(":]").filter(|_| tail.starts_with("[:")) {
                Some(end) => {
                    out.push_str(tail.get(..end + 2).unwrap_or_default());
                    while inner.next_if(|(next, _)| *next < at + end + 2).is_some() {}
                }
                None => out.push_str("\\["),
            },
            '\\' => {
                if let Some((_, escaped)) = inner.next() {
                    let is_plain = matches!(escaped, '<' | '>' | '_' | ',' | '\'' | '"');
                    out.extend(Some('\\').filter(|_| !is_plain));
                    out.push(escaped);
                }
            }
            // Doubled, these are set operators in `regex`.
            '&' | '~' => out.extend(['\\', char]),
            '-' if tail.starts_with("--") => out.push_str("\\-"),
            char => out.push(char),
        }
        is_first = false;
    }
    // An unclosed class, which the crate reports.
    (0, rest.len())
}

fn is_count(rest: &str) -> bool {
    let Some((inner, _)) = rest.get(1..).and_then(|inner| inner.split_once('}')) else {
        return false;
    };
    let (first, last) = inner.split_once(',').unwrap_or((inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !first.is_empty() && is_number(first) && is_number(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(pattern: &str, text: &[u8]) -> Option<String> {
        let found = compile_pattern(pattern).unwrap().find(text)?;
        Some(String::from_utf8_lossy(found.as_bytes()).into_owned())
    }

    #[test]
    fn pcre_patterns_match_as_in_pcre() {
        let table: [(&str, &[u8], Option<&str>); 29] = [
            (r#"{"status":"ok"}"#, br#"x{"status":"ok"}y"#, Some(r#"{"status":"ok"}"#)),
            (r#""a":{"b":\d{2,3}}"#, br#"{"a":{"b":123}}"#, Some(r#""a":{"b":123}"#)),
            ("a{2}", b"caab", Some("aa")),
            ("a{2,}b", b"caaab", Some("aaab")),
            ("a{,2}", b"xa{,2}", Some("a{,2}")),
            ("{", b"a{", Some("{")),
            (r"\<b\>", b"a<b>", Some("<b>")),
            (r"[[a]+", b"x[a[", Some("[a[")),
            (r"[^[\]]+", b"[ab]", Some("ab")),
            (r"[]a]+", b"x]a", Some("]a")),
            (r"[[:digit:]x]+", b"a1x2b", Some("1x2")),
            (r"[a&&b]+", b"x&&a", Some("&&a")),
            (r"[a-c]+", b"xabc", Some("abc")),
            (r"\/\-\_\,\'", b"/-_,'", Some("/-_,'")),
            (r"\d+", "\u{663}12".as_bytes(), Some("12")),
            (r"<t>(.*)</t>", b"<t>\xe9\xff</t>", Some("<t>\u{fffd}\u{fffd}</t>")),
            ("[\u{e9}\u{e8}]+", "caf\u{e9}".as_bytes(), Some("\u{e9}")),
            ("(?i)TOKEN", b"a token", Some("token")),
            ("a.b", b"a\nb", None),
            ("^b", b"a\nb", None),
            ("end$", b"the end\n", Some("end\n")),
            ("end$", b"the end\n\n", None),
            ("a$", b"a\nb", None),
            ("(?m)a$", b"a\nb", Some("a")),
            ("(?im:A$)", b"a\nb", Some("a")),
            ("(?:m|a$)", b"a\nb", None),
            (r"a\$[$]", b"a$$\n", Some("a$$")),
            (r"end\Z", b"end\n", Some("end\n")),
            (r"a\hb\Rc", b"a b\r\nc", Some("a b\r\nc")),
        ];
        for (pattern, text, wanted) in table {
            assert_eq!(first(pattern, text).as_deref(), wanted, "{pattern}");
        }
    }

    #[test]
    fn unsupported_pcre_syntax_is_reported() {
        for (pattern, word) in [
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreferences"),
            ("(a", "unclosed group"),
            ("[a", "unclosed character class"),
            ("a\\", "incomplete escape"),
        ] {
            let error = compile_pattern(pattern).unwrap_err();
            assert!(error.contains(word) && error.contains(pattern), "{error}");
        }
    }
}
