//! JSON strings: finding the end of a plain run, escaping and unescaping.
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// Appends `text` as a JSON string, with quotes. Only what RFC 8259 §7 requires is escaped, in the
/// spelling of JavaScript, so that a ref which JSON.stringify wrote goes back byte for byte.
pub fn escape_into(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (plain, special) = rest.split_at(plain_len(rest));
        out.extend_from_slice(plain);
        let Some((&byte, after)) = special.split_first() else { break };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte)]),
        }
        rest = after;
    }
    out.push(b'"');
}

/// Unescapes `inner`, the text between a JSON string's quotes. Borrows when nothing is escaped.
///
/// Meant for text that a scanner has accepted; an invalid escape gives U+FFFD.
pub fn unescape(inner: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', inner.as_bytes()) else { return Cow::Borrowed(inner) };
    let (plain, mut rest) = inner.split_at(first);
    let mut out = String::with_capacity(inner.len());
    out.push_str(plain);
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        let (plain, escape) = rest.split_at(at);
        out.push_str(plain);
        let (letter, after) = unescape_one(escape);
        out.push(letter);
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The text between the quotes, if `raw` is a JSON string.
pub fn quoted(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Length of the run at the front that needs no escape in a JSON string: up to the first quote,
/// backslash or control character. Eight bytes a step, since payloads are mostly such runs.
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES * 0x80;
    // Marks bytes below `n` (n ≤ 128); bytes above a marked one may be marked wrongly, so only the
    // lowest mark counts, and in little-endian order that is the first byte.
    let below = |word: u64, n: u64| word.wrapping_sub(ONES * n) & !word & TOPS;
    let (words, tail) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let special = below(word, 0x20)
            | below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1);
        if special != 0 {
            return index * 8 + (special.trailing_zeros() / 8) as usize;
        }
    }
    let plain = tail.iter().take_while(|byte| !matches!(byte, ..0x20 | b'"' | b'\\')).count();
    words.len() * 8 + plain
}

/// The code unit that four hex digits spell.
pub(super) fn code_unit(digits: &[u8]) -> Option<u16> {
    let digits: &[u8; 4] = digits.first_chunk()?;
    let mut unit = 0;
    for &digit in digits {
        unit = unit << 4 | char::from(digit).to_digit(16)?;
    }
    u16::try_from(unit).ok()
}

/// The character of the escape at the front, and what follows it.
fn unescape_one(escape: &str) -> (char, &str) {
    let after = |bytes: usize| escape.get(bytes..).unwrap_or("");
    let letter = match escape.as_bytes().get(1) {
        Some(b'u') => return unescape_unit(escape),
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(&byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
        // Not an escape: the backslash is dropped, what follows stays.
        _ => return (char::REPLACEMENT_CHARACTER, after(1)),
    };
    (letter, after(2))
}

fn unescape_unit(escape: &str) -> (char, &str) {
    let after = |bytes: usize| escape.get(bytes..).unwrap_or("");
    let unit_at = |at: usize| escape.as_bytes().get(at..).and_then(code_unit);
    let Some(high) = unit_at(2) else { return (char::REPLACEMENT_CHARACTER, after(2)) };
    if let Some(letter) = char::from_u32(u32::from(high)) {
        return (letter, after(6));
    }
    let low = if after(6).starts_with("\\u") { unit_at(8) } else { None };
    let pair = [high, low.unwrap_or(0)];
    match char::decode_utf16(pair).next() {
        Some(Ok(letter)) => (letter, after(12)),
        _ => (char::REPLACEMENT_CHARACTER, after(6)),
    }
}

fn hex(nibble: u8) -> u8 {
    match nibble & 0xf {
        digit @ 0..10 => b'0' + digit,
        digit => b'a' + (digit - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = Vec::new();
        escape_into(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_characters_that_need_it_are_escaped() {
        assert_eq!(escaped("rooms:lobby"), "\"rooms:lobby\"");
        assert_eq!(escaped("é/\u{7f}\u{2028}"), "\"é/\u{7f}\u{2028}\"");
        assert_eq!(escaped("\"\\\u{8}\u{c}\n\r\t\u{0}\u{1f}"), r#""\"\\\b\f\n\r\t\u0000\u001f""#);
    }

    #[test]
    fn every_escape_form_is_unescaped() {
        assert_eq!(unescape(r#"\"\\\/\b\f\n\r\t"#), "\"\\/\u{8}\u{c}\n\r\t");
        assert_eq!(unescape(r"a\u00e9\u00E9b\ud83d\ude00c"), "aééb😀c");
        assert!(matches!(unescape("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn unescaping_invalid_escapes_yields_replacement_characters() {
        for broken in ["\\", "\\u", "\\u12", "\\ud800", "\\ud800\\u0041", "\\q", "\\é", "\\ué"] {
            assert!(unescape(broken).contains(char::REPLACEMENT_CHARACTER), "{broken}");
        }
        assert_eq!(unescape(r"\ud800\u0041"), "\u{fffd}A");
    }

    #[test]
    fn plain_run_ends_at_the_first_special_byte() {
        for special in [0, 0x1f, b'"', b'\\'] {
            for at in 0..40 {
                let mut bytes = [b'!'; 40];
                bytes[at..].fill(0xff);
                bytes[at] = special;
                assert_eq!(plain_len(&bytes), at, "{special} at {at}");
            }
        }
        assert_eq!(plain_len(&[0x20, 0x7f, 0x80, 0xff, 0x21, 0x23, 0x5b, 0x5d, 0x22]), 8);
        assert_eq!(plain_len(b""), 0);
    }
}
