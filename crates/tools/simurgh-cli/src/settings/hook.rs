//! The tables `[[hook]]` of `simurgh.toml`: applications that decide over HTTP.
//!
//! Secrets come from files or the environment, never from `simurgh.toml` or arguments, so nothing
//! printed has to be masked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use simurgh::CheckOrigin;
use simurgh::api::Pattern;
use simurgh::declared::ChannelSpec;
use simurgh::hooks::{
    Forward, HookConfig, HookSet, HookSpec, NoticeConfig, OnFailure, Secret, TlsConfig, http,
};
use simurgh_text::{Choice, duration};

use super::file::File;
use super::keys::PartialSettings;
use super::mistakes::Mistakes;

/// The table with its comments, for `simurgh config`.
pub(crate) const TEXT: &str = include_str!("../hook.toml");

/// The default of the key decision_timeout.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);
/// The most questions in flight that a setting may allow.
const CONCURRENCY_MAX: u16 = 4_096;
/// The most notices of a request that a setting may allow.
const BATCH_MAX: usize = 1_000;
/// The most questions that may wait.
const QUEUE_MAX: usize = 1_000_000;

/// One table of the file.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HookTable {
    name: String,
    url: Option<String>,
    unix_socket: Option<PathBuf>,
    questions: Vec<Asks>,
    notices: Vec<String>,
    topics: Vec<String>,
    delivery: Delivery,
    leave_grace: Option<String>,
    forward: ForwardTable,
    set_headers: BTreeMap<String, String>,
    secret_file: Option<PathBuf>,
    secret_env: Option<String>,
    timeout: Timeouts,
    load: Load,
    on_failure: OnFailure,
    cache_max: Option<String>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    insecure: bool,
}

/// The questions of a hook itself. Channels choose those about joins and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Asks {
    Connect,
    Refresh,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ForwardTable {
    cookies: Vec<String>,
    headers: Vec<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Timeouts {
    answer: Option<String>,
    total: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Load {
    concurrency: Option<Concurrency>,
    queue: Option<usize>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Delivery {
    batch: Option<usize>,
    batch_time: Option<String>,
    retry_for: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "\"auto\", or a whole number")]
enum Concurrency {
    Number(u16),
    Word(String),
}

/// The hooks of a file, if there are any and none has a mistake; the file takes the mistakes.
pub(super) fn hooks(file: &mut File, settings: &PartialSettings) -> Option<Arc<HookSet>> {
    let tables = std::mem::take(&mut file.hooks);
    let check_origin = settings.check_origin.as_ref();
    let is_any_origin = matches!(check_origin, Some(Choice::Value(CheckOrigin::Off)));
    let decision_timeout = settings.decision_timeout.unwrap_or(DECISION_TIMEOUT);
    let mut names = BTreeSet::new();
    let mut has_connect = false;
    let mut specs = Vec::with_capacity(tables.len());
    for (index, table) in tables.iter().enumerate() {
        let mut wrong = Mistakes::default();
        let mut spec = table.spec(&mut wrong);
        if let Some(spec) = &mut spec {
            spec.config.limits = file.named_limits.iter().map(|(name, _)| name.clone()).collect();
        }
        if !names.insert(&*table.name) {
            wrong.add("name", format!("{:?} is used twice", table.name));
        }
        if let Some(spec) = &spec {
            if spec.config.total_timeout >= decision_timeout {
                let total = spec.config.total_timeout;
                let why = format!(
                    "total ({total:?}) must be less than decision_timeout ({decision_timeout:?}), \
                     after which the server waits no more"
                );
                wrong.add("timeout", why);
            }
            if spec.asks_connect && std::mem::replace(&mut has_connect, true) {
                wrong.add("questions", "another hook already answers \"connect\": remove one");
            }
            if spec.forward.is_sensitive() && is_any_origin {
                let why = "forwards cookies or authorization although check_origin is \"off\": a \
                    page of any site could connect as its visitor. Set check_origin";
                wrong.add("forward", why);
            }
        }
        for (key, text) in wrong.0 {
            file.complain(&format!("hook[{index}].{key}"), format!("[[hook]] {key}: {text}"));
        }
        specs.extend(spec);
    }
    let chat = file.channels.is_none().then(|| super::built_in_chat(settings, false));
    let channels = patterns(file.channels.as_ref().or(chat.as_ref()));
    warn_of_notices(file, &tables, &specs, &channels);
    (!specs.is_empty() && specs.len() == tables.len()).then(|| {
        Arc::new(match &file.hooks_before {
            Some(before) => HookSet::after(before, specs),
            None => HookSet::new(specs),
        })
    })
}

/// The topics of channels.
fn patterns(specs: Option<&Vec<ChannelSpec>>) -> Vec<Pattern> {
    let topics = specs.into_iter().flatten().map(|spec| match &*spec.topic {
        "" => "realtime:*",
        topic => topic,
    });
    topics.filter_map(|topic| Pattern::parse(topic).ok()).collect()
}

/// Warns of notices that never come: of topics that no channel serves, and of users if no client
/// has one.
fn warn_of_notices(
    file: &mut File,
    tables: &[HookTable],
    specs: &[HookSpec],
    channels: &[Pattern],
) {
    let has_users = file.token.is_some() || specs.iter().any(|spec| spec.asks_connect);
    for (index, table) in tables.iter().enumerate() {
        let topics = table.topics.iter().filter_map(|text| Pattern::parse(text).ok());
        for topics in topics.filter(|topics| !channels.iter().any(|own| overlap(own, topics))) {
            let text = format!("[[hook]] topics: no channel serves \"{topics}\". Correct it");
            file.warn(&format!("hook[{index}].topics"), text);
        }
        if !has_users && table.notices.iter().any(|name| name.starts_with("user.")) {
            let text = "[[hook]] notices: no client has a user, so there are none of users. Add \
                [token], or the question \"connect\" to a hook";
            file.warn(&format!("hook[{index}].notices"), text.to_owned());
        }
    }
}

/// Whether a topic can match both.
fn overlap(one: &Pattern, other: &Pattern) -> bool {
    match (one, other) {
        (Pattern::Literal(topic), pattern) | (pattern, Pattern::Literal(topic)) => {
            pattern.matches(topic)
        }
        (Pattern::Prefix(one), Pattern::Prefix(other)) => {
            one.starts_with(&**other) || other.starts_with(&**one)
        }
    }
}

impl HookTable {
    /// The hook; `None` if it cannot be used.
    fn spec(&self, wrong: &mut Mistakes) -> Option<HookSpec> {
        let before = wrong.0.len();
        self.check_name(wrong);
        let url = self.url(wrong);
        let forward = Forward::new(self.forward.cookies.clone(), &self.forward.headers);
        let forward = wrong.note("forward", forward);
        let mut config = HookConfig::new(&self.name, url.clone()?);
        config.unix_socket.clone_from(&self.unix_socket);
        config.set_headers = self.set_headers(wrong);
        config.secrets = self.secrets(wrong);
        self.times(wrong, &mut config);
        self.load(wrong, &mut config);
        config.notices = self.notices(wrong);
        config.on_failure = self.on_failure;
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        config.tls = tls(wrong, files.map(Option::as_deref));
        let forward = forward?;
        let is_local = self.unix_socket.is_some() || !is_plain_beyond_this_machine(&url?);
        if forward.has_cookies() && !self.insecure && !is_local {
            let why = "would send cookies over the network without TLS: use https://, or set \
                insecure = true";
            wrong.add("url", why);
        }
        let [asks_connect, asks_refresh] =
            [Asks::Connect, Asks::Refresh].map(|asks| self.questions.contains(&asks));
        if asks_refresh && !asks_connect {
            wrong.add("questions", "\"refresh\" is about answers to \"connect\": add that");
        }
        let spec = HookSpec { config, asks_connect, asks_refresh, forward };
        (wrong.0.len() == before).then_some(spec)
    }

    fn check_name(&self, wrong: &mut Mistakes) {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if self.name.is_empty() {
            wrong.add("name", "is missing: every hook needs a name, such as \"app\"");
        } else if !self.name.bytes().all(is_plain) {
            let name = &self.name;
            wrong.add("name", format!("{name:?} may have only the characters a-z, 0-9 and _"));
        }
    }

    fn url(&self, wrong: &mut Mistakes) -> Option<http::Uri> {
        let Some(text) = &self.url else {
            return wrong.refuse("url", "is missing: such as \"http://127.0.0.1:3000/simurgh\"");
        };
        let url = http_url(wrong, "url", text)?;
        if url.query().is_some() {
            return wrong.refuse("url", "must have no query: questions append /connect to it");
        }
        Some(url)
    }

    fn set_headers(&self, wrong: &mut Mistakes) -> Vec<(http::HeaderName, http::HeaderValue)> {
        let mut headers = Vec::new();
        for (name, value) in &self.set_headers {
            let Ok(name) = name.parse::<http::HeaderName>() else {
                wrong.add("set_headers", format!("{name:?} is not the name of a header"));
                continue;
            };
            let value = match value.strip_prefix("env:") {
                None => Some(value.clone()),
                Some(variable) => std::env::var(variable).ok().or_else(|| {
                    let why = format!("the environment variable {variable} is not set");
                    wrong.refuse("set_headers", why)
                }),
            };
            let Some(value) = value else { continue };
            match http::HeaderValue::try_from(value) {
                Ok(value) => headers.push((name, value)),
                Err(_) => wrong.add("set_headers", format!("{name}: not a header's value")),
            }
        }
        headers
    }

    fn secrets(&self, wrong: &mut Mistakes) -> Vec<Secret> {
        let (key, text) = match (&self.secret_file, &self.secret_env) {
            (None, None) => return Vec::new(),
            (Some(_), Some(_)) => {
                wrong.add("secret_env", "secret_file is set, too: remove one of them");
                return Vec::new();
            }
            (Some(path), None) => {
                let read = std::fs::read_to_string(path);
                let read = read.map_err(|error| format!("cannot read {}: {error}", path.display()));
                ("secret_file", wrong.note("secret_file", read))
            }
            (None, Some(name)) => {
                let value = std::env::var(name);
                let value =
                    value.map_err(|_| format!("the environment variable {name} is not set"));
                ("secret_env", wrong.note("secret_env", value))
            }
        };
        let text = text.unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let secrets: Vec<Secret> =
            lines.filter_map(|line| wrong.note(key, Secret::parse(line))).collect();
        if secrets.is_empty() {
            wrong.add(key, "has no secret: `simurgh hook secret` prints one");
        }
        secrets
    }

    fn times(&self, wrong: &mut Mistakes, config: &mut HookConfig) {
        if let Some(text) = &self.timeout.answer {
            config.answer_timeout = wrong.note("timeout", duration(text)).unwrap_or_default();
        }
        if let Some(text) = &self.timeout.total {
            config.total_timeout = wrong.note("timeout", duration(text)).unwrap_or_default();
        }
        if config.total_timeout < config.answer_timeout {
            wrong.add("timeout", "total must not be less than answer, which is a part of it");
        }
        match self.cache_max.as_deref() {
            None => {}
            Some("off") => config.cache_max = None,
            Some(text) => config.cache_max = wrong.note("cache_max", duration(text)),
        }
    }

    fn notices(&self, wrong: &mut Mistakes) -> Option<NoticeConfig> {
        let mut types = 0;
        for name in &self.notices {
            match NoticeConfig::type_of(name) {
                Some(bit) => types |= bit,
                None => {
                    let known = NoticeConfig::types().join(", ");
                    wrong.add("notices", format!("{name:?} is unknown; the types are {known}"));
                }
            }
        }
        let mut notices = NoticeConfig::new(types);
        let patterns = self.topics.iter().filter_map(|text| {
            let pattern = Pattern::parse(text).map_err(|error| format!("{text:?}: {error}"));
            wrong.note("topics", pattern)
        });
        notices.topics = patterns.collect();
        let Delivery { batch, batch_time, retry_for } = &self.delivery;
        match batch {
            None => {}
            Some(batch @ 1..=BATCH_MAX) => notices.batch = *batch,
            Some(_) => wrong.add("delivery", format!("batch must be 1 to {BATCH_MAX}")),
        }
        for (key, text, time) in [
            ("delivery", batch_time, &mut notices.batch_time),
            ("delivery", retry_for, &mut notices.retry_for),
            ("leave_grace", &self.leave_grace, &mut notices.leave_grace),
        ] {
            if let Some(text) = text {
                *time = wrong.note(key, duration(text)).unwrap_or_default();
            }
        }
        let has_delivery = batch.is_some() || batch_time.is_some() || retry_for.is_some();
        for (key, is_set) in [
            ("topics", !self.topics.is_empty()),
            ("delivery", has_delivery),
            ("leave_grace", self.leave_grace.is_some()),
        ] {
            if is_set && self.notices.is_empty() {
                wrong.add(key, "is about notices: name their types in notices");
            }
        }
        (types != 0).then_some(notices)
    }

    fn load(&self, wrong: &mut Mistakes, config: &mut HookConfig) {
        match &self.load.concurrency {
            None => {}
            Some(Concurrency::Word(word)) if word == "auto" => {}
            Some(Concurrency::Number(number @ 1..=CONCURRENCY_MAX)) => {
                config.concurrency = Some(*number);
            }
            Some(_) => {
                let why = format!("concurrency must be \"auto\", or 1 to {CONCURRENCY_MAX}");
                wrong.add("load", why);
            }
        }
        match self.load.queue {
            None => {}
            Some(queue @ 1..=QUEUE_MAX) => config.queue = queue,
            Some(_) => wrong.add("load", format!("queue must be 1 to {QUEUE_MAX}")),
        }
    }
}

/// A URL of HTTP.
pub(super) fn http_url(wrong: &mut Mistakes, key: &'static str, text: &str) -> Option<http::Uri> {
    let url = text.parse::<http::Uri>().ok().filter(|url| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty())
    });
    url.or_else(|| wrong.refuse(key, format!("{text:?} must begin with http:// or https://")))
}

/// Whether requests to a URL leave this machine without TLS.
pub(super) fn is_plain_beyond_this_machine(url: &http::Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    url.scheme_str() == Some("http") && !is_here
}

/// The certificates of `tls_ca`, `tls_cert` and `tls_key`.
pub(super) fn tls(wrong: &mut Mistakes, [ca, cert, key]: [Option<&Path>; 3]) -> TlsConfig {
    if cert.is_some() != key.is_some() {
        wrong.add("tls_cert", "needs tls_key, and tls_key needs tls_cert: set both or none");
    }
    let ca = pem(wrong, "tls_ca", ca);
    let (cert, key) = (pem(wrong, "tls_cert", cert), pem(wrong, "tls_key", key));
    TlsConfig { ca, cert, key }
}

fn pem(wrong: &mut Mistakes, key: &'static str, path: Option<&Path>) -> Option<Vec<u8>> {
    let path = path?;
    let read = std::fs::read(path);
    wrong.note(key, read.map_err(|error| format!("cannot read {}: {error}", path.display())))
}
