//! Requests to a server's observer, over HTTP.

use std::fmt;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use simurgh::observe::view::Overview;
use ureq::http::{StatusCode, Uri};

/// A list of a busy server takes some seconds.
const ANSWER_MAX: Duration = Duration::from_secs(15);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
    token: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// There is no response.
    Unreachable(String),
    /// Another server responds, or it refuses the request.
    Failed(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unreachable(text) | Self::Failed(text)) = self;
        f.write_str(&simurgh_text::visible(text))
    }
}

impl From<Problem> for String {
    fn from(problem: Problem) -> Self {
        problem.to_string()
    }
}

#[derive(Deserialize)]
struct Complaint {
    error: String,
}

impl Client {
    /// Fails if `url` is not an address.
    pub(super) fn new(url: &str, token: Option<&str>) -> Result<Self, String> {
        let base = base(url)?;
        if token.is_some_and(|token| token.chars().any(|c| !c.is_ascii_graphic())) {
            return Err("--token must contain visible ASCII characters only".to_owned());
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Most servers are on this machine, which a proxy cannot reach.
            .proxy(None)
            .user_agent(concat!("simurgh-observe/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Self { agent, base, token: token.map(str::to_owned) })
    }

    pub(super) fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn health(&self) -> Result<(), Problem> {
        let answer = self.agent.get(format!("{}/healthz", self.base)).call();
        match answer.map_err(|error| self.unreachable(&error))?.status() {
            StatusCode::OK => Ok(()),
            status => Err(Problem::Failed(format!("{} answers with {status}", self.base))),
        }
    }

    pub(super) fn overview(&self, history: bool) -> Result<Overview, Problem> {
        let overview: Overview = self.get(&format!("overview?history={history}"))?;
        if overview.server == "simurgh" { Ok(overview) } else { Err(self.not_simurgh("another")) }
    }

    pub(super) fn disconnect(&self, id: &str) -> Result<(), Problem> {
        let request = self.authorized(self.agent.post(self.path("disconnect")));
        let body = serde_json::json!({ "id": id }).to_string();
        let answer = request.header("content-type", "application/json").send(body);
        self.read::<serde_json::Value>(answer).map(drop)
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/observer/api/{rest}", self.base)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Requests a path below `/observer/api/`.
    pub(super) fn get<T: DeserializeOwned>(&self, rest: &str) -> Result<T, Problem> {
        self.read(self.authorized(self.agent.get(self.path(rest))).call())
    }

    fn read<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Problem> {
        let mut answer = answer.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let body = body.map_err(|error| self.unreachable(&error))?;
        if status == StatusCode::OK {
            return serde_json::from_str(&body).map_err(|_| self.not_simurgh("something else"));
        }
        let Ok(Complaint { error }) = serde_json::from_str(&body) else {
            return Err(self.not_simurgh(status.as_str()));
        };
        let base = &self.base;
        Err(Problem::Failed(match status {
            StatusCode::UNAUTHORIZED if self.token.is_none() => {
                format!("{base} requires its api_token: set SIMURGH_API_TOKEN or --token")
            }
            StatusCode::UNAUTHORIZED => {
                format!("{base} has another api_token: correct SIMURGH_API_TOKEN or --token")
            }
            StatusCode::FORBIDDEN => format!("{base}: {error}"),
            _ => error,
        }))
    }

    fn unreachable(&self, error: &ureq::Error) -> Problem {
        Problem::Unreachable(format!("{} does not answer: {error}", self.base))
    }

    fn not_simurgh(&self, what: &str) -> Problem {
        Problem::Failed(format!(
            "{} answers with {what} at /observer/: it is not a Simurgh server, or has no observer",
            self.base
        ))
    }
}

/// Parses an address with or without a scheme, or the URL of the observer's page.
pub(crate) fn base(url: &str) -> Result<String, String> {
    let wrong =
        |why: &str| format!("{url:?} is not an address such as http://127.0.0.1:4000: {why}");
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let trimmed = with_scheme.split(['#', '?']).next().unwrap_or_default().trim_end_matches('/');
    let trimmed = trimmed.strip_suffix("/observer").unwrap_or(trimmed);
    let uri: Uri = trimmed.parse().map_err(|error| wrong(&format!("{error}")))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(trimmed.to_owned()),
        (Some("http" | "https"), _) => Err(wrong("it has no host")),
        _ => Err(wrong("use http or https")),
    }
}

/// The unreserved characters of RFC 3986, which are not encoded.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_address_is_accepted_in_every_form() {
        for typed in [
            "http://127.0.0.1:4000",
            "127.0.0.1:4000",
            "http://127.0.0.1:4000/",
            "http://127.0.0.1:4000/observer/#topics",
            "127.0.0.1:4000/observer",
        ] {
            assert_eq!(base(typed).as_deref(), Ok("http://127.0.0.1:4000"), "{typed}");
        }
        assert_eq!(base("https://chat.example/x").as_deref(), Ok("https://chat.example/x"));
        for wrong in ["ftp://x", "http://", "", "http://a b", "http://[::1"] {
            assert!(base(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn query_encodes_any_text() {
        assert_eq!(encoded("a b&c=ä\n"), "a%20b%26c%3D%C3%A4%0A");
    }
}
