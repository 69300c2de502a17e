//! The plan of a benchmark, and the job made of it.

use std::net::SocketAddr;
use std::time::Duration;

use simurgh_load_client::http::{Limits, Request, Url, asks_to_close, basic_of_url, is_token};
use simurgh_load_client::tls::{TlsConfig, server_name};
use simurgh_load_client::{AddressRange, Sources, Tls, resolve};
use simurgh_load_scenario::placement;

/// Bytes of an answer's head: more than servers send, and a bound for endless heads.
pub(super) const LIMITS: Limits = Limits { head_bytes_max: 64 << 10 };

/// A benchmark as requested.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `http://` or `https://`.
    pub url: String,
    /// Connections, all opened before the first request; at least 1.
    pub connections: usize,
    /// Threads; `None`: as many as the connections need.
    pub threads: Option<usize>,
    /// How long it measures.
    pub duration: Duration,
    /// Requests a second, whatever the server does; `None`: each follows the last answer.
    pub rate: Option<f64>,
    /// Time limit of an answer, or of a connection.
    pub timeout: Duration,
    /// For example `GET`.
    pub method: String,
    /// Further headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Vec<u8>>,
    /// The trusted certificates.
    pub tls: Tls,
    /// Addresses in place of host names: [`resolve`].
    pub map: Vec<(String, String)>,
    /// Source addresses; empty: chosen as everywhere in this crate.
    pub sources: Vec<AddressRange>,
    /// Cores to pin the threads to in turn; empty: not pinned.
    pub cores: Vec<usize>,
}

impl Default for Plan {
    /// The defaults of `simurgh load http`, without a URL.
    fn default() -> Self {
        Self {
            url: String::new(),
            connections: 10,
            threads: None,
            duration: Duration::from_secs(10),
            rate: None,
            timeout: Duration::from_secs(2),
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: None,
            tls: Tls::default(),
            map: Vec::new(),
            sources: Vec::new(),
            cores: Vec::new(),
        }
    }
}

impl Plan {
    pub(super) fn threads_for(&self, connections: usize) -> usize {
        // More if they need more descriptors: see the start of a run.
        let wanted = || placement::workers_for(connections as u64, u64::MAX);
        let threads = self.threads.unwrap_or_else(wanted);
        threads.clamp(1, connections.max(1))
    }
}

/// A checked plan: it cannot fail later because of the plan.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) plan: Plan,
    pub(super) address: SocketAddr,
    /// Name or address for the certificate.
    pub(super) host: String,
    pub(super) tls: Option<TlsConfig>,
    pub(super) request: Vec<u8>,
    pub(super) to_head: bool,
    /// Each request says that it is the last on its connection.
    pub(super) closes: bool,
    pub(super) sources: Sources,
}

impl Job {
    /// Checks the plan, resolves the host and writes the request. Errors are for people.
    pub fn new(mut plan: Plan) -> Result<Self, String> {
        let shown = Url::without_credentials(&plan.url);
        let url = Url::parse(&plan.url)?;
        if url.websocket {
            let url = &shown;
            return Err(format!(
                "{url} is a WebSocket URL: `load http` needs http:// or https://. \
                Use a scenario for WebSockets."
            ));
        }
        if let Some(rate) = plan.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(format!("--rate must be above 0 (got {rate})"));
        }
        check_request(&plan)?;
        let address = resolve(url.host, url.port, &plan.map)?;
        let tls = url.tls.then(|| TlsConfig::new(&plan.tls)).transpose()?;
        if url.tls {
            server_name(url.host)?;
        }
        let headers: Vec<(&str, &[u8])> =
            plan.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let usual = if url.tls { 443 } else { 80 };
        let mut request = Vec::new();
        Request {
            method: &plan.method,
            target: url.target.as_bytes(),
            host: url.host,
            port: Some(url.port).filter(|port| *port != usual),
            keep_alive: true,
            headers: &headers,
            authorization: url.credentials.map(basic_of_url).as_deref(),
            body: plan.body.as_deref(),
            ..Request::default()
        }
        .write(&mut request);
        let (host, to_head) = (url.host.to_owned(), plan.method == "HEAD");
        let sources = Sources { addresses: plan.sources.clone(), ..Sources::default() };
        sources.check()?;
        let closes = headers.iter().any(|(name, value)| asks_to_close(name, value));
        plan.url = shown;
        Ok(Self { address, host, tls, request, to_head, closes, sources, plan })
    }

    /// The plan that it was made of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Invalid parts are reported here; the request writer would replace them.
fn check_request(plan: &Plan) -> Result<(), String> {
    if !is_token(plan.method.as_bytes()) {
        return Err(format!("{:?} is not an HTTP method", plan.method));
    }
    if matches!(plan.method.as_str(), "CONNECT") {
        return Err("CONNECT opens a tunnel, which has no responses to measure".to_owned());
    }
    for (name, value) in &plan.headers {
        if !is_token(name.as_bytes()) {
            return Err(format!("{name:?} is not the name of a header"));
        }
        if value.bytes().any(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
            return Err(format!("the header {name} holds a control character"));
        }
        let ours = ["content-length", "transfer-encoding"];
        if ours.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            return Err(format!("{name} follows from the body and cannot be set"));
        }
        // The answer to this would not be the last one.
        if ["upgrade", "expect"].iter().any(|other| name.eq_ignore_ascii_case(other)) {
            return Err(format!(
                "header {name} is not supported here: it changes the form of the \
                answer"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn plan(url: &str) -> Plan {
        Plan { url: url.to_owned(), ..Plan::default() }
    }

    fn request(plan: Plan) -> String {
        String::from_utf8(Job::new(plan).unwrap().request).unwrap()
    }

    #[test]
    fn request_has_the_same_headers_as_one_of_wrk() {
        let text = request(plan("http://127.0.0.1:8080/a?b"));
        assert_eq!(text, "GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n");
        let mut post = plan("http://127.0.0.1/");
        post.method = "POST".to_owned();
        post.headers = vec![("X-A".to_owned(), "b".to_owned())];
        post.body = Some(b"hello".to_vec());
        let wanted =
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";
        assert_eq!(request(post), wanted);
    }

    #[test]
    fn url_user_and_password_are_sent_but_left_out_of_reports() {
        let mut own = plan("HTTP://Aladdin:open%20sesame@127.0.0.1/a");
        let text = request(own.clone());
        let header = "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n";
        assert_eq!(text, format!("GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n"));
        assert_eq!(Job::new(own.clone()).unwrap().plan.url, "HTTP://127.0.0.1/a");
        own.headers = vec![("authorization".to_owned(), "Bearer x".to_owned())];
        assert!(!request(own.clone()).contains("Basic"), "a header of the user replaces it");
        own.url = "ws://u:secret@127.0.0.1/".to_owned();
        assert!(!Job::new(own).unwrap_err().contains("secret"));
    }

    #[test]
    fn invalid_plan_is_refused_before_any_request() {
        let with = |change: fn(&mut Plan)| {
            let mut plan = plan("http://127.0.0.1:1/");
            change(&mut plan);
            Job::new(plan).map(|_| ()).unwrap_err()
        };
        let header = |name: &str, value: &str| {
            let mut plan = plan("http://127.0.0.1:1/");
            plan.headers.push((name.to_owned(), value.to_owned()));
            Job::new(plan).map(|_| ()).unwrap_err()
        };
        for (why, words) in [
            (with(|plan| plan.url = "ws://127.0.0.1:1/".to_owned()), "WebSocket"),
            (with(|plan| plan.url = "ftp://127.0.0.1/".to_owned()), "not of the schemes"),
            (with(|plan| plan.url = "http://no-such-host.invalid/".to_owned()), "has no address"),
            (with(|plan| plan.rate = Some(f64::NAN)), "--rate must be above 0 (got NaN)"),
            (with(|plan| plan.rate = Some(-1.0)), "--rate must be above 0 (got -1)"),
            (with(|plan| plan.method = "GE T".to_owned()), "is not an HTTP method"),
            (with(|plan| plan.method = "CONNECT".to_owned()), "tunnel"),
            (header("a b", "c"), "is not the name of a header"),
            (header("a", "b\r\nc: d"), "control character"),
            (header("Content-Length", "7"), "follows from the body"),
            (header("Upgrade", "h2c"), "changes the form of the answer"),
        ] {
            assert!(why.contains(words), "{words:?} is not in {why:?}");
        }
    }
}
