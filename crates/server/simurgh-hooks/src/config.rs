//! Settings of one hook.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use serde::Deserialize;

use crate::notice_config::NoticeConfig;
use crate::secret::Secret;

/// The meaning of an unanswered question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The client is refused.
    #[default]
    Refuse,
    /// As if the hook were not configured.
    Allow,
}

/// Certificates of a hook with an `https` URL. All are PEM.
#[derive(Clone, Default, PartialEq)]
pub struct TlsConfig {
    /// Authorities that may sign the application's certificate. Default: Mozilla's list.
    pub ca: Option<Vec<u8>>,
    /// The certificate that this server presents, with `key`.
    pub cert: Option<Vec<u8>>,
    /// Its private key.
    pub key: Option<Vec<u8>>,
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").finish_non_exhaustive()
    }
}

/// Settings of one hook.
#[derive(Clone, PartialEq)]
pub struct HookConfig {
    /// Label of metrics and logs.
    pub name: String,
    /// Questions go to this URL with `/connect`, `/join`, `/message` or `/refresh` appended.
    pub url: Uri,
    /// Connects to this socket instead; `url` then gives only `Host` and path. No TLS.
    pub unix_socket: Option<PathBuf>,
    /// Headers of every request. They replace headers of the same name, `host` included.
    pub set_headers: Vec<(HeaderName, HeaderValue)>,
    /// Every request is signed with each of them, newest first. Empty: requests are not signed.
    pub secrets: Vec<Secret>,
    /// Longest time from sending a question to the last byte of its answer. Default: 2 s.
    pub answer_timeout: Duration,
    /// The same with the time in the queue. A question waits there at most for the difference, so
    /// that each one sent has its whole `answer_timeout`. Default: 8 s.
    pub total_timeout: Duration,
    /// An idle connection closes after this time, which must be shorter than the application's own.
    /// Default: 1.5 s, because gunicorn closes after 2 s.
    pub idle_timeout: Duration,
    /// Questions in flight. Default: adapts from 16, between 4 and 256.
    pub concurrency: Option<u16>,
    /// Questions that may wait, at most 32 MiB of them. Default: 10,000.
    pub queue: usize,
    /// The meaning of an unanswered question. Default: the client is refused.
    pub on_failure: OnFailure,
    /// Longest time an answer is cached; `None` caches nothing. Default: 1 h.
    pub cache_max: Option<Duration>,
    /// The names of limits that an answer may choose.
    pub limits: Vec<String>,
    /// Certificates.
    pub tls: TlsConfig,
    /// The notices that it gets.
    pub notices: Option<NoticeConfig>,
}

impl HookConfig {
    /// A hook with the defaults.
    pub fn new(name: impl Into<String>, url: Uri) -> Self {
        Self {
            name: name.into(),
            url,
            unix_socket: None,
            set_headers: Vec::new(),
            secrets: Vec::new(),
            answer_timeout: Duration::from_secs(2),
            total_timeout: Duration::from_secs(8),
            idle_timeout: Duration::from_millis(1500),
            concurrency: None,
            queue: 10_000,
            on_failure: OnFailure::Refuse,
            cache_max: Some(Duration::from_secs(3600)),
            limits: Vec::new(),
            tls: TlsConfig::default(),
            notices: None,
        }
    }
}

/// Without headers, which may hold passwords.
impl fmt::Debug for HookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookConfig")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("unix_socket", &self.unix_socket)
            .finish_non_exhaustive()
    }
}
