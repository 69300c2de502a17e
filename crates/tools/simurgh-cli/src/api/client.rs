//! Requests to a server's API, over HTTP.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::observe::client::base;

/// A disconnect waits a minute for nodes that do not confirm.
const ANSWER_MAX: Duration = Duration::from_secs(75);
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The server, and the form of the answer.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4000")]
    url: String,
    /// File with the server's API token. Default: the environment variable SIMURGH_API_TOKEN.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Prints the server's answer as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Server {
    /// The answer to a request with a body.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let (agent, url, token) = self.parts(path)?;
        let request = agent.post(&url).header("authorization", token);
        read(&url, request.header("content-type", "application/json").send(body.to_string()))
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, String> {
        let (agent, url, token) = self.parts(path)?;
        read(&url, agent.get(&url).header("authorization", token).call())
    }

    fn parts(&self, path: &str) -> Result<(ureq::Agent, String, String), String> {
        let url = format!("{}/api/{path}", base(&self.url)?);
        let token = self.token()?;
        if token.is_empty() || token.chars().any(|c| !c.is_ascii_graphic()) {
            return Err("the token must have visible ASCII characters only".to_owned());
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Most servers are on this machine, which a proxy cannot reach.
            .proxy(None)
            .user_agent(concat!("simurgh/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok((agent, url, format!("Bearer {token}")))
    }

    fn token(&self) -> Result<String, String> {
        match &self.token_file {
            Some(path) => match std::fs::read_to_string(path) {
                Ok(token) => Ok(token.trim_end().to_owned()),
                Err(error) => Err(format!("cannot read {}: {error}", path.display())),
            },
            None => std::env::var("SIMURGH_API_TOKEN").map_err(|_| {
                "no API token: set SIMURGH_API_TOKEN, or name its file with --token-file".to_owned()
            }),
        }
    }
}

fn read(
    url: &str,
    answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, String> {
    let unreachable = |error: ureq::Error| format!("{url} does not answer: {error}");
    let mut answer = answer.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
    let body: Option<Value> = serde_json::from_str(&body.map_err(unreachable)?).ok();
    match body {
        Some(body) if status.is_success() => Ok(body),
        Some(body) => match body["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Err(format!("{url} answers with {status}")),
        },
        None => Err(format!("{url} answers with {status}: is it Simurgh, with an API token?")),
    }
}
