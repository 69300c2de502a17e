//! Requests as applications receive them: headers, body and signatures.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use humantime::format_rfc3339_millis;
use serde_json::Value;

use crate::config::HookConfig;
use crate::question::Kind;
use crate::secret::Secret;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");

/// The parts of requests that do not change.
pub(crate) struct Template {
    paths: Vec<Uri>,
    headers: HeaderMap,
    /// `"data":{"hook":"app","node":"n1"`.
    data: String,
    secrets: Vec<Secret>,
}

/// One request, which may be sent twice.
pub(crate) struct Draft<'a> {
    pub(crate) template: &'a Template,
    /// The index of its path.
    pub(crate) path: usize,
    pub(crate) id: &'a str,
    pub(crate) body: Bytes,
    pub(crate) forwarded: &'a [(HeaderName, HeaderValue)],
    pub(crate) traceparent: Option<HeaderValue>,
}

impl Template {
    /// The template of a hook, or the mistake in its URL.
    pub(crate) fn new(config: &HookConfig, node: &str) -> Result<Self, &'static str> {
        let authority = config.url.authority().ok_or("a URL with http:// or https:// is needed")?;
        if !matches!(config.url.scheme_str(), Some("http" | "https")) {
            return Err("only http:// and https:// are supported");
        }
        if authority.as_str().contains('@') {
            return Err("user and password belong into set_headers.authorization");
        }
        // With room for what a request adds.
        let mut headers = HeaderMap::with_capacity(24);
        let host = HeaderValue::from_str(authority.as_str());
        headers.insert(HOST, host.map_err(|_| "the host is wrong")?);
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(REQUESTED_WITH, HeaderValue::from_static("XMLHttpRequest"));
        for (name, value) in &config.set_headers {
            headers.insert(name, value.clone());
        }
        let [hook, node] = [config.name.as_str(), node].map(Value::from);
        let data = format!(r#""data":{{"hook":{hook},"node":{node}"#);
        Ok(Self { paths: paths(&config.url)?, headers, data, secrets: config.secrets.clone() })
    }

    /// The body of a request of this type and time.
    pub(crate) fn body(&self, kind: &str, data: &str, asked: SystemTime) -> Bytes {
        let data = data.trim();
        let inner = data.strip_prefix('{').unwrap_or(data).trim_start();
        let comma = if inner.starts_with('}') { "" } else { "," };
        let (time, ours) = (format_rfc3339_millis(asked), &self.data);
        let head = format!(r#"{{"type":"{kind}","timestamp":"{time}",{ours}{comma}"#);
        let mut body = String::with_capacity(head.len() + inner.len() + 1);
        body.extend([&head, inner, "}"]);
        Bytes::from(body)
    }
}

impl Draft<'_> {
    /// The request, signed at `now_s` (Unix time).
    pub(crate) fn request(&self, now_s: u64) -> Request<Full<Bytes>> {
        let template = self.template;
        let mut headers = template.headers.clone();
        for (name, value) in self.forwarded {
            if !template.headers.contains_key(name) {
                headers.append(name, value.clone());
            }
        }
        let signatures: Vec<_> =
            template.secrets.iter().map(|secret| secret.sign(self.id, now_s, &self.body)).collect();
        let signature = (!signatures.is_empty()).then(|| signatures.join(" "));
        for (name, text) in [
            (WEBHOOK_ID, Some(self.id.to_owned())),
            (WEBHOOK_TIMESTAMP, Some(now_s.to_string())),
            (WEBHOOK_SIGNATURE, signature),
        ] {
            if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
                headers.insert(name, value);
            }
        }
        if let Some(traceparent) = &self.traceparent {
            headers.insert(TRACEPARENT, traceparent.clone());
        }
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = template.paths.get(self.path).cloned().unwrap_or_default();
        *request.headers_mut() = headers;
        request
    }
}

/// The index of the path of notices, which is behind those of questions.
pub(crate) const NOTICES: usize = Kind::ALL.len();

/// The path of each kind of question, and of notices, with the query of the URL.
fn paths(url: &Uri) -> Result<Vec<Uri>, &'static str> {
    let base = url.path().trim_end_matches('/');
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let words = Kind::ALL.iter().map(|kind| kind.word()).chain(["notices"]);
    let paths = words.map(|word| format!("{base}/{word}{query}").parse());
    paths.collect::<Result<_, _>>().map_err(|_| "the path is wrong")
}

/// A `traceparent` of the same trace with another span. `None`: `parent` is not one.
pub(crate) fn child_of(parent: &HeaderValue, span: u64) -> Option<HeaderValue> {
    let text = parent.to_str().ok()?;
    let mut parts = text.split('-');
    let [version, trace, of_parent, flags] =
        [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_whole = is_hex(version, 2) && is_hex(trace, 32) && is_hex(of_parent, 16);
    // Later versions may have more parts.
    let is_known = version != "ff" && (version != "00" || parts.next().is_none());
    let is_zero = trace.bytes().all(|byte| byte == b'0');
    if !is_whole || !is_hex(flags, 2) || !is_known || is_zero {
        return None;
    }
    HeaderValue::try_from(format!("00-{trace}-{:016x}-{flags}", span.max(1))).ok()
}

fn is_hex(part: &str, length: usize) -> bool {
    part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn config(url: &str) -> HookConfig {
        HookConfig::new("app", url.parse().unwrap())
    }

    fn template(config: &HookConfig) -> Template {
        Template::new(config, "n\"1").unwrap()
    }

    fn draft(template: &Template) -> Draft<'_> {
        let (path, body) = (Kind::Join.index(), Bytes::from_static(b"{}"));
        Draft { template, path, id: "q-1", body, forwarded: &[], traceparent: None }
    }

    fn body(data: &str) -> String {
        let asked = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_773_600_123);
        let body = template(&config("http://app")).body("question.join", data, asked);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn body_has_type_time_hook_and_node_before_the_data() {
        let head = concat!(
            r#"{"type":"question.join","timestamp":"2026-11-27T10:00:00.123Z","#,
            r#""data":{"hook":"app","node":"n\"1""#
        );
        assert_eq!(body(r#"{"topic":"t"}"#), format!(r#"{head},"topic":"t"}}}}"#));
        assert_eq!(body("{}"), format!("{head}}}}}"));
        assert_eq!(body(" { } "), format!("{head}}}}}"));
        assert_eq!(body(r#"{ "a":{"b":{}}}"#), format!(r#"{head},"a":{{"b":{{}}}}}}}}"#));
    }

    #[test]
    fn path_of_the_url_is_extended_by_the_kind() {
        for (url, path) in [
            ("http://app", "/join"),
            ("http://app/", "/join"),
            ("https://app:8443/simurgh/?a=b", "/simurgh/join?a=b"),
        ] {
            assert_eq!(draft(&template(&config(url))).request(0).uri(), path, "{url}");
        }
    }

    #[test]
    fn wrong_urls_are_refused() {
        for url in ["/simurgh", "app:80", "ftp://app", "http://user:pass@app"] {
            assert!(Template::new(&config(url), "n1").is_err(), "{url}");
        }
    }

    #[test]
    fn set_headers_replace_ours_and_those_of_clients() {
        let mut config = config("http://app:3000/");
        let header = |name: &'static str, value: &'static str| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        config.set_headers = vec![header("host", "public.example"), header("user-agent", "us")];
        let template = template(&config);
        let forwarded =
            [header("user-agent", "them"), header("cookie", "a=1"), header("cookie", "b=2")];
        let request = Draft { forwarded: &forwarded, ..draft(&template) }.request(0);
        let values = |name: &str| {
            let values = request.headers().get_all(name).iter();
            values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(values("host"), ["public.example"]);
        assert_eq!(values("user-agent"), ["us"]);
        assert_eq!(values("cookie"), ["a=1", "b=2"]);
        assert_eq!(values("accept"), ["application/json"]);
        assert_eq!(values("x-requested-with"), ["XMLHttpRequest"]);
    }

    #[test]
    fn every_secret_signs() {
        let mut config = config("http://app");
        let secrets = [SECRET.to_owned(), Secret::generate().unwrap()];
        config.secrets = secrets.iter().map(|text| Secret::parse(text).unwrap()).collect();
        let request = draft(&template(&config)).request(7);
        let signed: Vec<_> = config.secrets.iter().map(|one| one.sign("q-1", 7, b"{}")).collect();
        assert_eq!(request.headers().get("webhook-signature").unwrap(), &signed.join(" "));
        assert_eq!(request.headers().get("webhook-id").unwrap(), "q-1");
        assert_eq!(request.headers().get("webhook-timestamp").unwrap(), "7");
    }

    #[test]
    fn question_gets_a_span_of_its_own() {
        let child = |text: &'static str| child_of(&HeaderValue::from_static(text), 10);
        let trace = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(
            child("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap(),
            &format!("00-{trace}-000000000000000a-01")
        );
        assert!(child("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(child(wrong), None, "{wrong}");
        }
    }
}
