//! The resume data in the join of a kept topic, and the events that answer it.
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::Hasher;
#[expect(
    deprecated,
    reason = "its output is that of SipHash-2-4, and nothing else in core's is"
)]
use core::hash::SipHasher;

use memchr::memmem;
use simurgh_proto::serializer::json;
use thiserror::Error;

use crate::position::{Position, digits};
use crate::reason::GapReason;

/// The member of a join's payload that has the resume data.
pub const KEY: &str = "simurgh";

/// Event that follows the reply to an opted-in join.
pub const RESUMED: &str = "simurgh:resumed";
/// Event before a frame that has no place for a position: the next frame has this position.
pub const NEXT: &str = "simurgh:next";
/// Event that advances the position where there is no message for this member.
pub const AT: &str = "simurgh:at";
/// Event that reports a gap in a joined channel.
pub const GAP: &str = "simurgh:gap";

/// The response to a join whose [`Resume`] cannot be read.
pub const BAD_RESUME: &str = r#"{"reason":"bad resume"}"#;

/// Where the messages that a client wants begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// From now on.
    Now,
    /// From the newest so many on: what a topic shows to a client that has seen nothing yet.
    Newest(u32),
    /// After this position.
    After(Position),
    /// After a text that is not a position of this server: no history has it.
    Unknown,
}

/// The resume data of a client that opted in: `{"simurgh": {"id": …, "since": …}}`.
///
/// ```
/// use simurgh_history::{Position, Resume, Since};
///
/// let payload = r#"{"user": 1, "simurgh": {"id": "0d4c8f51", "since": "k3f9a0.60"}}"#;
/// let resume = Resume::parse(payload)?.unwrap();
/// assert_eq!(resume.since, Since::After(Position::parse("k3f9a0.60").unwrap()));
/// assert_eq!(resume.id.as_deref(), Some("0d4c8f51"));
/// assert!(resume.partial);
///
/// assert_eq!(Resume::parse(r#"{"user": 1}"#)?, None);
/// let wrong = Resume::parse(r#"{"simurgh": {"since": 60}}"#).unwrap_err();
/// assert_eq!(wrong.to_string(), "simurgh.since is not a string");
/// # Ok::<(), simurgh_history::BadResume>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The client's id, the same over all its joins: 8 to 64 characters of its choice.
    pub id: Option<String>,
    /// What it has received.
    pub since: Since,
    /// The last position that has arrived on this connection: a client that has left a topic drops
    /// what arrives before it joins again.
    pub seen: Option<Position>,
    /// Whether it wants what is still there if that is not all.
    pub partial: bool,
    /// The proof of an earlier join, if the server gave one.
    pub key: Option<String>,
}

/// Why resume data cannot be read: an error of the client, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadResume(&'static str);

impl Resume {
    /// Characters of an id.
    pub const ID_CHARS: core::ops::RangeInclusive<usize> = 8..=64;
    /// Characters that a key may have.
    pub const KEY_CHARS_MAX: usize = 128;

    /// Reads the payload of a join. `None` if it does not have the member, or is not a JSON object.
    ///
    /// # Errors
    /// If the member has another shape; strings that are not positions are [`Since::Unknown`].
    pub fn parse(payload: &str) -> Result<Option<Self>, BadResume> {
        // Only an escape could spell the name otherwise.
        let bytes = payload.as_bytes();
        if memmem::find(bytes, KEY.as_bytes()).is_none() && memchr::memchr(b'\\', bytes).is_none() {
            return Ok(None);
        }
        // Of several the last counts, as in JSON.parse and most other parsers.
        let mut member = None;
        let read = json::members(payload, |name, value| {
            if name == KEY {
                member = Some(value);
            }
        });
        match (read, member) {
            (Ok(()), Some(member)) => Self::read(member).map(Some),
            _ => Ok(None),
        }
    }

    fn read(text: &str) -> Result<Self, BadResume> {
        let (mut id, mut since, mut partial, mut key) = (None, None, None, None);
        let mut seen = None;
        let read = json::members(text, |name, value| match name {
            "id" => id = Some(value),
            "since" => since = Some(value),
            "seen" => seen = Some(value),
            "partial" => partial = Some(value),
            "key" => key = Some(value),
            _ => {}
        });
        // It is valid JSON, so if its members cannot be read it is not an object.
        read.map_err(|_| BadResume("simurgh is not an object"))?;
        Ok(Resume {
            id: id.map(read_id).transpose()?,
            since: since.map_or(Ok(Since::Now), read_since)?,
            seen: seen.map_or(Ok(None), read_seen)?,
            partial: partial.map_or(Ok(true), read_bool)?,
            key: key.map(read_key).transpose()?,
        })
    }

    /// [`id_hash`] of its id, if it has one.
    pub fn id_hash(&self, seed: u64) -> Option<u64> {
        self.id.as_deref().map(|id| id_hash(id, seed))
    }
}

fn read_id(value: &str) -> Result<String, BadResume> {
    let id = string(value).ok_or(BadResume("simurgh.id is not a string"))?;
    if !Resume::ID_CHARS.contains(&id.chars().count()) {
        return Err(BadResume("simurgh.id does not have 8 to 64 characters"));
    }
    Ok(id.into_owned())
}

fn read_since(value: &str) -> Result<Since, BadResume> {
    if value == "null" {
        return Ok(Since::Now);
    }
    let text = string(value).ok_or(BadResume("simurgh.since is not a string"))?;
    Ok(Position::parse(&text).map_or(Since::Unknown, Since::After))
}

/// A text that is not a position of this server is [`Since::Unknown`].
fn read_seen(value: &str) -> Result<Option<Position>, BadResume> {
    if value == "null" {
        return Ok(None);
    }
    let text = string(value).ok_or(BadResume("simurgh.seen is not a string"))?;
    Ok(Position::parse(&text))
}

fn read_bool(value: &str) -> Result<bool, BadResume> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(BadResume("simurgh.partial is not a boolean")),
    }
}

fn read_key(value: &str) -> Result<String, BadResume> {
    let key = string(value).ok_or(BadResume("simurgh.key is not a string"))?;
    if key.chars().count() > Resume::KEY_CHARS_MAX {
        return Err(BadResume("simurgh.key has more than 128 characters"));
    }
    Ok(key.into_owned())
}

fn string(value: &str) -> Option<Cow<'_, str>> {
    json::quoted(value).map(json::unescape)
}

/// The number of a resume id, by which broadcasts leave out their client. It is the same for one
/// seed on all nodes, in all versions: `SipHash-2-4` with the seed as both halves of its key.
pub fn id_hash(id: &str, seed: u64) -> u64 {
    #[expect(deprecated, reason = "as above")]
    let mut hasher = SipHasher::new_with_keys(seed, seed);
    hasher.write(id.as_bytes());
    hasher.finish()
}

/// Appends the payload of [`RESUMED`]: whether everything was recovered, or why not; how many
/// messages follow; and the proof for the next join, if any.
pub fn encode_resumed(out: &mut Vec<u8>, gap: Option<GapReason>, count: usize, key: Option<&str>) {
    encode_recovered(out, gap);
    out.extend_from_slice(b",\"count\":");
    out.extend_from_slice(digits(count as u64, &mut [0; 20]));
    if let Some(key) = key {
        out.extend_from_slice(b",\"key\":");
        json::escape_into(out, key);
    }
    out.push(b'}');
}

/// Appends the payload of [`GAP`].
pub fn encode_gap(out: &mut Vec<u8>, reason: GapReason) {
    encode_recovered(out, Some(reason));
    out.push(b'}');
}

fn encode_recovered(out: &mut Vec<u8>, gap: Option<GapReason>) {
    match gap {
        None => out.extend_from_slice(b"{\"recovered\":true"),
        Some(reason) => {
            out.extend_from_slice(b"{\"recovered\":false,\"reason\":\"");
            out.extend_from_slice(reason.as_str().as_bytes());
            out.push(b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    fn parse(member: &str) -> Result<Option<Resume>, String> {
        Resume::parse(&format!(r#"{{"a":1,"simurgh":{member}}}"#)).map_err(|bad| bad.to_string())
    }

    fn since(text: &str) -> Since {
        parse(&format!(r#"{{"since":{text}}}"#)).unwrap().unwrap().since
    }

    #[test]
    fn payload_without_the_simurgh_member_requests_no_resume() {
        for payload in [
            "{}",
            "[]",
            "null",
            "\"simurgh\"",
            "[\"simurgh\",{}]",
            r#"{"a":"simurgh"}"#,
            r#"{"a":{"simurgh":1}}"#,
            r#"{"Simurgh":1}"#,
            r#"{"simurgh ":1,"\n":2}"#,
            r#"{"simurgh":{}"#,
            r#"{"simurgh":{}} 1"#,
            "",
        ] {
            assert_eq!(Resume::parse(payload), Ok(None), "{payload}");
        }
    }

    #[test]
    fn every_resume_field_is_parsed_and_optional() {
        let nothing = Resume { id: None, since: Since::Now, seen: None, partial: true, key: None };
        assert_eq!(parse("{}"), Ok(Some(nothing.clone())));
        assert_eq!(parse(r#"{"partial":true}"#), Ok(Some(nothing.clone())));
        assert_eq!(parse(r#"{ "since" : null, "more": [1] }"#), Ok(Some(nothing.clone())));
        let member = r#"{"id":"\u0031234567","since":"a00000.5-1","partial":false,"key":"k"}"#;
        let after = Since::After(Position::parse("a00000.5-1").unwrap());
        let (id, key) = (Some("1234567".to_string()), Some("k".to_string()));
        assert!(parse(member).is_err(), "seven characters");
        let member = member.replace("34567", "345678");
        let id = id.map(|id| id + "8");
        let all = Resume { id, since: after, seen: None, partial: false, key };
        assert_eq!(parse(&member), Ok(Some(all)));
        assert_eq!(Resume::parse(r#"{"simurg\u0068":{}}"#), Ok(Some(nothing.clone())));
        let twice = r#"{"simurgh":1,"simurgh":{"since":1,"since":null}}"#;
        assert_eq!(Resume::parse(twice), Ok(Some(nothing)), "the last counts");
    }

    #[test]
    fn since_accepts_any_string_as_a_position_or_unknown() {
        let long = format!("\"{}\"", "9".repeat(100_000));
        for text in ["\"\"", "\"a00000.01\"", "\"a00000\"", r#""\ud83d\ude00\u0000""#, &long] {
            assert_eq!(since(text), Since::Unknown, "{text}");
        }
        let after = since(r#""a\u00300000.18446744073709551615""#);
        let place = crate::Place::new(u64::MAX);
        assert!(matches!(after, Since::After(position) if position.place == place));
    }

    #[test]
    fn malformed_resume_fields_are_named_in_the_error() {
        let id = |count| format!(r#"{{"id":"{}"}}"#, "é".repeat(count));
        let key = |count| format!(r#"{{"key":"{}"}}"#, "é".repeat(count));
        for good in [id(8), id(64), key(0), key(128)] {
            assert!(parse(&good).is_ok(), "{good}");
        }
        let length = "simurgh.id does not have 8 to 64 characters";
        for (member, expected) in [
            ("null", "simurgh is not an object"),
            ("1", "simurgh is not an object"),
            ("true", "simurgh is not an object"),
            ("\"k3f9a0.1\"", "simurgh is not an object"),
            ("[{}]", "simurgh is not an object"),
            (r#"{"since":1}"#, "simurgh.since is not a string"),
            (r#"{"since":["a00000.1"]}"#, "simurgh.since is not a string"),
            (r#"{"since":{}}"#, "simurgh.since is not a string"),
            (r#"{"since":false}"#, "simurgh.since is not a string"),
            (r#"{"id":12345678}"#, "simurgh.id is not a string"),
            (r#"{"id":null}"#, "simurgh.id is not a string"),
            (r#"{"partial":1}"#, "simurgh.partial is not a boolean"),
            (r#"{"partial":null}"#, "simurgh.partial is not a boolean"),
            (r#"{"partial":"true"}"#, "simurgh.partial is not a boolean"),
            (r#"{"key":1}"#, "simurgh.key is not a string"),
            (&id(7), length),
            (&id(65), length),
            (&key(129), "simurgh.key has more than 128 characters"),
        ] {
            assert_eq!(parse(member), Err(expected.to_string()), "{member}");
        }
    }

    #[test]
    fn ids_hash_as_siphash_2_4() {
        // From its authors' test vectors: the key is 00 01 … 0f, the input 00 01 … 0e.
        #[expect(deprecated, reason = "as above")]
        let mut hasher = SipHasher::new_with_keys(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        hasher.write(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
        let hash = id_hash("0d4c8f51", 7);
        assert_eq!(id_hash("0d4c8f51", 7), hash);
        assert_ne!(id_hash("0d4c8f51", 8), hash);
        assert_ne!(id_hash("0d4c8f52", 7), hash);
        let resume = parse(r#"{"id":"0d4c8f51"}"#).unwrap().unwrap();
        assert_eq!(resume.id_hash(7), Some(hash));
        assert_eq!(parse("{}").unwrap().unwrap().id_hash(7), None);
    }

    #[test]
    fn resume_answers_and_gaps_are_json() {
        let text = |gap, count, key| {
            let mut out = Vec::new();
            encode_resumed(&mut out, gap, count, key);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(None, 17, None), r#"{"recovered":true,"count":17}"#);
        assert_eq!(text(None, 0, Some("a\"")), r#"{"recovered":true,"count":0,"key":"a\""}"#);
        for &reason in GapReason::ALL {
            let gap = format!(r#"{{"recovered":false,"reason":"{reason}""#);
            assert_eq!(text(Some(reason), 1_234, None), format!("{gap},\"count\":1234}}"));
            let mut out = Vec::new();
            encode_gap(&mut out, reason);
            assert_eq!(String::from_utf8(out).unwrap(), gap + "}");
        }
    }
}
