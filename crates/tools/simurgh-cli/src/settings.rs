//! From what was typed and what the file says to what is run: merged, completed, checked as a
//! whole.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use simurgh::axum::Router;
use simurgh::axum::http::HeaderValue;
use simurgh::declared::{self, ChannelSpec, Defaults};
use simurgh::http::HttpConfig;
use simurgh::{Cluster, Config, HistoryConfig, LongPoll, PresenceConfig, UserSocket};
use tracing_subscriber::filter::LevelFilter;

use crate::file::File;
use crate::flags::Serve;
use crate::layer::Layer;
use crate::units::{self, Choice, LogFormat};
use crate::{Channels, config, version};

/// Everything `serve` needs, checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// The declared channels and their page, unless the application has its own.
    pub(crate) declared: Option<Declared>,
    /// The other nodes, if there are any.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) log: LevelFilter,
    pub(crate) log_format: LogFormat,
}

/// What is served without a line of Rust.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) user_socket: UserSocket,
    /// The chat's page, or files.
    pub(crate) page: Router,
}

/// Everything that is wrong, one line each.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Vec<String>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// The file that is read without being asked for.
const FILE: &str = "simurgh.toml";

/// Where declared channels are served: `/socket/websocket`.
const SOCKET_PATH: &str = "/socket";

impl Settings {
    /// Flags over the environment over the file over the defaults.
    pub(crate) fn load(serve: Serve, channels: Channels) -> Result<Self, Refusal> {
        let file = match &serve.config {
            Some(path) => File::read(path, channels)?,
            // Anything but absence, such as missing rights, is an error: the file was meant.
            None if matches!(Path::new(FILE).try_exists(), Ok(false)) => File::default(),
            None => File::read(Path::new(FILE), channels)?,
        };
        Self::merge(serve.flags, file, channels)
    }

    /// Checks a file, as if it were served without flags.
    pub(crate) fn check(path: &Path, channels: Channels) -> Result<(), Refusal> {
        Self::merge(Layer::default(), File::read(path, channels)?, channels).map(drop)
    }

    fn merge(flags: Layer, mut file: File, channels: Channels) -> Result<Self, Refusal> {
        let layer = flags.clone().over(std::mem::take(&mut file.layer));
        let mut complaints = Vec::new();
        for (key, is_typed, text) in mistakes(&flags, &layer, channels) {
            if is_typed {
                complaints.push(format!("{}: {text}", typed_as(key)));
            } else {
                file.complain(key, format!("{key}: {text}"));
            }
        }
        if layer.history_save.is_some() && has_cluster(&file) {
            let text = "the engine of the cluster keeps histories: leave it out";
            match flags.history_save {
                Some(_) => complaints.push(format!("{}: {text}", typed_as("history_save"))),
                None => file.complain("history_save", format!("history_save: {text}")),
            }
        }
        let (cluster, secret) = cluster(&mut file).unzip();
        let declared = match channels {
            Channels::Declared => {
                let page = page(&layer).map_err(|text| match flags.static_files {
                    Some(_) => complaints.push(format!("{}: {text}", typed_as("static_files"))),
                    None => file.complain("static_files", format!("static_files: {text}")),
                });
                let user_socket = user_socket(&layer, &mut file);
                user_socket.zip(page.ok()).map(|(user_socket, page)| Declared { user_socket, page })
            }
            Channels::InRust => None,
        };
        complaints.extend(file.complaints());
        if !complaints.is_empty() {
            return Err(Refusal(complaints));
        }
        let log = layer.log.unwrap_or(LevelFilter::INFO);
        let log_format = layer.log_format.unwrap_or(LogFormat::Text);
        let mut config = complete(layer);
        config.secret_key_base = secret.flatten();
        Ok(Self { declared, cluster, log, log_format, config })
    }
}

#[cfg(feature = "nats")]
fn has_cluster(file: &File) -> bool {
    file.cluster.is_some()
}

/// The other nodes, as the file has them, and the secret that all share.
#[cfg(feature = "nats")]
fn cluster(file: &mut File) -> Option<(Cluster, Option<String>)> {
    match file.cluster.take()??.cluster() {
        Ok(cluster) => Some(cluster),
        Err(mistakes) => {
            for (key, text) in mistakes {
                file.complain(&format!("cluster.{key}"), format!("[cluster] {key}: {text}"));
            }
            None
        }
    }
}

#[cfg(not(feature = "nats"))]
fn cluster(_file: &mut File) -> Option<(Cluster, Option<String>)> {
    None
}

#[cfg(not(feature = "nats"))]
fn has_cluster(_file: &File) -> bool {
    false
}

/// What is wrong with values that are right each for themselves: the key, whether it was typed,
/// what.
fn mistakes(flags: &Layer, layer: &Layer, channels: Channels) -> Vec<(&'static str, bool, String)> {
    let mut found = Vec::new();
    let listen_typed = flags.listen.is_some();
    if layer.listen.as_ref().is_some_and(Vec::is_empty) {
        found.push(("listen", listen_typed, "names no address".to_owned()));
    }
    let mut seen = BTreeSet::new();
    for address in layer.listen.iter().flatten().filter(|address| address.port() != 0) {
        if !seen.insert(*address) {
            found.push(("listen", listen_typed, format!("{address} is there twice")));
        }
    }
    let default_listen = layer.listen.is_none().then_some(LISTEN);
    let is_taken = |admin: &SocketAddr| seen.contains(admin) || default_listen == Some(*admin);
    if let Some(admin) = layer.admin_listen.and_then(Choice::value).filter(is_taken) {
        let text = format!("{admin} is an address of listen already");
        found.push(("admin_listen", flags.admin_listen.is_some(), text));
    }
    let trusts_nobody = layer.trusted_proxies.as_ref().is_none_or(Vec::is_empty);
    if layer.proxy_protocol == Some(true) && trusts_nobody {
        let text = "would never be believed: name the proxies in trusted_proxies".to_owned();
        found.push(("proxy_protocol", flags.proxy_protocol.is_some(), text));
    }
    if let Some(Err(text)) = layer.api_token.as_deref().map(units::token) {
        found.push(("api_token", flags.api_token.is_some(), text));
    }
    if layer.observer == Some(true) && layer.api_token.is_none() {
        let text = "would be open to nobody: it needs api_token".to_owned();
        found.push(("observer", flags.observer.is_some(), text));
    }
    if channels == Channels::InRust {
        for (key, is_typed) in [
            ("static_files", flags.static_files.is_some()),
            ("static_copies_bytes_max", flags.static_copies_bytes_max.is_some()),
            ("max_channels", flags.max_channels.is_some()),
            ("auth_token", flags.auth_token.is_some()),
            ("longpoll", flags.longpoll.is_some()),
            ("announce_joins_up_to", flags.announce_joins_up_to.is_some()),
        ] {
            if is_typed {
                let text = "this application declares its channels in Rust".to_owned();
                found.push((key, true, text));
            }
        }
    }
    found
}

fn typed_as(key: &str) -> String {
    match key {
        "api_token" => "--api-token (or SIMURGH_API_TOKEN)".to_owned(),
        key => format!("--{}", key.replace('_', "-")),
    }
}

/// Pages whose content is not known here may do what they do; they are in no foreign frame.
const FILES_POLICY: HeaderValue =
    HeaderValue::from_static("base-uri 'self'; frame-ancestors 'none'");

/// The files that are to be served, or the chat's page.
fn page(layer: &Layer) -> Result<Router, String> {
    let Some(directory) = &layer.static_files else { return Ok(chat::page()) };
    let files = match layer.static_copies_bytes_max {
        None => simurgh::http::static_files(directory, FILES_POLICY),
        Some(most) => {
            let most = most.value().unwrap_or(0);
            simurgh::http::static_files_keeping(directory, FILES_POLICY, most)
        }
    };
    files.map_err(|error| format!("{}: {error}", directory.display()))
}

/// The declared channels, or the built-in chat where none are.
fn user_socket(layer: &Layer, file: &mut File) -> Option<UserSocket> {
    let is_chat = file.channels.is_none();
    let specs = match file.channels.take() {
        Some(specs) => specs,
        None => built_in_chat(layer),
    };
    let mut defaults = Defaults { frame_bytes_max: layer.frame_bytes_max, ..Defaults::default() };
    defaults.message_bytes_max = layer.message_bytes_max.unwrap_or(defaults.message_bytes_max);
    if let Some(members) = layer.announce_joins_up_to {
        defaults.announce_joins_up_to = members;
    }
    let tokens = match file.token.take().map(|token| token.map(|token| token.policy())) {
        None => None,
        Some(None) => return None,
        Some(Some(Ok(policy))) => Some(policy),
        Some(Some(Err(mistakes))) => {
            for (key, text) in mistakes {
                file.complain(&format!("token.{key}"), format!("[token] {key}: {text}"));
            }
            return None;
        }
    };
    let by_token = tokens.is_some();
    let user_socket = match tokens {
        Some(policy) => declared::user_socket_with_tokens(SOCKET_PATH, &specs, defaults, policy),
        None => declared::user_socket(SOCKET_PATH, &specs, defaults),
    };
    match user_socket {
        Ok(user_socket) => {
            let user_socket = user_socket
                .socket_limits(file.limits.into())
                .channels_max(layer.max_channels.unwrap_or(100))
                .auth_token(layer.auth_token.unwrap_or(by_token));
            Some(match longpoll(layer, is_chat) {
                Some(longpoll) => user_socket.longpoll(longpoll),
                None => user_socket,
            })
        }
        Err(mistakes) => {
            for mistake in &mistakes {
                file.complain_of(mistake);
            }
            None
        }
    }
}

/// How the user socket is polled; off unless somebody says so, but for the built-in chat.
fn longpoll(layer: &Layer, is_chat: bool) -> Option<LongPoll> {
    match layer.longpoll {
        Some(window) => window.value().map(|window| LongPoll::new().window(window)),
        None => is_chat.then(LongPoll::new),
    }
}

/// The chat that is served where no channel is declared. Whoever says how large messages may be has
/// said it for the chat as well.
fn built_in_chat(layer: &Layer) -> Vec<ChannelSpec> {
    let text = config::CHAT.to_owned();
    let file = File::parse("the built-in chat", text, Channels::Declared);
    let mut specs = file.channels.unwrap_or_default();
    if layer.message_bytes_max.is_some() {
        specs.iter_mut().for_each(|spec| spec.message_bytes_max = None);
    }
    specs
}

/// Where it listens unless told otherwise.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4000);

/// The defaults, where nothing was said, are the library's.
fn complete(layer: Layer) -> Config {
    let mut config = Config::default();
    complete_http(&layer, &mut config.http);
    complete_presence(&layer, &mut config.presence);
    complete_history(&layer, &mut config.history);
    config.history_save = layer.history_save.clone();
    config.listen = layer.listen.unwrap_or_else(|| vec![LISTEN]);
    config.admin_listen = layer.admin_listen.and_then(Choice::value);
    config.shards = layer.shards.and_then(Choice::value).unwrap_or(config.shards);
    config.max_connections = layer.max_connections.and_then(Choice::value);
    let of_address = layer.max_connections_per_address;
    config.max_connections_per_address = of_address.and_then(Choice::value);
    let of_user = layer.max_connections_per_user;
    config.max_connections_per_user = of_user.and_then(Choice::value);
    config.pin_shards = layer.pin_shards.unwrap_or(config.pin_shards);
    config.idle_timeout = layer.idle_timeout.map_or(config.idle_timeout, Choice::value);
    let hibernate_after = layer.hibernate_after;
    config.hibernate_after = hibernate_after.map_or(config.hibernate_after, Choice::value);
    config.handshake_timeout = layer.handshake_timeout.unwrap_or(config.handshake_timeout);
    config.close_timeout = layer.close_timeout.unwrap_or(config.close_timeout);
    config.drain_time = layer.drain_time.unwrap_or(config.drain_time);
    config.callback_warning = layer.callback_warning.unwrap_or(config.callback_warning);
    let limits = &mut config.limits;
    limits.frame_bytes_max = layer.frame_bytes_max.unwrap_or(limits.frame_bytes_max);
    limits.message_bytes_max = layer.message_bytes_max.unwrap_or(limits.message_bytes_max);
    config.inbound_budget_bytes = layer.inbound_budget.unwrap_or(config.inbound_budget_bytes);
    config.outbound_bytes_max = layer.outbound_bytes_max.unwrap_or(config.outbound_bytes_max);
    config.outbound_budget_bytes = layer.outbound_budget.unwrap_or(config.outbound_budget_bytes);
    config.slow_after = layer.slow_after.unwrap_or(config.slow_after);
    config.message_timeout = layer.message_timeout.unwrap_or(config.message_timeout);
    config.decision_timeout = layer.decision_timeout.unwrap_or(config.decision_timeout);
    config.mailbox_bytes_max = layer.mailbox_bytes_max.unwrap_or(config.mailbox_bytes_max);
    config.check_origin = layer.check_origin.map_or(config.check_origin, Choice::value);
    config.trusted_hosts = layer.trusted_hosts.unwrap_or(config.trusted_hosts);
    config.trusted_proxies = layer.trusted_proxies.unwrap_or(config.trusted_proxies);
    config.proxy_protocol = layer.proxy_protocol.unwrap_or(config.proxy_protocol);
    config.api_token = layer.api_token.or(config.api_token);
    config.observer = layer.observer.unwrap_or(config.observer);
    config.commit = version::COMMIT.to_owned();
    config
}

fn complete_http(layer: &Layer, http: &mut HttpConfig) {
    http.threads = layer.http_threads.and_then(Choice::value).unwrap_or(http.threads);
    http.connections_max = layer.http_connections_max.unwrap_or(http.connections_max);
    let reserved = layer.http_connections_reserved;
    http.connections_reserved = reserved.unwrap_or(http.connections_reserved);
    http.head_bytes_max = layer.http_head_bytes_max.unwrap_or(http.head_bytes_max);
    http.headers_max = layer.http_headers_max.unwrap_or(http.headers_max);
    http.target_bytes_max = layer.http_target_bytes_max.unwrap_or(http.target_bytes_max);
    let body_bytes = layer.http_body_bytes_max.map(|bytes| bytes as u64);
    http.body_bytes_max = body_bytes.unwrap_or(http.body_bytes_max);
    http.head_timeout = layer.http_head_timeout.unwrap_or(http.head_timeout);
    http.body_timeout = layer.http_body_timeout.unwrap_or(http.body_timeout);
    let body_rate = layer.http_body_rate_min.map(|bytes| bytes as u64);
    http.body_rate_min = body_rate.unwrap_or(http.body_rate_min);
    http.write_timeout = layer.http_write_timeout.unwrap_or(http.write_timeout);
    http.idle_timeout = layer.http_idle_timeout.unwrap_or(http.idle_timeout);
    http.requests_max = layer.http_requests_max.unwrap_or(http.requests_max);
}

fn complete_history(layer: &Layer, history: &mut HistoryConfig) {
    history.bytes_max = layer.history_bytes_max.unwrap_or(history.bytes_max);
    history.replay_count = layer.history_replay_count.unwrap_or(history.replay_count);
    history.replay_bytes = layer.history_replay_bytes.unwrap_or(history.replay_bytes);
}

fn complete_presence(layer: &Layer, presence: &mut PresenceConfig) {
    presence.interval = layer.presence_interval.unwrap_or(presence.interval);
    presence.leave_delay = layer.presence_leave_delay.unwrap_or(presence.leave_delay);
    presence.list_max = layer.presence_list_max.unwrap_or(presence.list_max);
    let summary_interval = layer.presence_summary_interval;
    presence.summary_interval = summary_interval.unwrap_or(presence.summary_interval);
    presence.sample = layer.presence_sample.unwrap_or(presence.sample);
    presence.key_bytes_max = layer.presence_key_bytes_max.unwrap_or(presence.key_bytes_max);
    presence.meta_bytes_max = layer.presence_meta_bytes_max.unwrap_or(presence.meta_bytes_max);
    let entries_max = layer.presence_channel_entries_max;
    presence.channel_entries_max = entries_max.unwrap_or(presence.channel_entries_max);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(flags: Layer, text: &str) -> Result<Settings, Refusal> {
        let file = File::parse("f.toml", text.to_owned(), Channels::Declared);
        Settings::merge(flags, file, Channels::Declared)
    }

    /// What can be compared of settings.
    fn shown(settings: &Settings) -> String {
        let Settings { config, log, log_format, .. } = settings;
        format!("{config:#?} {log} {log_format}")
    }

    #[test]
    fn the_printed_file_is_the_defaults() {
        let text = config::text(Channels::Declared);
        let printed = merged(Layer::default(), &text).unwrap();
        let defaults = merged(Layer::default(), "").unwrap();
        assert_eq!(shown(&printed), shown(&defaults));
        let file = File::parse("", text, Channels::Declared);
        let chat = File::parse("", config::CHAT.to_owned(), Channels::Declared);
        assert!(chat.channels.as_ref().is_some_and(|specs| specs.len() == 1));
        assert_eq!(file.channels, chat.channels);
        // The keys outside of the library's own settings.
        assert_eq!(file.layer.max_channels, Some(100));
        assert_eq!(file.layer.auth_token, Some(false));
        let members = file.layer.announce_joins_up_to;
        assert_eq!(members, Some(Defaults::default().announce_joins_up_to));
    }

    #[test]
    fn examples_in_the_printed_file_are_right_too() {
        let text = config::text(Channels::Declared);
        let examples = text.lines().filter(|line| is_example(line)).count();
        assert_eq!(
            examples, 15,
            "api_token, static_files, history_save, longpoll, what a channel may have"
        );
        let all: Vec<_> = text
            .lines()
            .map(|line| if is_example(line) { line.trim_start_matches('#') } else { line })
            .collect();
        // Where the package has made it.
        let folder = std::env::temp_dir();
        let all = all.join("\n").replace("/var/lib/simurgh", &folder.to_string_lossy());
        merged(Layer::default(), &all).unwrap();
    }

    fn is_example(line: &str) -> bool {
        line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
    }

    #[test]
    fn the_printed_file_has_every_key_once_and_in_width() {
        for channels in [Channels::Declared, Channels::InRust] {
            let text = config::text(channels);
            for key in crate::keys::ALL {
                let line = |line: &&str| {
                    line.trim_start_matches('#')
                        .strip_prefix(key.name)
                        .is_some_and(|rest| rest.starts_with(" = "))
                };
                let own = text.split("[[channel]]\n").next().unwrap();
                assert_eq!(own.lines().filter(line).count(), usize::from(key.is_for(channels)));
            }
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        }
    }

    #[test]
    fn an_application_in_rust_has_no_declared_channels() {
        let text = "max_channels = 5\n[[channel]]\ntopic = \"a\"\n".to_owned();
        let file = File::parse("f.toml", text, Channels::InRust);
        let flags = Layer { auth_token: Some(true), ..Layer::default() };
        let refusal = Settings::merge(flags, file, Channels::InRust).unwrap_err();
        assert_eq!(refusal.0.len(), 3, "{refusal}");
        let own = config::text(Channels::InRust);
        let file = File::parse("f.toml", own, Channels::InRust);
        let settings = Settings::merge(Layer::default(), file, Channels::InRust).unwrap();
        assert!(settings.declared.is_none());
    }

    #[test]
    fn what_contradicts_itself_is_refused_where_it_was_said() {
        let flags = Layer { proxy_protocol: Some(true), ..Layer::default() };
        let text = "listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\nadmin_listen = \"127.0.0.1:1\"\n\
                    api_token = \"\"\n";
        let refusal = merged(flags, text).unwrap_err().to_string();
        for expected in [
            "--proxy-protocol: would never be believed",
            "f.toml:1: listen: 127.0.0.1:1 is there twice",
            "f.toml:2: admin_listen: 127.0.0.1:1 is an address of listen already",
            "f.toml:3: api_token: is empty",
        ] {
            assert!(refusal.contains(expected), "{expected:?} is not in\n{refusal}");
        }
        let refusal = merged(Layer::default(), "observer = true").unwrap_err().to_string();
        assert_eq!(refusal, "f.toml:1: observer: would be open to nobody: it needs api_token");
    }
}
