//! The table `[cluster]` of `simurgh.toml`: the other nodes, and the broker between them.
//!
//! Secrets come from files or the environment, never from `simurgh.toml` or arguments, so nothing
//! printed has to be masked.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use simurgh::Cluster;
use simurgh::cluster::{ClusterConfig, Prefix};
use simurgh_nats::{
    Config, Credentials, Identity, NatsAdapter, Permissions, Replicas, Secret, Server, Storage,
    StreamCount, StreamsConfig,
};
use simurgh_text::{bytes_at_least_one, duration};

use super::mistakes::{Mistake, Mistakes};

/// The table with its comments, for `simurgh config`.
pub(crate) const TEXT: &str = include_str!("../cluster.toml");

pub(crate) const PREFIX: &str = "simurgh";
/// With less, a node that has only missed some beats would be considered gone.
const DOWN_LEAST: Duration = Duration::from_secs(6);

/// A shorter secret can be guessed.
const SECRET_LEAST: usize = 32;

/// The table of the file.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClusterSpec {
    engine: Option<Engine>,
    servers: Vec<String>,
    prefix: Option<String>,
    name: Option<String>,
    required: Option<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    password_env: Option<String>,
    token_file: Option<PathBuf>,
    token_env: Option<String>,
    nkey_file: Option<PathBuf>,
    nkey_env: Option<String>,
    creds_file: Option<PathBuf>,
    tls: bool,
    tls_first: bool,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    exact_max: Option<usize>,
    linger: Option<String>,
    outbox_bytes: Option<String>,
    presence_down: Option<String>,
    secret_file: Option<PathBuf>,
    secret_env: Option<String>,
    history_streams: Option<u8>,
    history_replicas: Option<u8>,
    history_storage: Option<HistoryStorage>,
    history_create_streams: Option<bool>,
    history_engine_bytes: Option<String>,
    history_when_away: Option<WhenAway>,
    lifecycle: Option<Lifecycle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Engine {
    Nats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HistoryStorage {
    File,
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WhenAway {
    Hold,
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Lifecycle {
    Jetstream,
    Memory,
}

impl ClusterSpec {
    /// The cluster, and the secret that its nodes share; or all mistakes.
    pub(crate) fn cluster(&self) -> Result<(Cluster, Option<String>), Vec<Mistake>> {
        let mut wrong = Mistakes::default();
        if self.engine.is_none() {
            wrong.add("engine", "is missing: write engine = \"nats\"");
        }
        let prefix = wrong.note("prefix", self.prefix());
        let name = self.name(&mut wrong);
        let servers = self.servers(&mut wrong);
        let credentials = self.credentials(&mut wrong);
        let identity = self.identity(&mut wrong);
        let required = self.duration(&mut wrong, "required", &self.required);
        let down = self.duration(&mut wrong, "presence_down", &self.presence_down);
        if down.is_some_and(|it| it < DOWN_LEAST) {
            wrong.add(
                "presence_down",
                format!("must be at least {DOWN_LEAST:?}, so that a node may miss a heartbeat"),
            );
        }
        let secret = self.shared_secret(&mut wrong);
        let linger = self.duration(&mut wrong, "linger", &self.linger);
        let outbox = self.outbox_bytes.as_deref().map(bytes_at_least_one).transpose();
        let outbox = wrong.note("outbox_bytes", outbox).flatten();
        let streams = self.streams_config(&mut wrong);
        let (Some(prefix), Some(name), true) = (prefix, name, wrong.0.is_empty()) else {
            return Err(wrong.0);
        };
        let mut config = ClusterConfig::new(prefix.clone(), name.clone());
        let interests = &mut config.interests;
        interests.exact_max = self.exact_max.unwrap_or(interests.exact_max);
        interests.linger_ns = linger.map_or(interests.linger_ns, nanoseconds);
        config.outbox.plain_bytes = outbox.unwrap_or(config.outbox.plain_bytes);
        config.peers.gone_ns = down.map_or(config.peers.gone_ns, nanoseconds);
        config.peers.silent_ns = config.peers.silent_ns.min(config.peers.gone_ns);
        let mut nats = Config::new(servers, prefix, name);
        nats.credentials = credentials;
        nats.tls.is_required = self.tls;
        nats.tls.is_first = self.tls_first;
        nats.tls.ca.clone_from(&self.tls_ca);
        nats.tls.identity = identity;
        let cluster = Cluster::new(config, move |setup| {
            nats.streams =
                streams.needed(setup.history.map(|it| (it.count, it.age)), setup.has_log);
            NatsAdapter::new(nats, setup.runtime.clone())
        });
        let cluster = match self.history_when_away {
            Some(WhenAway::Local) => cluster.local_when_away(),
            Some(WhenAway::Hold) | None => cluster,
        };
        let cluster = match self.lifecycle {
            Some(Lifecycle::Memory) => cluster.notices_in_memory(),
            Some(Lifecycle::Jetstream) | None => cluster,
        };
        let cluster = match required {
            Some(within) => cluster.required(within),
            None => cluster,
        };
        Ok((cluster, secret))
    }

    fn streams_config(&self, wrong: &mut Mistakes) -> StreamsConfig {
        let mut streams = StreamsConfig::default();
        match self.history_streams {
            None | Some(1) => {}
            Some(16) => streams.streams = StreamCount::Sixteen,
            Some(_) => wrong.add("history_streams", "must be 1 or 16"),
        }
        match self.history_replicas {
            None | Some(1) => {}
            Some(3) => streams.replicas = Replicas::Three,
            Some(5) => streams.replicas = Replicas::Five,
            Some(_) => wrong.add("history_replicas", "must be 1, 3 or 5"),
        }
        if self.history_storage == Some(HistoryStorage::Memory) {
            streams.storage = Storage::Memory;
        }
        streams.create_streams = self.history_create_streams.unwrap_or(streams.create_streams);
        let bytes = self.history_engine_bytes.as_deref().map(bytes_at_least_one).transpose();
        let bytes = wrong.note("history_engine_bytes", bytes).flatten();
        streams.engine_bytes = bytes.map(|it| it as u64);
        streams
    }

    fn prefix(&self) -> Result<Prefix, simurgh::cluster::PrefixError> {
        Prefix::new(self.prefix.as_deref().unwrap_or(PREFIX))
    }

    fn name(&self, wrong: &mut Mistakes) -> Option<String> {
        let name = self
            .name
            .clone()
            .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        match name.len() {
            1..=255 => Some(name),
            _ => wrong.refuse("name", "must have 1 to 255 bytes"),
        }
    }

    fn servers(&self, wrong: &mut Mistakes) -> Vec<Server> {
        if self.servers.is_empty() {
            wrong.add(
                "servers",
                "is missing: the broker's addresses, such as [\"nats://10.0.0.1:4222\"]",
            );
        }
        let read = |text: &String| {
            let server = text.parse::<Server>();
            server.map_err(|error| wrong.add("servers", format!("{text:?}: {error}"))).ok()
        };
        self.servers.iter().filter_map(read).collect()
    }

    /// At most one form of credentials is allowed.
    fn credentials(&self, wrong: &mut Mistakes) -> Credentials {
        let password = self.secret(wrong, "password", (&self.password_file, &self.password_env));
        let token = self.secret(wrong, "token", (&self.token_file, &self.token_env));
        let nkey = self.secret(wrong, "nkey", (&self.nkey_file, &self.nkey_env));
        let creds = self.creds_file.clone().map(Secret::File);
        let given = [self.user.is_some(), token.is_some(), nkey.is_some(), creds.is_some()];
        if given.into_iter().filter(|it| *it).count() > 1 {
            let text = "conflicts with other credentials: use one of user, token, nkey and creds";
            let keys = ["user", "token_file", "nkey_file", "creds_file"];
            let key = keys.into_iter().zip(given).rfind(|it| it.1).map_or("user", |it| it.0);
            wrong.add(key, text);
        }
        match (&self.user, password, token, nkey, creds) {
            (Some(user), Some(password), ..) => {
                Credentials::Password { user: user.clone(), password }
            }
            (Some(_), None, ..) => {
                wrong.add("user", "needs password_file or password_env");
                Credentials::None
            }
            (None, Some(_), ..) => {
                wrong.add("password_file", "needs user");
                Credentials::None
            }
            (None, None, Some(token), ..) => Credentials::Token(token),
            (None, None, None, Some(nkey), _) => Credentials::Nkey(nkey),
            (None, None, None, None, Some(creds)) => Credentials::Creds(creds),
            (None, None, None, None, None) => Credentials::None,
        }
    }

    /// The secret that all nodes share, to verify each other's signatures.
    fn shared_secret(&self, wrong: &mut Mistakes) -> Option<String> {
        let secret = match self.secret(wrong, "secret", (&self.secret_file, &self.secret_env))? {
            Secret::Text(text) => text,
            Secret::File(path) => {
                let read = std::fs::read_to_string(&path);
                let read = read.map_err(|error| format!("{}: {error}", path.display()));
                wrong.note("secret_file", read)?.trim().to_owned()
            }
        };
        if secret.len() < SECRET_LEAST {
            let key = if self.secret_file.is_some() { "secret_file" } else { "secret_env" };
            wrong.add(key, format!("has {} bytes: use {SECRET_LEAST} or more", secret.len()));
        }
        Some(secret)
    }

    fn secret(
        &self,
        wrong: &mut Mistakes,
        what: &'static str,
        (file, env): (&Option<PathBuf>, &Option<String>),
    ) -> Option<Secret> {
        let key = match what {
            "password" => "password_env",
            "token" => "token_env",
            "nkey" => "nkey_env",
            _ => "secret_env",
        };
        match (file, env) {
            (None, None) => None,
            (Some(path), None) => Some(Secret::File(path.clone())),
            (None, Some(name)) => match std::env::var(name) {
                Ok(text) => Some(Secret::Text(text)),
                Err(_) => wrong.refuse(
                    key,
                    format!("the environment variable {name} is not set, or not UTF-8"),
                ),
            },
            (Some(_), Some(_)) => {
                wrong.refuse(key, format!("{what}_file is set, too: remove one of them"))
            }
        }
    }

    fn identity(&self, wrong: &mut Mistakes) -> Option<Identity> {
        match (self.tls_cert.clone(), self.tls_key.clone()) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (Some(_), None) => wrong.refuse("tls_cert", "needs tls_key"),
            (None, Some(_)) => wrong.refuse("tls_key", "needs tls_cert"),
            (None, None) => None,
        }
    }

    fn duration(
        &self,
        wrong: &mut Mistakes,
        key: &'static str,
        text: &Option<String>,
    ) -> Option<Duration> {
        wrong.note(key, duration(text.as_deref()?))
    }
}

pub(crate) fn streams(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "16" => Ok(16),
        _ => Err("expected 0, 1 or 16".to_owned()),
    }
}

/// The permissions that nodes with this prefix need, for the broker's configuration, with 0, 1 or
/// 16 streams of histories, and with that of the log of notices if it `has_log`.
pub(crate) fn permissions(
    prefix: &str,
    streams: u8,
    has_log: bool,
) -> Result<String, simurgh::cluster::PrefixError> {
    let prefix = Prefix::new(prefix)?;
    let streams = match streams {
        0 => StreamCount::Zero,
        1 => StreamCount::One,
        _ => StreamCount::Sixteen,
    };
    let config = StreamsConfig { streams, has_log, ..StreamsConfig::default() };
    let names = config.stream_names(&prefix);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Ok(format!("{}\n", Permissions::of(&prefix, &names)))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
