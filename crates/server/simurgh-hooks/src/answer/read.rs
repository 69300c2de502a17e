//! Reads the JSON object of an answer. A key of a wrong type makes all of it wrong; `null` is as
//! good as no key.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::{Answer, ConnectAnswer, JoinAnswer, MessageAnswer};
use crate::question::Kind;

const CLAIMS_MAX: usize = 2048;
const ASSIGNS_MAX: usize = 1024;
/// Most topics of `subscribe`, and `messages`.
const LIST_MAX: usize = 16;

/// An answer that allows.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) answer: Answer,
    /// Seconds that it may be cached; 0: not at all.
    pub(crate) cache_for: u64,
    /// Seconds for which it counts beyond that while its question fails.
    pub(crate) stale_for: u64,
    /// Keys that have no meaning here.
    pub(crate) unknown: Vec<String>,
}

/// Why the body of an answer is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It is no JSON object.
    Object,
    /// The value of this key is not as expected.
    Key(&'static str, &'static str),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object => f.write_str("the body must be empty or a JSON object"),
            Self::Key(key, expected) => write!(f, "`{key}` must be {expected}"),
        }
    }
}

/// Reads the body of an answer that allows, given at `now_s` (Unix time). It may name these limits.
pub(crate) fn grant(kind: Kind, body: &[u8], now_s: u64, known: &[String]) -> Result<Grant, Wrong> {
    let mut fields = Fields::read(body)?;
    let ([mut cache_for, mut stale_for], mut limits) = ([0, 0], None);
    if kind != Kind::Message {
        fields.seconds("retry_after")?;
        cache_for = fields.seconds("cache_for")?.unwrap_or_default();
        stale_for = fields.seconds("stale_for")?.unwrap_or_default();
        let expected = "the name of a table [limits.NAME] of the server";
        limits = fields.take_if("limits", expected, |name| known.contains(name))?;
    }
    let answer = match kind {
        Kind::Connect | Kind::Refresh => {
            let answer = connect(&mut fields, now_s)?;
            Answer::Connect(ConnectAnswer { limits, stale_for, ..answer })
        }
        Kind::Join => Answer::Join(JoinAnswer { limits, ..join(&mut fields)? }),
        Kind::Message => Answer::Message(message(&mut fields)?),
    };
    let unknown = fields.0.into_keys().collect();
    Ok(Grant { answer, cache_for, stale_for, unknown })
}

/// The text `reason` of a refusal, and for how many seconds it may be cached.
pub(super) fn refusal(body: &str) -> Option<(Option<String>, Option<u64>)> {
    let mut fields = Fields::read(body.as_bytes()).ok().filter(|_| !body.trim().is_empty())?;
    let reason = fields.take("reason", "text").ok().flatten();
    Some((reason, fields.seconds("retry_after").ok().flatten()))
}

fn connect(fields: &mut Fields<'_>, now_s: u64) -> Result<ConnectAnswer, Wrong> {
    let ends = fields.seconds("expires_in")?.map(|seconds| now_s.saturating_add(seconds));
    let expires_at = [ends, fields.seconds("expires_at")?].into_iter().flatten().min();
    Ok(ConnectAnswer {
        user: fields.user()?,
        claims: fields
            .object("claims", CLAIMS_MAX, "an object of at most 2,048 bytes")?
            .unwrap_or_default(),
        expires_at,
        id: fields.take("id", "text")?,
        topics: fields.take("topics", "a list of texts")?.unwrap_or_default(),
        ..ConnectAnswer::default()
    })
}

fn join(fields: &mut Fields<'_>) -> Result<JoinAnswer, Wrong> {
    let presence = fields.take_if("presence", "an object with a text `key`", has_text_key)?;
    let expected = "a list of at most 16 texts";
    let subscribe =
        fields.take_if("subscribe", expected, |list: &Vec<_>| list.len() <= LIST_MAX)?;
    Ok(JoinAnswer {
        reply: fields.any("reply"),
        assigns: fields.object("assigns", ASSIGNS_MAX, "an object of at most 1,024 bytes")?,
        publish: fields.take("publish", "true, false or a list of events")?,
        presence: presence.map(Value::Object),
        subscribe: subscribe.unwrap_or_default(),
        limits: None,
    })
}

fn has_text_key(presence: &Map<String, Value>) -> bool {
    presence.get("key").is_none_or(Value::is_string)
}

fn message(fields: &mut Fields<'_>) -> Result<MessageAnswer, Wrong> {
    let expected = "a list of at most 16 objects with `topic`, `event` and `payload`";
    let messages = fields.take_if("messages", expected, |list: &Vec<_>| list.len() <= LIST_MAX)?;
    Ok(MessageAnswer {
        reply: fields.any("reply"),
        status: fields.take("status", "text")?,
        payload: fields.any("payload"),
        event: fields.take("event", "text")?,
        broadcast: fields.take("broadcast", "true or false")?.unwrap_or(true),
        messages: messages.unwrap_or_default(),
    })
}

/// The keys of an answer that are not read yet.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    fn read(body: &'a [u8]) -> Result<Self, Wrong> {
        if body.trim_ascii().is_empty() {
            return Ok(Self(BTreeMap::new()));
        }
        serde_json::from_slice(body).map(Self).map_err(|_| Wrong::Object)
    }

    fn take<T: Deserialize<'a>>(
        &mut self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, Wrong> {
        match self.0.remove(key) {
            None => Ok(None),
            Some(raw) => serde_json::from_str(raw.get()).map_err(|_| Wrong::Key(key, expected)),
        }
    }

    /// The same for a value that is right in itself.
    fn take_if<T: Deserialize<'a>>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        is_right: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Wrong> {
        match self.take(key, expected)? {
            Some(value) if !is_right(&value) => Err(Wrong::Key(key, expected)),
            value => Ok(value),
        }
    }

    fn any(&mut self, key: &str) -> Option<Box<RawValue>> {
        self.0.remove(key).map(ToOwned::to_owned)
    }

    fn object(
        &mut self,
        key: &'static str,
        bytes_max: usize,
        expected: &'static str,
    ) -> Result<Option<Map<String, Value>>, Wrong> {
        if self.0.get(key).is_some_and(|raw| raw.get().len() > bytes_max) {
            return Err(Wrong::Key(key, expected));
        }
        self.take(key, expected)
    }

    fn seconds(&mut self, key: &'static str) -> Result<Option<u64>, Wrong> {
        let expected = "a number of seconds, 0 or more";
        let Some(number) = self.take::<Number>(key, expected)? else { return Ok(None) };
        let fraction = number.as_f64().filter(|seconds| *seconds >= 0.0);
        let seconds = number.as_u64().or_else(|| fraction.map(|seconds| seconds as u64));
        seconds.map(Some).ok_or(Wrong::Key(key, expected))
    }

    /// A text or a whole number. An empty text would make one user of all guests.
    fn user(&mut self) -> Result<Option<String>, Wrong> {
        let Some(raw) = self.0.remove("user").map(RawValue::get) else { return Ok(None) };
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Some(raw.to_owned()));
        }
        match serde_json::from_str::<Option<String>>(raw) {
            Ok(user) if user.as_deref() != Some("") => Ok(user),
            _ => Err(Wrong::Key("user", "a text that is not empty, or a whole number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::answer::Publish;

    fn read(kind: Kind, body: &str) -> Grant {
        grant(kind, body.as_bytes(), 1000, &["gold".to_owned()]).unwrap()
    }

    fn connected(body: &str) -> ConnectAnswer {
        match read(Kind::Connect, body).answer {
            Answer::Connect(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn joined(body: &str) -> JoinAnswer {
        match read(Kind::Join, body).answer {
            Answer::Join(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn messaged(body: &str) -> MessageAnswer {
        match read(Kind::Message, body).answer {
            Answer::Message(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn wrong(kind: Kind, body: &str) -> String {
        grant(kind, body.as_bytes(), 1000, &["gold".to_owned()]).unwrap_err().to_string()
    }

    #[test]
    fn empty_body_allows_without_a_user() {
        for body in ["", " \r\n", "{}", r#"{"user":null,"claims":null,"topics":null}"#] {
            assert_eq!(connected(body), ConnectAnswer::default());
        }
        assert!(messaged("").broadcast);
    }

    #[test]
    fn answer_to_connect_is_read_whole() {
        let body = r#"{"user":42,"claims":{"staff":true},"expires_in":60,"id":"users:42",
            "topics":["rooms:7","user:42:*"],"cache_for":600.9,"stale_for":3600,"retry_after":1}"#;
        let answer = connected(body);
        assert_eq!(answer.user.as_deref(), Some("42"));
        assert_eq!(answer.claims.get("staff"), Some(&Value::Bool(true)));
        assert_eq!(answer.expires_at, Some(1060));
        assert_eq!(answer.id.as_deref(), Some("users:42"));
        assert_eq!(answer.topics, ["rooms:7", "user:42:*"]);
        let grant = read(Kind::Connect, body);
        assert_eq!((grant.cache_for, grant.stale_for), (600, 3600));
        assert_eq!(answer.stale_for, 3600);
        assert!(grant.unknown.is_empty());
    }

    #[test]
    fn earlier_of_two_ends_counts() {
        assert_eq!(connected(r#"{"expires_in":60,"expires_at":1030}"#).expires_at, Some(1030));
        assert_eq!(connected(r#"{"expires_in":0}"#).expires_at, Some(1000));
    }

    #[test]
    fn answer_to_join_is_read_whole() {
        let answer = joined(
            r#"{"reply":null,"assigns":{"role":"owner"},"publish":["new:msg"],
            "presence":{"key":"42","meta":{"a":1}},"subscribe":["news:1"],"cache_for":60}"#,
        );
        assert_eq!(answer.reply.as_deref().map(RawValue::get), Some("null"));
        assert_eq!(answer.publish, Some(Publish::Events(vec!["new:msg".to_owned()])));
        assert!(answer.assigns.is_some() && answer.presence.is_some());
        assert_eq!(answer.subscribe, ["news:1"]);
        assert_eq!(joined(r#"{"publish":true}"#).publish, Some(Publish::All(true)));
        assert_eq!(joined(r#"{"publish":false}"#).publish, Some(Publish::All(false)));
        assert_eq!(joined(r#"{"publish":null}"#).publish, None);
    }

    #[test]
    fn answer_to_message_is_read_whole() {
        let answer = messaged(
            r#"{"reply":[1],"status":"error","payload":{"body":"x"},"event":"e","broadcast":false,
            "messages":[{"topic":"t","event":"e","payload":null,"id":"1"},
            {"topic":"t","event":"e","payload":{},"more":1}]}"#,
        );
        assert_eq!(answer.payload.as_deref().map(RawValue::get), Some(r#"{"body":"x"}"#));
        assert!(!answer.broadcast);
        assert_eq!(answer.status.as_deref(), Some("error"));
        let ids: Vec<_> = answer.messages.iter().map(|extra| extra.id.as_deref()).collect();
        assert_eq!(ids, [Some("1"), None]);
    }

    #[test]
    fn wrong_types_make_the_answer_wrong() {
        for (body, key) in [
            (r#"{"user":true}"#, "user"),
            (r#"{"user":""}"#, "user"),
            (r#"{"user":1.5}"#, "user"),
            (r#"{"claims":[]}"#, "claims"),
            (r#"{"expires_in":"60"}"#, "expires_in"),
            (r#"{"expires_in":-1}"#, "expires_in"),
            (r#"{"topics":"rooms:*"}"#, "topics"),
            (r#"{"cache_for":true}"#, "cache_for"),
        ] {
            let error = wrong(Kind::Connect, body);
            assert!(error.starts_with(&format!("`{key}` must be")), "{body}: {error}");
        }
        for body in [r#"{"publish":1}"#, r#"{"presence":{"key":1}}"#, r#"{"assigns":"a"}"#] {
            wrong(Kind::Join, body);
        }
        for body in [r#"{"broadcast":"no"}"#, r#"{"messages":[{"topic":"t","event":"e"}]}"#] {
            wrong(Kind::Message, body);
        }
    }

    /// B22.
    #[test]
    fn only_limits_of_the_server_may_be_named() {
        assert_eq!(connected(r#"{"limits":"gold"}"#).limits.as_deref(), Some("gold"));
        assert_eq!(joined(r#"{"limits":"gold"}"#).limits.as_deref(), Some("gold"));
        for kind in [Kind::Connect, Kind::Join, Kind::Refresh] {
            let error = wrong(kind, r#"{"limits":"silver"}"#);
            assert_eq!(error, "`limits` must be the name of a table [limits.NAME] of the server");
        }
    }

    #[test]
    fn bodies_that_are_not_objects_are_wrong() {
        for body in ["[]", "null", "true", "{", "<html>", "{} {}", "\"\u{0}\""] {
            assert_eq!(wrong(Kind::Join, body), Wrong::Object.to_string(), "{body}");
        }
        assert_eq!(grant(Kind::Join, b"{\"reply\":\"\xff\"}", 0, &[]).unwrap_err(), Wrong::Object);
    }

    #[test]
    fn sizes_are_bounded() {
        let long = "x".repeat(2048);
        wrong(Kind::Connect, &format!(r#"{{"claims":{{"a":"{long}"}}}}"#));
        wrong(Kind::Join, &format!(r#"{{"assigns":{{"a":"{long}"}}}}"#));
        wrong(Kind::Join, &format!(r#"{{"subscribe":{:?}}}"#, vec!["t"; 17]));
        let extra = r#"{"topic":"t","event":"e","payload":1}"#;
        messaged(&format!(r#"{{"messages":[{}]}}"#, vec![extra; 16].join(",")));
        wrong(Kind::Message, &format!(r#"{{"messages":[{}]}}"#, vec![extra; 17].join(",")));
    }

    #[test]
    fn unknown_keys_are_named() {
        assert_eq!(
            read(Kind::Connect, r#"{"usr":"1","publish":true}"#).unknown,
            ["publish", "usr"]
        );
        assert_eq!(read(Kind::Message, r#"{"cache_for":1}"#).unknown, ["cache_for"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_wrong(body in prop::collection::vec(any::<u8>(), 0..200)) {
            for kind in Kind::ALL {
                let _ = grant(kind, &body, 0, &[]);
            }
        }

        #[test]
        fn any_values_are_read_or_wrong(
            key in "user|claims|expires_in|topics|publish|presence|reply|messages|cache_for",
            value in r#"[-0-9.eE]{1,8}|"[a-z]{0,3}"|\[("a",?){0,3}\]|\{("key":1)?\}|true|null"#,
        ) {
            for kind in Kind::ALL {
                let _ = grant(kind, format!(r#"{{"{key}":{value}}}"#).as_bytes(), u64::MAX, &[]);
            }
        }
    }
}
