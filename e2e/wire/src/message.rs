//! Messages of a server, parsed as strictly as PROTOCOL §3 words them.

use serde_json::{Value, json};

use crate::{Vsn, shortened};

/// One text message from the server.
#[derive(Debug, Clone)]
pub struct Msg {
    /// The serializer it came in.
    pub vsn: Vsn,
    /// The join_ref; `Null` in V1, which does not carry one.
    pub join_ref: Value,
    /// The ref.
    pub msg_ref: Value,
    /// The topic.
    pub topic: String,
    /// The event.
    pub event: String,
    /// The payload.
    pub payload: Value,
    /// The frame's text as it came.
    pub raw: String,
}

/// Status and response of a `phx_reply`.
#[derive(Debug, Clone, PartialEq)]
pub struct Replied {
    /// Usually `ok` or `error`.
    pub status: String,
    /// Whatever the handler answered.
    pub response: Value,
}

impl Msg {
    /// Parses `raw`, which has to be exactly one message of `vsn`: five elements, or four keys, no
    /// blank.
    ///
    /// # Panics
    /// When it is anything else.
    #[track_caller]
    pub fn parse(vsn: Vsn, raw: &str) -> Msg {
        let shown = shortened(raw);
        let value: Value = serde_json::from_str(raw)
            .unwrap_or_else(|error| panic!("the server sent no JSON ({error}): {shown}"));
        assert!(is_compact(raw), "the server's JSON has whitespace in it: {shown}");
        let [join_ref, msg_ref, topic, event, payload] = match (vsn, value) {
            (Vsn::V2, Value::Array(fields)) => fields.try_into().unwrap_or_else(|f: Vec<_>| {
                panic!("a V2 message has five elements, this has {}: {shown}", f.len())
            }),
            (Vsn::V1, Value::Object(mut map)) => {
                let mut take = |key: &str| {
                    map.remove(key).unwrap_or_else(|| panic!("V1 message without {key}: {shown}"))
                };
                let [r, t, e, p] = ["ref", "topic", "event", "payload"].map(&mut take);
                assert!(map.is_empty(), "V1 message with more than its four keys: {shown}");
                [Value::Null, r, t, e, p]
            }
            _ => panic!("not a {vsn} message: {shown}"),
        };
        let text = |what: &str, value: Value| match value {
            Value::String(text) => text,
            other => panic!("{what} is {other}, not a string: {shown}"),
        };
        let (topic, event) = (text("topic", topic), text("event", event));
        Msg { vsn, join_ref, msg_ref, topic, event, payload, raw: raw.to_owned() }
    }

    /// Asserts all fields at once; `join_ref` only where the serializer carries it.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect(
        &self,
        join_ref: impl Into<Value>,
        msg_ref: impl Into<Value>,
        topic: &str,
        event: &str,
        payload: Value,
    ) {
        let join_ref = if self.vsn == Vsn::V1 { Value::Null } else { join_ref.into() };
        let want = json!([join_ref, msg_ref.into(), topic, event, payload]);
        let got = json!([self.join_ref, self.msg_ref, self.topic, self.event, self.payload]);
        if want != got {
            let (want, got) = (want.to_string(), got.to_string());
            panic!(
                "{} message [join_ref, ref, topic, event, payload]\n wanted: {}\n    got: {}",
                self.vsn,
                shortened(&want),
                shortened(&got)
            );
        }
    }

    /// Asserts that this is a `phx_reply` with exactly these fields.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect_reply(
        &self,
        join_ref: impl Into<Value>,
        msg_ref: impl Into<Value>,
        topic: &str,
        status: &str,
        response: Value,
    ) {
        let payload = json!({"status": status, "response": response});
        self.expect(join_ref, msg_ref, topic, "phx_reply", payload);
    }

    /// Asserts the reply that a message for a topic without a channel gets: join_ref null.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect_unmatched(&self, msg_ref: impl Into<Value>, topic: &str) {
        self.expect_reply((), msg_ref, topic, "error", json!({"reason": "unmatched topic"}));
    }

    /// Asserts a broadcast: both refs null.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect_broadcast(&self, topic: &str, event: &str, payload: Value) {
        self.expect((), (), topic, event, payload);
    }

    /// Asserts `phx_close` of the channel joined with `join_ref`: ref equals join_ref.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect_channel_close(&self, join_ref: &str, topic: &str) {
        self.expect(join_ref, join_ref, topic, "phx_close", json!({}));
    }

    /// Asserts `phx_error` of the channel joined with `join_ref`: ref equals join_ref.
    ///
    /// # Panics
    /// When a field differs.
    #[track_caller]
    pub fn expect_channel_error(&self, join_ref: &str, topic: &str) {
        let payload = json!({"reason": "channel_crash"});
        self.expect(join_ref, join_ref, topic, "phx_error", payload);
    }

    /// Status and response of a reply.
    ///
    /// # Panics
    /// When this is not a reply, or the payload has other keys than these two.
    #[track_caller]
    pub fn replied(&self) -> Replied {
        assert_eq!(self.event, "phx_reply", "no reply: {}", shortened(&self.raw));
        let keys: Vec<_> = self.payload.as_object().map(|o| o.keys().collect()).unwrap_or_default();
        assert_eq!(keys, ["response", "status"], "keys of the reply {}", shortened(&self.raw));
        Replied {
            status: self.payload["status"].as_str().expect("status is a string").to_owned(),
            response: self.payload["response"].clone(),
        }
    }
}

/// Whether JSON text has no whitespace outside its strings.
pub fn is_compact(json: &str) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b' ' | b'\t' | b'\r' | b'\n' if !in_string => return false,
            _ => {}
        }
    }
    true
}

/// The text fields of a V2 binary push as a client sends it.
#[derive(Debug, Clone, Copy)]
pub struct BinaryFields<'a> {
    /// Empty means absent.
    pub join_ref: &'a str,
    /// Empty means absent.
    pub msg_ref: &'a str,
    /// The topic, at most 255 bytes.
    pub topic: &'a str,
    /// The event, at most 255 bytes.
    pub event: &'a str,
}

/// A V2 binary push of a client: kind 0, four lengths, four fields, data.
///
/// # Panics
/// When a field is longer than 255 bytes.
pub fn binary_push(fields: BinaryFields<'_>, data: &[u8]) -> Vec<u8> {
    let BinaryFields { join_ref, msg_ref, topic, event } = fields;
    let mut out = vec![0];
    for field in [join_ref, msg_ref, topic, event] {
        out.push(u8::try_from(field.len()).expect("at most 255 bytes"));
    }
    for field in [join_ref, msg_ref, topic, event] {
        out.extend_from_slice(field.as_bytes());
    }
    out.extend_from_slice(data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_json_has_no_whitespace_outside_strings() {
        assert!(is_compact(r#"["a b","\" c",{"d":1}]"#));
        assert!(!is_compact(r#"["a", "b"]"#));
        assert!(!is_compact("[1\n]"));
        assert!(!is_compact(r#"["\\" ]"#));
    }

    #[test]
    #[should_panic(expected = "without ref")]
    fn a_v1_message_without_ref_is_refused() {
        Msg::parse(Vsn::V1, r#"{"topic":"t","event":"e","payload":{}}"#);
    }

    #[test]
    #[should_panic(expected = "more than its four keys")]
    fn a_v1_message_with_join_ref_is_refused() {
        let raw = r#"{"join_ref":null,"topic":"t","event":"e","payload":{},"ref":null}"#;
        Msg::parse(Vsn::V1, raw);
    }

    #[test]
    #[should_panic(expected = "five elements")]
    fn v2_message_of_six_elements_is_refused() {
        Msg::parse(Vsn::V2, r#"[null,null,"t","e",{},1]"#);
    }

    #[test]
    #[should_panic(expected = "wanted")]
    fn ref_changed_to_a_string_is_detected() {
        Msg::parse(Vsn::V2, r#"["7","7","t","e",{}]"#).expect(7, 7, "t", "e", json!({}));
    }

    #[test]
    fn binary_push_has_the_documented_layout() {
        let fields = BinaryFields { join_ref: "1", msg_ref: "23", topic: "t:a", event: "ev" };
        assert_eq!(binary_push(fields, b"xy"), b"\x00\x01\x02\x03\x02123t:aevxy");
    }
}
