//! Refs by their numbers, in the forms that clients may send: mostly short strings, some as long as
//! a server keeps, longer, longer than a binary frame has room for, or JSON numbers.

use simurgh_proto::message::Ref;

/// A ref that was not made here.
pub(crate) const STRANGE: u32 = u32::MAX - 7;
/// Numbers of each form.
const EACH: u32 = 10_000_000;
/// Forms other than a number's digits in quotes.
pub(crate) const FORMS: u32 = 5;
/// Bytes of a ref's text, with its quotes, by form; the last form has no entry.
const BYTES: [(u32, usize); 4] = [(1, 1 << 10), (2, (1 << 10) + 1), (3, 258), (4, 257)];
/// The longest ref of a join, with its quotes.
pub(crate) const BYTES_MAX: usize = 1 << 10;

/// The same number in another form.
pub(crate) fn in_form(number: u32, form: u32) -> u32 {
    number % EACH + form % (FORMS + 1) * EACH
}

/// The ref of a number; 0 is none.
pub(crate) fn of(number: u32) -> Ref<'static> {
    if number == 0 {
        return Ref::Null;
    }
    let mut text = number.to_string();
    if is_bare(number) {
        return Ref::from_json(text);
    }
    text.extend(std::iter::repeat_n('r', field_bytes(number) - text.len()));
    Ref::from_text(&text)
}

/// The number of a ref; with `is_binary` of a binary frame, where all fields are strings.
pub(crate) fn number(raw: &str, is_binary: bool) -> u32 {
    if matches!(raw, "null" | "\"\"") {
        return 0;
    }
    let inner = raw.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let (number, rest) = crate::kit::payload::number(inner.unwrap_or(raw).as_bytes());
    let is_right = match is_bare(number) {
        true => rest.is_empty() && (inner.is_none() || is_binary),
        false => {
            let bytes = inner.map(str::len);
            bytes == Some(field_bytes(number)) && rest.iter().all(|it| *it == b'r')
        }
    };
    if is_right { number } else { STRANGE }
}

/// Bytes without quotes.
pub(crate) fn field_bytes(number: u32) -> usize {
    let long = BYTES.iter().find(|(form, _)| *form == number / EACH);
    let digits = number.checked_ilog10().map_or(0, |it| it as usize + 1);
    long.map_or(digits, |(_, bytes)| bytes - 2)
}

/// Whether it is too long for a join.
pub(crate) fn is_too_long(number: u32) -> bool {
    number != 0 && !is_bare(number) && field_bytes(number) + 2 > BYTES_MAX
}

fn is_bare(number: u32) -> bool {
    number / EACH == FORMS
}
