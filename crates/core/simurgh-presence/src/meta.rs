//! The data of entries and keys: JSON objects, checked once and kept as text.
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;

use simurgh_proto::serializer::json::{self, JsonError};
use thiserror::Error;

use crate::phx_ref::PhxRef;

/// Members of a meta that the table sets itself, as Phoenix does.
const REFS: [&str; 2] = ["phx_ref", "phx_ref_prev"];
/// The member that an extra must not have.
const METAS: [&str; 1] = ["metas"];

/// Why a text is not a meta or an extra.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetaError {
    /// Not UTF-8.
    #[error("not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The byte where that was found.
        at: usize,
    },
    /// Not JSON, or nested too deep.
    #[error("{0}")]
    Json(JsonError),
    /// JSON, but not an object.
    #[error("not a JSON object")]
    NotAnObject,
}

/// The data of one entry: the text of a JSON object, without whitespace between its tokens (Java
/// clients break on it) and without `phx_ref` and `phx_ref_prev`, which the table adds where it is
/// sent. Numbers and strings stay as they were written.
///
/// ```
/// use simurgh_presence::{Meta, MetaError};
///
/// let meta = Meta::parse(r#"{ "at": 1.50, "phx_ref": "mine", "name": "Zoë" }"#)?;
/// assert_eq!(meta.as_str(), r#"{"at":1.50,"name":"Zoë"}"#);
/// assert_eq!(Meta::parse("[1]"), Err(MetaError::NotAnObject));
/// # Ok::<(), MetaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta(Box<str>);

impl Meta {
    /// Checks a text, or bytes.
    ///
    /// # Errors
    /// If it is not one JSON object, or nests deeper than [`DEPTH_MAX`](json::DEPTH_MAX).
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, MetaError> {
        object(text.as_ref(), &REFS).map(Meta)
    }

    /// Its compact text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Appends it with its refs, as an element of `metas`.
    pub(crate) fn encode(
        &self,
        phx_ref: PhxRef,
        prev: Option<PhxRef>,
        out: &mut alloc::vec::Vec<u8>,
    ) {
        let open = self.0.len() - 1;
        out.extend_from_slice(self.0.as_bytes().get(..open).unwrap_or_default());
        if open > 1 {
            out.push(b',');
        }
        out.extend_from_slice(b"\"phx_ref\":\"");
        out.extend_from_slice(&phx_ref.chars());
        if let Some(prev) = prev {
            out.extend_from_slice(b"\",\"phx_ref_prev\":\"");
            out.extend_from_slice(&prev.chars());
        }
        out.extend_from_slice(b"\"}");
    }

    /// Bytes that [`encode`](Self::encode) appends, of which one may be too many.
    pub(crate) fn encoded_bytes(&self, prev: Option<PhxRef>) -> usize {
        self.0.len() + 30 + if prev.is_some() { 34 } else { 0 }
    }
}

/// What an application adds to a key besides `metas` (`fetch` of Phoenix): the text of a
/// JSON object, compact, without `metas`.
///
/// ```
/// use simurgh_presence::Extra;
///
/// let extra = Extra::parse(r#"{"user": {"name": "Zoë"}, "metas": []}"#)?;
/// assert_eq!(extra.as_str(), r#"{"user":{"name":"Zoë"}}"#);
/// # Ok::<(), simurgh_presence::MetaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra(Box<str>);

impl Extra {
    /// Checks a text, or bytes.
    ///
    /// # Errors
    /// As [`Meta::parse`].
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, MetaError> {
        object(text.as_ref(), &METAS).map(Extra)
    }

    /// Its compact text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn members(&self) -> &str {
        let closed = self.0.strip_prefix('{').unwrap_or_default();
        closed.strip_suffix('}').unwrap_or_default()
    }
}

/// The compact text of the object in `bytes` without the members `dropped`.
fn object(bytes: &[u8], dropped: &[&str]) -> Result<Box<str>, MetaError> {
    let text =
        str::from_utf8(bytes).map_err(|error| MetaError::NotUtf8 { at: error.valid_up_to() })?;
    let compact = json::validated(text).map_err(MetaError::Json)?;
    if !compact.starts_with('{') {
        return Err(MetaError::NotAnObject);
    }
    // An escape may spell any name.
    if compact.contains('\\') || dropped.iter().any(|name| compact.contains(name)) {
        return Ok(without(&compact, dropped).into_boxed_str());
    }
    Ok(compact.into_owned().into_boxed_str())
}

/// Removes some members of a valid compact object, at the top level only.
fn without(object: &str, dropped: &[&str]) -> String {
    let inner = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let mut rest = inner.unwrap_or_default();
    let mut kept = String::with_capacity(object.len());
    while !rest.is_empty() {
        let (member, following) = rest.split_at(member_len(rest));
        rest = following.strip_prefix(',').unwrap_or_default();
        let name = member.get(..string_len(member)).and_then(json::quoted).map(json::unescape);
        if !dropped.contains(&name.unwrap_or(Cow::Borrowed("")).as_ref()) {
            kept.push(if kept.is_empty() { '{' } else { ',' });
            kept.push_str(member);
        }
    }
    if kept.is_empty() {
        kept.push('{');
    }
    kept.push('}');
    kept
}

fn member_len(members: &str) -> usize {
    let bytes = members.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_len(members.get(at..).unwrap_or_default()).max(1) - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    at.min(bytes.len())
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(text: &str) -> String {
        Meta::parse(text).map(|it| it.as_str().into()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn reserved_phx_ref_members_are_dropped_in_any_spelling() {
        for (text, kept) in [
            ("{}", "{}"),
            (" {\n} ", "{}"),
            (r#"{"phx_ref":1}"#, "{}"),
            (r#"{"phx\u005fref":{"a":[1,{}]},"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":1,"phx_ref_prev":"x,\"}"}"#, r#"{"a":1}"#),
            (r#"{"a":"phx_ref","phx_ref2":2}"#, r#"{"a":"phx_ref","phx_ref2":2}"#),
            (r#"{"a":{"phx_ref":1}}"#, r#"{"a":{"phx_ref":1}}"#),
            (r#"{"a\"":"\\","phx_ref":"\\","b":[[],","]}"#, r#"{"a\"":"\\","b":[[],","]}"#),
            (r#"{"":1,"phx_ref":2}"#, r#"{"":1}"#),
        ] {
            assert_eq!(meta(text), kept, "{text}");
        }
    }

    #[test]
    fn numbers_in_metadata_keep_their_spelling() {
        let text = r#"{"a":1e999,"b":-0.0,"c":123456789012345678901234567890,"d":1.50}"#;
        assert_eq!(meta(text), text);
        assert_eq!(meta(&text.replace(':', " :\t").replace(',', "\r\n, ")), text);
    }

    #[test]
    fn metadata_errors_name_the_problem_and_its_position() {
        let said = |text: &[u8]| alloc::format!("{}", Meta::parse(text).unwrap_err());
        assert_eq!(said(b"[]"), "not a JSON object");
        assert_eq!(said(b"null"), "not a JSON object");
        assert_eq!(said(b"{\"a\":\xff}"), "not UTF-8 at byte 5");
        assert_eq!(said(b"{\"a\"}"), "not JSON at byte 4");
        assert!(said(b"").starts_with("not JSON"), "{}", said(b""));
    }
}
