//! Bodies of POSTs and of answers in a long-poll session (PROTOCOL §9).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;

/// Characters encoded in a token: all except unreserved ones (RFC 3986 §2.3).
const TOKEN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Lines of one POST: a server drops the rest.
const LINES_MAX: usize = 100;

/// The body of an answer. Its own status counts; the HTTP status is always 200.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LongPollAnswer {
    /// 200 with messages, 204 without, 410 for a session that begins or has ended, or an error.
    pub status: u16,
    /// The token of the session from now on.
    #[serde(default)]
    pub token: Option<String>,
    /// Texts, each a whole frame.
    #[serde(default)]
    pub messages: Vec<String>,
}

/// The body of a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPollPost {
    /// The body.
    pub body: Vec<u8>,
    /// Its lines; 0: one message that is not a line.
    lines: usize,
}

impl LongPollPost {
    /// A POST of one message. Texts that cannot be a line are sent unchanged: those of the first
    /// serializer, which do not begin with a bracket, and those with line breaks.
    #[must_use]
    pub fn new(binary: bool, message: &[u8]) -> Self {
        if binary {
            return Self { body: STANDARD.encode(message).into_bytes(), lines: 1 };
        }
        let is_line = message.first() == Some(&b'[') && !message.contains(&b'\n');
        Self { body: message.to_vec(), lines: usize::from(is_line) }
    }

    /// Adds the lines of another; returns it if it has to be sent alone.
    pub fn join(&mut self, other: Self) -> Result<(), Self> {
        if self.lines == 0 || other.lines == 0 || self.lines + other.lines > LINES_MAX {
            return Err(other);
        }
        self.body.push(b'\n');
        self.body.extend_from_slice(&other.body);
        self.lines += other.lines;
        Ok(())
    }

    /// Value of `Content-Type`.
    #[must_use]
    pub fn content_type(&self) -> &'static str {
        if self.lines > 0 { "application/x-ndjson" } else { "application/json" }
    }
}

/// The path at which a session is polled: as in the official client, `longpoll` in place of
/// `websocket`.
#[must_use]
pub fn longpoll_path(path: &str) -> String {
    let (place, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    match place.strip_suffix("/websocket") {
        Some(base) => format!("{base}/longpoll{query}"),
        None => path.to_owned(),
    }
}

/// The target of a session's next request, with its token if it has one. A server takes the last of
/// two parameters of one name, so a scenario's own `token` is overridden.
#[must_use]
pub fn with_token(target: &str, token: &str) -> String {
    if token.is_empty() {
        return target.to_owned();
    }
    let mark = if target.contains('?') { '&' } else { '?' };
    format!("{target}{mark}token={}", percent_encode(token.as_bytes(), &TOKEN))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads the body of a POST as a server does (PROTOCOL §9).
    fn read(post: &LongPollPost) -> Vec<(bool, Vec<u8>)> {
        if post.content_type() == "application/json" {
            return vec![(false, post.body.clone())];
        }
        let lines: Vec<&[u8]> = post.body.split(|byte| *byte == b'\n').collect();
        assert!(lines.len() <= LINES_MAX);
        let line = |line: &&[u8]| match line.first() {
            Some(b'[') => (false, line.to_vec()),
            _ => (true, STANDARD.decode(line).unwrap()),
        };
        lines.iter().map(line).collect()
    }

    proptest! {
        #[test]
        fn long_polling_messages_arrive_in_order(
            messages in proptest::collection::vec(
                prop_oneof![
                    (Just(true), proptest::collection::vec(any::<u8>(), 1..6)),
                    "[\\[{][a\\[{\n]{0,4}".prop_map(|text| (false, text.into_bytes())),
                ],
                1..240,
            ),
        ) {
            let mut posts: Vec<LongPollPost> = Vec::new();
            for (binary, message) in &messages {
                let post = LongPollPost::new(*binary, message);
                match posts.last_mut().map(|last| last.join(post.clone())) {
                    Some(Ok(())) => {}
                    _ => posts.push(post),
                }
            }
            prop_assert_eq!(posts.iter().flat_map(read).collect::<Vec<_>>(), messages);
        }
    }

    #[test]
    fn messages_of_serializer_v2_share_one_post() {
        let mut post = LongPollPost::new(false, b"[1]");
        for _ in 1..LINES_MAX {
            post.join(LongPollPost::new(false, b"[2]")).unwrap();
        }
        assert!(post.join(LongPollPost::new(false, b"[3]")).is_err());
        assert_eq!(post.content_type(), "application/x-ndjson");
    }

    #[test]
    fn long_polling_urls_match_the_official_client() {
        assert_eq!(longpoll_path("/socket/websocket?vsn=2.0.0"), "/socket/longpoll?vsn=2.0.0");
        assert_eq!(longpoll_path("/socket/longpoll"), "/socket/longpoll");
        assert_eq!(longpoll_path("/websockets"), "/websockets");
        assert_eq!(with_token("/s", ""), "/s");
        assert_eq!(with_token("/s?a=b", "a.b-c_d~"), "/s?a=b&token=a.b-c_d~");
        assert_eq!(with_token("/s", "a+/= é"), "/s?token=a%2B%2F%3D%20%C3%A9");
    }

    #[test]
    fn long_polling_responses_of_servers_are_parsed() {
        let read = |text: &str| serde_json::from_str::<LongPollAnswer>(text);
        let opened = read("{\"status\":410,\"token\":\"T\",\"messages\":[]}").unwrap();
        assert_eq!((opened.status, opened.token.as_deref()), (410, Some("T")));
        let told = read("{\"status\":200,\"token\":null,\"messages\":[\"[\\\"1\\\"]\"]}").unwrap();
        assert_eq!((told.token, told.messages), (None, vec!["[\"1\"]".to_owned()]));
        assert_eq!(read("{\"status\":403}").unwrap().status, 403);
        assert!(read("{}").is_err());
        assert!(read("{\"status\":70000}").is_err());
    }
}
