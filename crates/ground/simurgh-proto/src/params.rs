//! Query parameters as nested forms (PROTOCOL §2, rows 7 and 18).
//!
//! `a[b]=c` is `{"a":{"b":"c"}}` and `a[]=b` is `{"a":["b"]}`, as Plug reads them and phoenix.js
//! writes them. Names and values are percent-decoded first, so the brackets may be escaped too; a
//! name without `=` has the value `""`. Where two pairs contradict each other (`a=1&a[b]=2`, or `a`
//! twice) the later one counts. Every leaf is a string: a form has no other types.
use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Map, Value};
use thiserror::Error;

/// The most pairs of one query.
pub const PAIRS_MAX: usize = 1024;
/// The most brackets of one name.
pub const DEPTH_MAX: usize = 32;

/// The query (after the `?`) as a JSON object.
///
/// # Errors
/// See [`ParamsError`]; answer HTTP 400, as Plug does.
pub fn decode(query: &str) -> Result<Value, ParamsError> {
    let mut pairs = Vec::new();
    for pair in pairs_of(query) {
        if pairs.len() == PAIRS_MAX {
            return Err(ParamsError::TooMany);
        }
        let (name, value) = pair;
        pairs.push((decoded(name)?, decoded(value)?));
    }
    let mut params = Map::new();
    // Backwards, so that an existing value wins.
    for (name, value) in pairs.iter().rev() {
        let path = path(name);
        if path.len() > DEPTH_MAX + 1 {
            return Err(ParamsError::TooDeep);
        }
        assign(&mut params, &path, value);
    }
    Ok(Value::Object(params))
}

/// An object as a query that [`decode`] reads: numbers and booleans become text, `null` the empty
/// text, empty lists and objects nothing. `null` itself gives no pairs; `None` for any other value.
pub fn encode(params: &Value) -> Option<String> {
    let mut query = String::new();
    match params {
        Value::Null => {}
        Value::Object(params) => {
            for (name, value) in params {
                encode_into(&mut query, &escaped(name), value);
            }
        }
        _ => return None,
    }
    Some(query)
}

fn encode_into(query: &mut String, name: &str, value: &Value) {
    let text = match value {
        Value::Object(inner) => {
            for (key, value) in inner {
                encode_into(query, &alloc::format!("{name}[{}]", escaped(key)), value);
            }
            return;
        }
        Value::Array(items) => {
            for value in items {
                encode_into(query, &alloc::format!("{name}[]"), value);
            }
            return;
        }
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text.as_str()),
        Value::Bool(_) | Value::Number(_) => Cow::Owned(value.to_string()),
    };
    if !query.is_empty() {
        query.push('&');
    }
    query.push_str(name);
    query.push('=');
    query.push_str(&escaped(&text));
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The `vsn` parameter, without building the rest.
///
/// # Errors
/// If it is a list, an object, or malformed text: answer HTTP 403.
pub fn vsn(query: &str) -> Result<Option<Cow<'_, str>>, NotAString> {
    let mut found = Ok(None);
    for (name, value) in pairs_of(query) {
        let Ok(name) = decoded(name) else { continue };
        if name == "vsn" {
            found = decoded(value).map(Some).map_err(|_| NotAString);
        } else if path(&name).first() == Some(&"vsn") {
            found = Err(NotAString);
        }
    }
    found
}

/// A query that cannot be read. An error of the peer: HTTP 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParamsError {
    /// A `%` that is not followed by two hex digits.
    #[error("malformed percent encoding in the query")]
    Malformed,
    /// Percent-decoded bytes that are not UTF-8.
    #[error("the query is not UTF-8")]
    NotUtf8,
    /// A name with more than [`DEPTH_MAX`] brackets.
    #[error("a query parameter nests too deep")]
    TooDeep,
    /// More than [`PAIRS_MAX`] pairs.
    #[error("too many query parameters")]
    TooMany,
}

/// The `vsn` parameter is not a string: HTTP 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("vsn is not a string")]
pub struct NotAString;

fn pairs_of(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Form decoding: `+` is a blank, `%XX` a byte.
fn decoded(text: &str) -> Result<Cow<'_, str>, ParamsError> {
    let bytes = text.as_bytes();
    if memchr::memchr2(b'%', b'+', bytes).is_none() {
        return Ok(Cow::Borrowed(text));
    }
    for at in memchr::memchr_iter(b'%', bytes) {
        let digits = bytes.get(at + 1..at + 3).unwrap_or_default();
        if digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(ParamsError::Malformed);
        }
    }
    let blanks = text.replace('+', " ");
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(&blanks).collect();
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| ParamsError::NotUtf8)
}

/// A name's parts: `a[b][]` is `a`, `b`, and the empty part that stands for a list.
fn path(name: &str) -> Vec<&str> {
    let nested = name.strip_suffix(']').and_then(|name| name.split_once('['));
    match nested {
        Some((first, rest)) if !first.is_empty() => {
            // One more than allowed, so that the caller sees that there are too many.
            core::iter::once(first).chain(rest.split("][")).take(DEPTH_MAX + 2).collect()
        }
        _ => [name].into(),
    }
}

/// Puts `value` at `path`, unless a value is there already or on the way.
fn assign(mut map: &mut Map<String, Value>, mut path: &[&str], value: &str) {
    while let [key, rest @ ..] = path {
        let next = match rest {
            [] => {
                map.entry(*key).or_insert_with(|| Value::String(value.to_string()));
                return;
            }
            ["", rest @ ..] => {
                let slot = map.entry(*key).or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(items) = slot else { return };
                // Pairs come last to first, so each goes in front of those that follow it.
                if rest.is_empty() {
                    items.insert(0, Value::String(value.to_string()));
                    return;
                }
                items.insert(0, Value::Object(Map::new()));
                path = rest;
                items.first_mut()
            }
            _ => {
                path = rest;
                Some(map.entry(*key).or_insert_with(|| Value::Object(Map::new())))
            }
        };
        let Some(Value::Object(inner)) = next else { return };
        map = inner;
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn json(query: &str) -> String {
        decode(query).unwrap().to_string()
    }

    #[test]
    fn bracketed_parameter_names_are_nested() {
        assert_eq!(json(""), "{}");
        assert_eq!(json("a=1&b=2&vsn=2.0.0"), r#"{"a":"1","b":"2","vsn":"2.0.0"}"#);
        assert_eq!(json("a[b]=c&a[d][e]=f"), r#"{"a":{"b":"c","d":{"e":"f"}}}"#);
        assert_eq!(json("a[]=1&a[]=2&a[]="), r#"{"a":["1","2",""]}"#);
        assert_eq!(json("a[][b]=1&a[][b]=2"), r#"{"a":[{"b":"1"},{"b":"2"}]}"#);
        assert_eq!(json("a[b][]=1&a[b][]=2"), r#"{"a":{"b":["1","2"]}}"#);
    }

    #[test]
    fn parameter_names_and_values_are_decoded_before_nesting() {
        assert_eq!(json("a%5Bb%5D=c%20d+e%2Bf"), r#"{"a":{"b":"c d e+f"}}"#);
        assert_eq!(json("%C3%A9=%F0%9F%98%80&x=a%3Db%26c=d"), r#"{"x":"a=b&c=d","é":"😀"}"#);
        assert_eq!(json("a%00=%22"), r#"{"a\u0000":"\""}"#);
    }

    #[test]
    fn encoded_parameters_decode_to_the_same_value() {
        let params: Value = serde_json::from_str(
            r#"{"a":{"b":"c d&e=f","d":{"é":"%"}},"l":["1","","3"],"o":[{"x":"1"},{"x":"2"}]}"#,
        )
        .unwrap();
        assert_eq!(decode(&encode(&params).unwrap()).unwrap(), params);
        let typed: Value = serde_json::from_str(r#"{"n":1.5,"b":true,"z":null,"e":[]}"#).unwrap();
        assert_eq!(json(&encode(&typed).unwrap()), r#"{"b":"true","n":"1.5","z":""}"#);
        assert_eq!(encode(&Value::Null).unwrap(), "");
        assert_eq!(encode(&Value::Bool(true)), None);
    }

    #[test]
    fn unusual_parameter_names_are_accepted() {
        assert_eq!(json("a&b=&=c&&"), r#"{"":"c","a":"","b":""}"#);
        assert_eq!(
            json("a[b=1&c]=2&[d]=3&a[b]c=4"),
            r#"{"[d]":"3","a[b":"1","a[b]c":"4","c]":"2"}"#
        );
        assert_eq!(json("__proto__[x]=1"), r#"{"__proto__":{"x":"1"}}"#);
    }

    #[test]
    fn last_of_two_conflicting_pairs_wins() {
        assert_eq!(json("a=1&a=2"), r#"{"a":"2"}"#);
        assert_eq!(json("a=1&a[b]=2"), r#"{"a":{"b":"2"}}"#);
        assert_eq!(json("a[b]=2&a=1"), r#"{"a":"1"}"#);
        assert_eq!(json("a[]=1&a[b]=2"), r#"{"a":{"b":"2"}}"#);
        assert_eq!(json("a[b]=1&a[]=2"), r#"{"a":["2"]}"#);
        assert_eq!(json("a=1&a[]=2"), r#"{"a":["2"]}"#);
    }

    #[test]
    fn undecodable_parameters_are_rejected() {
        for query in ["a=%", "a=%4", "a=%zz", "%g1=1", "a=%+1"] {
            assert_eq!(decode(query), Err(ParamsError::Malformed), "{query}");
        }
        assert_eq!(decode("a=%ff"), Err(ParamsError::NotUtf8));
        let deep = |levels| format!("a{}=1", "[b]".repeat(levels));
        assert!(decode(&deep(DEPTH_MAX)).is_ok());
        assert_eq!(decode(&deep(DEPTH_MAX + 1)), Err(ParamsError::TooDeep));
        assert_eq!(decode(&deep(100_000)), Err(ParamsError::TooDeep));
        assert!(decode(&"a[]=1&".repeat(PAIRS_MAX)).is_ok());
        assert_eq!(decode(&"a[]=1&".repeat(PAIRS_MAX + 1)), Err(ParamsError::TooMany));
    }

    #[test]
    fn vsn_is_found_at_any_position() {
        let vsn = |query| vsn(query).map(|vsn| vsn.unwrap_or("none".into()));
        assert_eq!(vsn("").unwrap(), "none");
        assert_eq!(vsn("a=1&xvsn=3&vsnx=4").unwrap(), "none");
        assert_eq!(vsn("a=%&vsn=2.0.0").unwrap(), "2.0.0");
        assert_eq!(vsn("vsn=1.0.0&vsn=2.0.0").unwrap(), "2.0.0");
        assert_eq!(vsn("%76sn=2%2E0.0").unwrap(), "2.0.0");
        assert_eq!(vsn("vsn").unwrap(), "");
        for query in ["vsn[]=2.0.0", "vsn[a]=2.0.0", "vsn=1&vsn%5B%5D=2", "vsn=%"] {
            assert_eq!(vsn(query), Err(NotAString), "{query}");
        }
        assert_eq!(vsn("vsn[]=1&vsn=2.0.0").unwrap(), "2.0.0");
    }
}
