//! The content of questions, and the cookies and headers that go with them.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value};
use simurgh_hooks::{CacheInputs, Kind, Question};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::handshake::Request;

use super::{Asking, Client};
use crate::connect::address_key;
use crate::token::Claims;

/// Headers of one question.
pub type Headers = Arc<[(HeaderName, HeaderValue)]>;

/// Headers that are the server's own in a question, so an upgrade's are never forwarded.
const OWN: [&str; 10] = [
    "connection",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "cookie",
];
const OWN_PREFIXES: [&str; 3] = ["content-", "webhook-", "sec-websocket-"];
/// Headers that differ between two connects of one browser, so they are no part of a cached
/// answer's key. Others that begin with `x-forwarded-` may be an identity, such as
/// `x-forwarded-user`.
const VARYING: [&str; 9] = [
    "tracestate",
    "user-agent",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-request-id",
];

/// The cookies and headers of an upgrade that a hook receives, by name: all others stay here.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    cookies: Vec<String>,
    headers: Vec<HeaderName>,
}

/// A header that cannot be forwarded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// It is no header's name.
    #[error("{0:?} is not the name of a header")]
    NoName(String),
    /// The server sets it itself.
    #[error("{0:?} is set by the server itself: remove it")]
    Own(String),
    /// Cookies have their own list.
    #[error("list the cookies' names in cookies instead")]
    Cookie,
}

impl Forward {
    /// Checks the names of headers.
    ///
    /// # Errors
    /// The first name that cannot be forwarded.
    pub fn new(cookies: Vec<String>, headers: &[String]) -> Result<Self, ForwardError> {
        let mut names = Vec::with_capacity(headers.len());
        for text in headers {
            let Ok(name) = text.parse::<HeaderName>() else {
                return Err(ForwardError::NoName(text.clone()));
            };
            if name == header::COOKIE {
                return Err(ForwardError::Cookie);
            }
            let is_own = OWN.contains(&name.as_str())
                || OWN_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
            if is_own {
                return Err(ForwardError::Own(text.clone()));
            }
            names.push(name);
        }
        Ok(Self { cookies, headers: names })
    }

    /// Whether it forwards what identifies a browser's user to any page that connects.
    pub fn is_sensitive(&self) -> bool {
        !self.cookies.is_empty() || self.headers.contains(&header::AUTHORIZATION)
    }

    /// Whether it forwards cookies.
    pub fn has_cookies(&self) -> bool {
        !self.cookies.is_empty()
    }

    /// The forwarded headers of a request; the listed cookies are one header.
    pub(super) fn of(&self, request: &Request<'_>) -> Headers {
        let mut headers = Vec::new();
        let cookies: Vec<&[u8]> = request
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("cookie"))
            .flat_map(|(_, value)| value.split(|byte| *byte == b';'))
            .map(<[u8]>::trim_ascii)
            .filter(|pair| self.takes_cookie(pair))
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
            && !cookies.is_empty()
        {
            headers.push((header::COOKIE, value));
        }
        for name in &self.headers {
            let values =
                request.headers().filter(|(own, _)| own.eq_ignore_ascii_case(name.as_str()));
            let values = values.filter_map(|(_, value)| HeaderValue::from_bytes(value).ok());
            headers.extend(values.map(|value| (name.clone(), value)));
        }
        headers.into()
    }

    fn takes_cookie(&self, pair: &[u8]) -> bool {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        self.cookies.iter().any(|own| own.as_bytes() == name)
    }
}

/// The part of forwarded headers on which a cached answer depends.
pub(super) fn cache_key(headers: &Headers) -> Vec<u8> {
    let mut key = Vec::new();
    for (name, value) in headers.iter().filter(|(name, _)| !VARYING.contains(&name.as_str())) {
        key.extend_from_slice(name.as_str().as_bytes());
        key.push(b'\n');
        key.extend_from_slice(value.as_bytes());
        key.push(b'\n');
    }
    key
}

/// The content of a question: its client and its subject, as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connection: Option<&'a str>,
    pub(super) ip: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) claims: Option<&'a Map<String, Value>>,
    #[serde(flatten)]
    pub(super) subject: Subject<'a>,
}

/// The subject of a question; payloads and params follow as raw JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Subject<'a> {
    Connect {
        path: &'a str,
        params: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        origin: Option<&'a str>,
        transport: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<&'a str>,
    },
    Join {
        topic: &'a str,
    },
    Refresh {
        expires_at: u64,
    },
    Message {
        topic: &'a str,
        event: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        assigns: Option<&'a Map<String, Value>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload_base64: Option<String>,
    },
}

impl Data<'_> {
    pub(super) fn text(&self) -> Box<str> {
        serde_json::to_string(self).unwrap_or_default().into_boxed_str()
    }

    /// With one more field, whose value is JSON already.
    pub(super) fn text_with(&self, name: &str, json: &str) -> Box<str> {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.pop();
        text.reserve_exact(name.len() + json.len() + 5);
        for part in [",\"", name, "\":", json, "}"] {
            text.push_str(part);
        }
        text.into_boxed_str()
    }
}

impl Asking<'_> {
    pub(super) fn data<'d>(&'d self, id: Option<&'d str>, subject: Subject<'d>) -> Data<'d> {
        let Client { connection, ip, .. } = self.client;
        let user = self.claims.and_then(Claims::subject);
        let claims = self.claims.map(Claims::claims);
        Data { connection: connection.as_deref(), ip: *ip, user, id, claims, subject }
    }

    /// A question whose answer is not cached.
    pub(crate) fn question(&self, kind: Kind, hook: usize) -> Question {
        Question {
            kind,
            client: address_key(self.client.ip),
            forwarded: self.client.forwarded.get(hook).cloned().unwrap_or_default(),
            traceparent: self.client.traceparent.clone(),
            cache: None,
        }
    }

    /// A question about a join, whose answer is cached by user.
    pub(crate) fn about_join(
        &self,
        hook: usize,
        id: Option<&str>,
        topic: &str,
        params: &str,
    ) -> Question {
        let question = self.question(Kind::Join, hook);
        let cache = self.claims.and_then(|claims| {
            let user = claims.subject()?;
            Some(Box::new(CacheInputs {
                key: vec![
                    user.as_bytes().to_vec(),
                    id.unwrap_or_default().as_bytes().to_vec(),
                    cache_key(&question.forwarded),
                    serde_json::to_vec(claims.claims()).unwrap_or_default(),
                    topic.as_bytes().to_vec(),
                    without_position(params),
                ],
                user: Some(user.to_owned()),
                id: id.map(str::to_owned),
            }))
        });
        Question { cache, ..question }
    }

    pub(crate) fn join_data(&self, id: Option<&str>, topic: &str, params: &str) -> Box<str> {
        self.data(id, Subject::Join { topic }).text_with("params", params)
    }

    /// The grant ends at this Unix time, in seconds.
    pub(super) fn refresh_data(&self, id: Option<&str>, expires_at: u64) -> Box<str> {
        self.data(id, Subject::Refresh { expires_at }).text()
    }

    pub(crate) fn message_data(
        &self,
        id: Option<&str>,
        (topic, event): (&str, &str),
        payload: &Payload<'_>,
        assigns: Option<&Map<String, Value>>,
    ) -> Box<str> {
        let json = payload.json();
        let payload_base64 = json.is_none().then(|| STANDARD.encode(payload.data()));
        let data = self.data(id, Subject::Message { topic, event, assigns, payload_base64 });
        json.map_or_else(|| data.text(), |json| data.text_with("payload", json))
    }
}

/// The params without the position from which the client resumes: it differs in each join.
fn without_position(params: &str) -> Vec<u8> {
    if params.contains("\"simurgh\"")
        && let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(params)
    {
        fields.remove("simurgh");
        return serde_json::to_vec(&fields).unwrap_or_default();
    }
    params.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use simurgh_proto::ws::handshake::HeadLimits;

    use super::*;

    const HEAD: &str = "GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: x\r\n\
        cookie: theme=dark; sessionid=abc=1;other=2\r\ncookie: sessionid2=z; csrf=q\r\n\
        User-Agent: phone\r\nx-tenant: a\r\nx-tenant: b\r\nwebhook-id: forged\r\n\r\n";

    fn forwarded(cookies: &[&str], headers: &[&str]) -> Vec<(String, String)> {
        let (request, _) =
            Request::parse(HEAD.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        let [cookies, headers] = [cookies, headers]
            .map(|list| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let forward = Forward::new(cookies, &headers).unwrap();
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let all = forward.of(&request);
        all.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    #[test]
    fn only_listed_cookies_and_headers_are_forwarded() {
        assert_eq!(forwarded(&[], &[]), []);
        let cookie = |text: &str| [("cookie".to_owned(), text.to_owned())];
        assert_eq!(forwarded(&["sessionid"], &[]), cookie("sessionid=abc=1"));
        assert_eq!(forwarded(&["csrf", "theme"], &[]), cookie("theme=dark; csrf=q"));
        assert_eq!(forwarded(&["absent", "SESSIONID"], &[]), []);
        let tenants = [("x-tenant".to_owned(), "a".to_owned()), ("x-tenant".into(), "b".into())];
        assert_eq!(forwarded(&[], &["X-Tenant"]), tenants);
    }

    #[test]
    fn resume_positions_do_not_change_the_key_of_a_join() {
        let first = without_position(r#"{"room":7}"#);
        assert_eq!(without_position(r#"{"room":7,"simurgh":{"at":"5-9"}}"#), first);
        assert_ne!(without_position(r#"{"room":8,"simurgh":{"at":"5-9"}}"#), first);
    }

    #[test]
    fn headers_of_the_server_are_not_forwarded() {
        for name in ["Host", "connection", "webhook-id", "Content-Length", "traceparent"] {
            let error = Forward::new(Vec::new(), &[name.to_owned()]).unwrap_err();
            assert_eq!(error, ForwardError::Own(name.to_owned()));
        }
        let error = Forward::new(Vec::new(), &["a b".to_owned()]).unwrap_err();
        assert_eq!(error, ForwardError::NoName("a b".to_owned()));
        let error = Forward::new(Vec::new(), &["Cookie".to_owned()]).unwrap_err();
        assert_eq!(error, ForwardError::Cookie);
    }

    #[test]
    fn cached_answers_do_not_depend_on_addresses_and_user_agents() {
        let headers = |list: &[(&'static str, &'static str)]| -> Headers {
            let header = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            list.iter().map(header).collect()
        };
        let one =
            headers(&[("cookie", "a=1"), ("user-agent", "x"), ("x-forwarded-for", "1.1.1.1")]);
        let other = headers(&[("cookie", "a=1"), ("user-agent", "y"), ("x-real-ip", "2.2.2.2")]);
        assert_eq!(cache_key(&one), cache_key(&other));
        assert_ne!(cache_key(&one), cache_key(&headers(&[("cookie", "a=2")])));
        for name in ["x-tenant", "x-forwarded-user", "x-forwarded-email", "authorization"] {
            let other = headers(&[("cookie", "a=1"), (name, "a")]);
            assert_ne!(cache_key(&one), cache_key(&other), "{name}");
        }
    }
}
