//! Merges flags, `simurgh.toml` and defaults, and checks the result.
//!
//! `keys` is the table of all settings, from which `table` makes flags, keys of the file and fields
//! of the configuration; `file` reads the file, with the tables of `token`, `api`, `tls` and
//! `cluster`.

pub(crate) mod api;
#[cfg(feature = "nats")]
pub(crate) mod cluster;
mod environment;
mod file;
mod front;
pub(crate) mod hook;
pub(crate) mod keys;
mod mistakes;
mod table;
pub(crate) mod tls;
pub(crate) mod token;
pub(crate) mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use simurgh::axum::Router;
use simurgh::axum::http::HeaderValue;
use simurgh::declared::{self, ChannelSpec, Defaults};
use simurgh::hooks::HookSet;
use simurgh::tls::{Severity, TlsConfig};
use simurgh::{Cluster, Config, LongPoll, UserSocket};
use simurgh_text::Choice;
use tracing_subscriber::filter::LevelFilter;

use crate::version;
use file::File;
pub(crate) use keys::{Key, PartialSettings};
pub(crate) use mistakes::Refusal;
pub(crate) use table::Channels;
use token::TokenSpec;
use values::LogFormat;

/// The checked settings of `serve`.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// The declared channels and their page, unless the application has its own.
    pub(crate) declared: Option<Declared>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) log: LevelFilter,
    pub(crate) log_format: LogFormat,
    pub(crate) source: Source,
    /// Settings that are allowed but probably not intended, as `file:line: text`.
    pub(crate) warnings: Vec<String>,
    /// A reload compares these: the keys as they were given, and all tables.
    pub(crate) given: Given,
    /// The declared hooks, whose state a reload continues.
    pub(crate) hooks: Option<Arc<HookSet>>,
    /// Problems of certificates that do not prevent a start, which logs them itself.
    certificates: Vec<(Severity, String)>,
}

/// Settings as they were given.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) keys: PartialSettings,
    pub(crate) tables: BTreeMap<String, toml::Value>,
}

/// The origin of settings and channels, which `serve` reports.
#[derive(Debug)]
pub(crate) struct Source {
    /// The settings file, if there is one.
    pub(crate) file: Option<String>,
    pub(crate) is_built_in_chat: bool,
    /// `required`, `optional` or `off`; `None` if the application decides.
    pub(crate) tokens: Option<&'static str>,
    /// Whether a hook decides about connects.
    pub(crate) asks: bool,
}

#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) user_socket: UserSocket,
    /// The chat page, or files, or the scripts of clients.
    pub(crate) page: Router,
    /// HTML of what is declared, if there is no other page at `/`.
    pub(crate) front: Option<String>,
}

/// The flags of `serve`, which `drive` has in part.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Serve {
    /// Settings file; flags override it. Default: ./simurgh.toml if it exists.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) flags: PartialSettings,
}

/// The chat that is served if no channel is declared, as `simurgh.toml`.
pub(crate) const CHAT: &str = include_str!("../chat.toml");

const FILE: &str = "simurgh.toml";

/// The path of declared channels: `/socket/websocket`.
const SOCKET_PATH: &str = "/socket";

impl Settings {
    /// Flags override the environment, which overrides the file, which overrides the defaults.
    pub(crate) fn load(serve: Serve, channels: Channels) -> Result<Self, Refusal> {
        let file = Self::file(&serve, channels)?;
        Self::merge(serve.flags, file, channels)
    }

    /// The same for a server that runs, with these hooks. Certificates must be valid now.
    pub(crate) fn load_again(serve: Serve, hooks: Option<&Arc<HookSet>>) -> Result<Self, Refusal> {
        let mut file = Self::file(&serve, Channels::Declared)?;
        file.hooks_before = hooks.cloned();
        let mut settings = Self::merge(serve.flags, file, Channels::Declared)?;
        // Warnings are logged when the files are read for use.
        drop(settings.check_certificates()?);
        Ok(settings)
    }

    fn file(serve: &Serve, channels: Channels) -> Result<File, Refusal> {
        match &serve.config {
            Some(path) => File::read(Some(path), channels),
            // Only a missing file is allowed: one without read permission is an error.
            None if matches!(Path::new(FILE).try_exists(), Ok(false)) => File::read(None, channels),
            None => File::read(Some(Path::new(FILE)), channels),
        }
    }

    /// Checks a file as if it were served without flags; returns its warnings.
    pub(crate) fn check(path: &Path, channels: Channels) -> Result<Vec<String>, Refusal> {
        let file = File::read(Some(path), channels)?;
        let mut settings = Self::merge(PartialSettings::default(), file, channels)?;
        let warnings = settings.check_certificates()?;
        Ok(settings.warnings.into_iter().chain(warnings).collect())
    }

    /// Returns warnings about certificates; those that are not valid now are mistakes.
    fn check_certificates(&mut self) -> Result<impl Iterator<Item = String> + use<>, Refusal> {
        let is_warning = |(severity, _): &(Severity, String)| *severity == Severity::Warning;
        let (warnings, mistakes): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.certificates).into_iter().partition(is_warning);
        if !mistakes.is_empty() {
            return Err(Refusal(mistakes.into_iter().map(|(_, text)| text).collect()));
        }
        Ok(warnings.into_iter().map(|(_, text)| text))
    }

    fn merge(flags: PartialSettings, mut file: File, channels: Channels) -> Result<Self, Refusal> {
        let settings = flags.clone().over(std::mem::take(&mut file.settings));
        let tables = std::mem::take(&mut file.tables);
        let given = Given { keys: settings.clone(), tables };
        let has_tls = file.tls.is_some();
        let (tls, certificates) = tls(&mut file).unzip();
        let with_tls = tls.as_ref().map(|tls| &*tls.listen).unwrap_or_default();
        let with_tls = has_tls.then_some(with_tls);
        let mut found = mistakes(&flags, &settings, with_tls, channels);
        let mut source = source(&file, channels);
        let cluster = cluster(&mut file);
        if settings.history_save.is_some() && cluster.is_some() {
            let text = "not with [cluster], whose broker stores histories: remove it".to_owned();
            found.push(("history_save", text));
        }
        let (cluster, secret) = cluster.flatten().unzip();
        let hooks = hook::hooks(&mut file, &settings);
        source.asks = hooks.as_ref().is_some_and(|hooks| hooks.asks_connect());
        let api_tokens = file.take_api_tokens();
        let declared = match channels {
            Channels::Declared => {
                let front = front(&settings, &file);
                let page = page(&settings, front.is_none())
                    .map_err(|text| found.push(("static_files", text)));
                let user_socket = user_socket(&settings, &mut file, hooks.as_ref());
                let both = user_socket.zip(page.ok());
                both.map(|(user_socket, page)| Declared { user_socket, page, front })
            }
            Channels::InRust => None,
        };
        let mut complaints = Vec::new();
        for (key, text) in found {
            match flags.has(key) {
                true => complaints.push(format!("{}: {text}", typed_as(key))),
                false => file.complain(key, format!("{key}: {text}")),
            }
        }
        let warnings = file.warnings();
        complaints.extend(file.complaints());
        if !complaints.is_empty() {
            return Err(Refusal(complaints));
        }
        let log = settings.log.unwrap_or(LevelFilter::INFO);
        let log_format = settings.log_format.unwrap_or(LogFormat::Text);
        let mut config = Config::default();
        config.listen = vec![LISTEN];
        config.commit = version::COMMIT.to_owned();
        config.secret_key_base = secret.flatten();
        config.api_tokens = api_tokens;
        config.tls = tls;
        settings.fill(&mut config);
        let certificates = certificates.unwrap_or_default();
        Ok(Self {
            config,
            declared,
            cluster,
            log,
            log_format,
            source,
            warnings,
            given,
            hooks,
            certificates,
        })
    }
}

fn source(file: &File, channels: Channels) -> Source {
    let is_declared = channels == Channels::Declared;
    Source {
        file: (!file.name.is_empty()).then(|| file.name.clone()),
        is_built_in_chat: is_declared && file.channels.is_none(),
        tokens: is_declared.then(|| match &file.token {
            None => "off",
            Some(token) if token.as_ref().is_some_and(TokenSpec::is_optional) => "optional",
            Some(_) => "required",
        }),
        asks: false,
    }
}

/// If the file has the table `[cluster]`: the cluster and the secret that all nodes share;
/// `Some(None)` if there are mistakes.
#[cfg(feature = "nats")]
fn cluster(file: &mut File) -> Option<Option<(Cluster, Option<String>)>> {
    let Some(spec) = file.cluster.take()? else { return Some(None) };
    let cluster = spec.cluster().map_err(|mistakes| {
        for (key, text) in mistakes {
            file.complain(&format!("cluster.{key}"), format!("[cluster] {key}: {text}"));
        }
    });
    Some(cluster.ok())
}

#[cfg(not(feature = "nats"))]
fn cluster(_: &mut File) -> Option<Option<(Cluster, Option<String>)>> {
    None
}

/// If the file has the table `[tls]` without mistakes: the settings, and problems of certificates
/// that do not prevent a start.
fn tls(file: &mut File) -> Option<(TlsConfig, Vec<(Severity, String)>)> {
    match file.tls.take()??.read() {
        Ok(tls::Tls { config, problems }) => {
            let placed = |(severity, (key, text)): (Severity, mistakes::Mistake)| {
                (severity, file.placed(&format!("tls.{key}"), &format!("[tls] {key}: {text}")))
            };
            Some((config, problems.into_iter().map(placed).collect()))
        }
        Err(mistakes) => {
            for (key, text) in mistakes {
                file.complain(&format!("tls.{key}"), format!("[tls] {key}: {text}"));
            }
            None
        }
    }
}

/// Values that contradict each other: the key, and why.
fn mistakes(
    flags: &PartialSettings,
    settings: &PartialSettings,
    with_tls: Option<&[SocketAddr]>,
    channels: Channels,
) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut add = |key, text: &str| found.push((key, text.to_owned()));
    let has_path = settings.listen_unix.as_ref().is_some_and(|paths| !paths.is_empty());
    let has_none = settings.listen.as_ref().is_some_and(Vec::is_empty) && with_tls.is_none();
    if has_none && !has_path {
        add("listen", "must name at least one address");
    }
    let mut seen = BTreeSet::new();
    let plain = settings.listen.as_deref().unwrap_or(&[LISTEN]);
    let with_tls = with_tls.unwrap_or_default();
    for address in plain.iter().chain(with_tls).filter(|address| address.port() != 0) {
        if !seen.insert(*address) {
            add("listen", &format!("{address} is listed twice: remove one"));
        }
    }
    let is_taken = |admin: &SocketAddr| seen.contains(admin);
    if let Some(admin) = settings.admin_listen.and_then(Choice::value).filter(is_taken) {
        add("admin_listen", &format!("{admin} is also an address of listen: choose another port"));
    }
    let trusts_nobody = settings.trusted_proxies.as_ref().is_none_or(Vec::is_empty);
    if settings.proxy_protocol == Some(true) && trusts_nobody {
        add("proxy_protocol", "needs trusted_proxies: list the proxies that send the header");
    }
    if let Some(Err(text)) = settings.api_token.as_deref().map(values::token) {
        add("api_token", &text);
    }
    if settings.observer == Some(true) && settings.api_token.is_none() {
        add("observer", "needs api_token: without it nobody can open the observer");
    }
    for key in keys::ALL.iter().filter(|key| !key.is_for(channels) && flags.has(key.name)) {
        add(key.name, "not available: this application declares its channels in Rust");
    }
    found
}

fn typed_as(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// The policy for pages with unknown content: forbids only foreign base URIs and frames.
const FILES_POLICY: HeaderValue =
    HeaderValue::from_static("base-uri 'self'; frame-ancestors 'none'");

/// The page at `/` in place of the chat page, if that cannot work with the declared channels.
fn front(settings: &PartialSettings, file: &File) -> Option<String> {
    let specs = file.channels.as_deref().filter(|_| settings.static_files.is_none())?;
    (!front::serves_chat(specs)).then(|| front::html(specs))
}

/// The configured files, or the chat page, or only the scripts of clients.
fn page(settings: &PartialSettings, is_chat: bool) -> Result<Router, String> {
    let Some(directory) = &settings.static_files else {
        return Ok(if is_chat { chat::page() } else { chat::client_scripts() });
    };
    let files = match settings.static_copies_bytes_max {
        None => simurgh::http::static_files(directory, FILES_POLICY),
        Some(most) => {
            let most = most.value().unwrap_or(0);
            simurgh::http::static_files_keeping(directory, FILES_POLICY, most)
        }
    };
    files.map_err(|error| format!("{}: {error}", directory.display()))
}

/// The declared channels, or the built-in chat if there are none.
fn user_socket(
    settings: &PartialSettings,
    file: &mut File,
    hooks: Option<&Arc<HookSet>>,
) -> Option<UserSocket> {
    let is_chat = file.channels.is_none();
    let by_token = file.token.is_some();
    let specs = match file.channels.take() {
        Some(specs) => specs,
        None => built_in_chat(settings, by_token),
    };
    let mut defaults =
        Defaults { frame_bytes_max: settings.frame_bytes_max, ..Defaults::default() };
    defaults.message_bytes_max = settings.message_bytes_max.unwrap_or(defaults.message_bytes_max);
    if let Some(members) = settings.announce_joins_up_to {
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
    let names = hooks.map(|hooks| hooks.names()).unwrap_or_default();
    let has_users = by_token || hooks.is_some_and(|hooks| hooks.asks_connect());
    let traps = declared::traps(&specs, defaults, has_users, &names);
    traps.iter().for_each(|trap| file.warn_of(trap));
    let user_socket = match (hooks, tokens) {
        (Some(hooks), tokens) => {
            let hooks = Arc::clone(hooks);
            declared::user_socket_with_hooks(SOCKET_PATH, &specs, defaults, tokens, hooks)
        }
        (None, Some(policy)) => {
            declared::user_socket_with_tokens(SOCKET_PATH, &specs, defaults, policy)
        }
        (None, None) => declared::user_socket(SOCKET_PATH, &specs, defaults),
    };
    match user_socket {
        Ok(user_socket) => {
            let limits = file.named_limits.iter();
            let user_socket = user_socket
                .socket_limits(file.limits.into())
                .named_limits(limits.map(|(name, it)| (name.clone(), (*it).into())).collect())
                .compress(settings.compress.unwrap_or_default())
                .channels_max(settings.max_channels.unwrap_or(100))
                .auth_token(settings.auth_token.unwrap_or(by_token));
            Some(match longpoll(settings, is_chat) {
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

/// Long polling is served only if it is set, or for the built-in chat.
fn longpoll(settings: &PartialSettings, is_chat: bool) -> Option<LongPoll> {
    match settings.longpoll {
        Some(window) => window.value().map(|window| LongPoll::new().window(window)),
        None => is_chat.then(LongPoll::new),
    }
}

/// A limit on messages applies to the built-in chat, too.
/// With tokens the names of users come from their tokens.
fn built_in_chat(settings: &PartialSettings, by_token: bool) -> Vec<ChannelSpec> {
    let text = CHAT.to_owned();
    let file = File::parse("the built-in chat", text, Channels::Declared);
    let mut specs = file.channels.unwrap_or_default();
    if settings.message_bytes_max.is_some() {
        specs.iter_mut().for_each(|spec| spec.message_bytes_max = None);
    }
    if by_token {
        for spec in &mut specs {
            spec.announce_payload = Some(json!({"user": "$token.sub"}));
            spec.presence = Some(json!({"key": "$token.sub"}));
            for event in &mut spec.event {
                event.payload = Some(json!({"user": "$token.sub", "body": "$body"}));
            }
        }
    }
    specs
}

const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn merged(flags: PartialSettings, text: &str) -> Result<Settings, Refusal> {
        let file = File::parse("f.toml", text.to_owned(), Channels::Declared);
        Settings::merge(flags, file, Channels::Declared)
    }

    fn shown(settings: &Settings) -> String {
        let Settings { config, log, log_format, .. } = settings;
        format!("{config:#?} {log} {log_format:?}")
    }

    #[test]
    fn printed_file_equals_the_defaults() {
        let text = config::text(Channels::Declared);
        let printed = merged(PartialSettings::default(), &text).unwrap();
        let defaults = merged(PartialSettings::default(), "").unwrap();
        assert_eq!(shown(&printed), shown(&defaults));
        let file = File::parse("", text, Channels::Declared);
        let chat = File::parse("", CHAT.to_owned(), Channels::Declared);
        assert!(chat.channels.as_ref().is_some_and(|specs| specs.len() == 1));
        assert_eq!(file.channels, chat.channels);
        // The keys that are not settings of the library.
        assert_eq!(file.settings.max_channels, Some(100));
        assert_eq!(file.settings.auth_token, Some(false));
        let members = file.settings.announce_joins_up_to;
        assert_eq!(members, Some(Defaults::default().announce_joins_up_to));
    }

    #[test]
    fn mistakes_of_hooks_are_named_with_their_place() {
        let channel = "[[channel]]\ntopic = \"rooms:*\"\njoin_hook = \"ap\"\n";
        let hook = |more: &str| {
            format!("[[hook]]\nname = \"app\"\nurl = \"http://127.0.0.1:3000/a\"\n{more}\n")
        };
        let connect = hook("questions = [\"connect\"]");
        let other = connect.replace("app", "other");
        let cookies = "forward = { cookies = [\"s\"] }";
        for (text, says) in [
            (format!("{connect}{channel}"), "join_hook: \"ap\" is unknown; the hooks are app"),
            (channel.to_owned(), "join_hook: \"ap\" is unknown; the server has no [[hook]]"),
            (format!("{connect}{other}"), "another hook already answers \"connect\""),
            (format!("{connect}{connect}"), "\"app\" is used twice"),
            (hook("secret_env = \"NO_SUCH_VARIABLE\""), "NO_SUCH_VARIABLE is not set"),
            (hook("questions = [\"leave\"]"), "unknown variant `leave`"),
            (hook("questions = [\"refresh\"]"), "\"refresh\" is about answers to \"connect\""),
            (hook("timeout = { total = \"40s\" }"), "less than decision_timeout (30s)"),
            (hook("timeout = { answer = \"9s\" }"), "total must not be less than answer"),
            (hook("load = { concurrency = 0 }"), "concurrency must be \"auto\", or 1 to 4096"),
            (hook("forward = { headers = [\"Host\"] }"), "\"Host\" is set by the server itself"),
            (hook("cache_mx = 5"), "cache_mx: no such key; did you mean cache_max?"),
            (hook("tls_cert = \"no/such\""), "cannot read no/such"),
            (hook("name = 5"), "not TOML"),
            (
                "[limits]\njoins = 5\n[limits.gold]\nmesages = 5\n".to_owned(),
                "f.toml:4: [limits] mesages: no such key; did you mean messages?",
            ),
            ("[limits]\njions = 5\n".to_owned(), "f.toml:2: [limits] jions: no such key"),
            (
                format!("check_origin = \"off\"\n{}", hook(cookies)),
                "a page of any site could connect as its visitor",
            ),
            (
                hook(cookies).replace("127.0.0.1:3000", "app.example"),
                "would send cookies over the network without TLS",
            ),
            (
                hook("notices = [\"member.gone\"]"),
                "\"member.gone\" is unknown; the types are member.",
            ),
            (hook("topics = [\"a\"]"), "topics: is about notices: name their types in notices"),
            (hook("leave_grace = \"9s\""), "leave_grace: is about notices"),
            (hook("delivery = { batch = 5 }"), "delivery: is about notices"),
            (
                hook("notices = [\"member.left\"]\ndelivery = { batch = 0 }"),
                "f.toml:5: [[hook]] delivery: batch must be 1 to 1000",
            ),
            (hook("").replace("http:", "ftp:"), "must begin with http:// or https://"),
            (hook("").replace("\"app\"", "\"My App\""), "may have only the characters"),
        ] {
            let refusal = merged(PartialSettings::default(), &text).unwrap_err().to_string();
            assert!(refusal.contains(says), "{says:?} is not in\n{refusal}\nof\n{text}");
        }
        for right in [
            format!("{}{}", connect, channel.replace("ap\"", "app\"")),
            hook(&format!("{cookies}\ninsecure = true")).replace("127.0.0.1:3000", "app.example"),
            hook(cookies).replace("http://127.0.0.1:3000", "https://app.example"),
            "[limits.gold]\njoins = 5\n[limits]\nmessages = { rate = \"5/s\" }\n".to_owned(),
        ] {
            merged(PartialSettings::default(), &right).unwrap();
        }
    }

    #[test]
    fn notices_that_never_come_are_warned_of() {
        let hook = |more: &str| {
            format!("[[hook]]\nname = \"app\"\nurl = \"http://127.0.0.1:3000/a\"\n{more}\n")
        };
        let of_topics =
            |topics: &str| hook(&format!("notices = [\"topic.occupied\"]\ntopics = [{topics}]"));
        let channel = "[[channel]]\ntopic = \"orders:*\"\n";
        let users = "notices = [\"user.connected\"]";
        for (text, says) in [
            (
                of_topics("\"orders:*\", \"rooms:a\""),
                "f.toml:5: [[hook]] topics: no channel serves \"orders:*\"",
            ),
            (format!("{}{channel}", of_topics("\"o*\", \"orders:1:*\"")), ""),
            (format!("{}{channel}", of_topics("\"orders\"")), "no channel serves \"orders\""),
            (hook(users), "f.toml:4: [[hook]] notices: no client has a user"),
            (hook(&format!("{users}\nquestions = [\"connect\"]")), ""),
        ] {
            let mut warnings = merged(PartialSettings::default(), &text).unwrap().warnings;
            warnings.retain(|text| text.contains("[[hook]]"));
            assert_eq!(warnings.len(), usize::from(!says.is_empty()), "{warnings:?}");
            assert!(warnings.iter().all(|text| text.contains(says)), "{warnings:?}");
        }
    }

    #[test]
    fn examples_in_the_printed_file_are_valid() {
        let text = config::text(Channels::Declared);
        let examples = text.lines().filter(|line| is_example(line)).count();
        assert_eq!(
            examples, 20,
            "admin_listen_unix, api_token, static_files, history_save, state_dir, longpoll, what a \
             channel may have"
        );
        let all: Vec<_> = text
            .lines()
            .map(|line| if is_example(line) { line.trim_start_matches('#') } else { line })
            .collect();
        // The package creates the directory.
        let folder = std::env::temp_dir();
        let all = all.join("\n").replace("/var/lib/simurgh", &folder.to_string_lossy());
        merged(PartialSettings::default(), &all).unwrap();
    }

    fn is_example(line: &str) -> bool {
        line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
    }

    #[test]
    fn printed_file_has_every_key_once_and_no_long_lines() {
        for channels in [Channels::Declared, Channels::InRust] {
            let text = config::text(channels);
            for key in keys::ALL {
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
    fn rust_application_refuses_declared_channels() {
        let text = "max_channels = 5\n[[channel]]\ntopic = \"a\"\n".to_owned();
        let file = File::parse("f.toml", text, Channels::InRust);
        let flags = PartialSettings { auth_token: Some(true), ..PartialSettings::default() };
        let refusal = Settings::merge(flags, file, Channels::InRust).unwrap_err();
        assert_eq!(refusal.0.len(), 3, "{refusal}");
        let own = config::text(Channels::InRust);
        let file = File::parse("f.toml", own, Channels::InRust);
        let settings = Settings::merge(PartialSettings::default(), file, Channels::InRust).unwrap();
        assert!(settings.declared.is_none());
    }

    #[test]
    fn contradicting_settings_are_refused_with_their_lines() {
        let flags = PartialSettings { proxy_protocol: Some(true), ..PartialSettings::default() };
        let text = "listen = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\nadmin_listen = \"127.0.0.1:1\"\n\
                    api_token = \"\"\n";
        let refusal = merged(flags, text).unwrap_err().to_string();
        for expected in [
            "--proxy-protocol: needs trusted_proxies",
            "f.toml:1: listen: 127.0.0.1:1 is listed twice",
            "f.toml:2: admin_listen: 127.0.0.1:1 is also an address of listen",
            "f.toml:3: api_token: is empty",
        ] {
            assert!(refusal.contains(expected), "{expected:?} is not in\n{refusal}");
        }
        let refusal =
            merged(PartialSettings::default(), "observer = true").unwrap_err().to_string();
        assert!(refusal.starts_with("f.toml:1: observer: needs api_token"), "{refusal}");
    }
}
