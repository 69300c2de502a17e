//! Describes every key of `simurgh.toml` and every flag of `serve` once: reader, field, values,
//! default, purpose and cost. Help, the file that `config` prints and all messages use this table.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use simurgh::CheckOrigin;
use simurgh_text::{Choice, bytes_at_least_one, duration, duration_or_zero, whole, word_or};
use simurgh_tune::{CONNECTIONS_MAX, SHARDS_MAX};
use tracing_subscriber::filter::LevelFilter;

use super::table::{self, settings};
use super::values::{self, LogFormat};

settings! {
    listen: Vec<SocketAddr> = list("ADDRESS", values::address) => listen {
        takes: "a list of addresses with ports, IPv4 or IPv6, such as [\"127.0.0.1:4000\", \
                \"[::]:4000\"]; port 0 is any free one",
        default: "[\"127.0.0.1:4000\"]",
        about: "Where to listen ([::] takes no IPv4, 0.0.0.0 does). Beyond \
                loopback, browsers may connect from this host's own pages \
                only (check_origin) and metrics move to admin_listen",
        cost: "one listening socket per address and shard",
    }
    admin_listen: Choice<SocketAddr> = one("ADDRESS", word_or("off", values::address))
        => admin_listen {
        takes: "an address with a port, or \"off\"",
        default: "\"off\"",
        about: "Where /metrics is served when listen goes beyond loopback; on loopback alone it \
                is on the same port. The observer is there too, for bearers of api_token",
        cost: "one listening socket",
    }
    shards: Choice<usize> = one("N", word_or("auto", whole(1, SHARDS_MAX))) => shards {
        takes: "a whole number from 1 to 4096, or \"auto\" for one per core",
        default: "\"auto\"",
        about: "Event loops, each one thread with its own connections and its own descriptor \
                limit: take connections / limit when that is more than cores",
        cost: "a thread and about 0.1 MB of memory each",
    }
    max_connections: Choice<usize> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Sockets at most; an upgrade beyond them gets 503 with Retry-After. There are as \
                many shards as the descriptor limit asks for then, or shards, if those are more. \
                `simurgh tune --connections N` says what else the system needs",
        cost: "some 4.5 kB for each socket that is there, nearly all of it the system's",
    }
    max_connections_per_address: Choice<u32> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections_per_address {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Sockets at most that one address has at once, of IPv6 its first 64 bits; an \
                upgrade beyond them gets 429. Behind a proxy it needs trusted_proxies: else all \
                have the address of the proxy",
        cost: "16 bytes a socket, which max_connections_per_user shares",
    }
    max_connections_per_user: Choice<u32> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections_per_user {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Sockets at most that one user has at once, by the id that a token or the \
                application gives; an upgrade beyond them gets 429. Sockets without an id are not \
                counted",
        cost: "as max_connections_per_address",
    }
    pin_shards: bool = switch("BOOL", ()) => pin_shards {
        default: "false",
        about: "Pins shard n to core n modulo cores. Useful to measure, rarely to serve",
        cost: "the system can no longer move a shard away from a busy core",
    }
    idle_timeout: Choice<Duration> = one("TIME", word_or("off", duration)) => idle_timeout {
        takes: "a time such as \"60s\", \"500ms\" or \"1m 30s\", or \"off\"",
        default: "\"60s\"",
        about: "A client that says nothing for so long is closed with 1002. Official clients send \
                a heartbeat every 30 s; Tsung sends none",
        cost: "nothing per client: a sweep over time stamps. Off, clients that vanished without a \
               word stay until the system notices",
    }
    hibernate_after: Choice<Duration> = one("TIME", word_or("off", duration)) => hibernate_after {
        takes: "a time such as \"15s\" or \"500ms\", or \"off\"",
        default: "\"15s\"",
        about: "A channel on which nothing has happened for so long, at most twice as long, is \
                asked to release what it can make again. Declared channels hold nothing of the \
                kind",
        cost: "a look at each channel in that time, while not all of them hibernate",
    }
    handshake_timeout: Duration = one("TIME", duration) => handshake_timeout {
        default: "\"10s\"",
        about: "From accept to the end of the upgrade request",
        cost: "a silent connection is held for so long",
    }
    close_timeout: Duration = one("TIME", duration) => close_timeout {
        takes: "a time such as \"5s\" or \"500ms\"",
        default: "\"3s\"",
        about: "How long a close frame waits for its answer",
        cost: "a closed connection is held for so long",
    }
    drain_time: Duration = one("TIME", duration_or_zero) => drain_time {
        takes: "a time such as \"10s\" or \"2m\"; \"0s\" is all at once",
        default: "\"10s\"",
        about: "Over how long a drain (SIGTERM) spreads the closes with 1012, so that clients do \
                not all come back at once",
        cost: "a restart takes so long",
    }
    frame_bytes_max: usize = one("SIZE", values::size_from(125)) => limits.frame_bytes_max {
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        about: "Largest frame a client may send; above, it is closed with 1009",
        cost: "nothing until a client sends as much: memory is taken as data arrives",
    }
    message_bytes_max: usize = one("SIZE", values::size_from(125)) => limits.message_bytes_max {
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        about: "Largest message, in however many frames; above, the client is closed with 1009. A \
                channel may have a limit of its own, as the built-in chat has: 64KiB, where this \
                is not given",
        cost: "as frame_bytes_max; inbound_budget bounds all of them together",
    }
    inbound_budget: usize = one("SIZE", bytes_at_least_one) => inbound_budget_bytes {
        default: "\"256MiB\"",
        about: "What all half-received messages and requests of a shard may hold together; above, \
                those who hold most for longest are closed with 1013",
        cost: "up to so much memory per shard, while messages are incomplete",
    }
    outbound_bytes_max: usize = one("SIZE", bytes_at_least_one) => outbound_bytes_max {
        default: "\"24MiB\"",
        about: "What may wait for one slow reader; above, it is cut with 1013. Half of it is the \
                largest message and broadcast. Once a quarter waits for a reader, publishers on \
                its topic are slowed to half of it in slow_after",
        cost: "up to so much memory for what waits for slow readers: broadcasts once for all of \
               them, replies and pushes for each; outbound_budget bounds it",
    }
    outbound_budget: usize = one("SIZE", bytes_at_least_one) => outbound_budget_bytes {
        default: "\"128MiB\"",
        about: "What may wait for all readers of a shard together; above, those who have kept \
                most waiting for longest are cut with 1013",
        cost: "up to so much memory per shard, while readers are slow",
    }
    slow_after: Duration = one("TIME", duration) => slow_after {
        default: "\"10s\"",
        about: "A reader that has taken less than 16 kB of what waits for it in this time is cut \
                with 1013",
        cost: "nothing while readers keep up: only who has something waiting is looked at",
    }
    message_timeout: Duration = one("TIME", duration) => message_timeout {
        default: "\"30s\"",
        about: "From the first byte of a message to its last; one that takes longer is waited for \
                while it brings 8 kB a second, else it ends with 1013",
        cost: "nothing but for messages that are not whole",
    }
    decision_timeout: Duration = one("TIME", duration) => decision_timeout {
        default: "\"30s\"",
        about: "How long an application may take to decide about a connect (then 503) or a join \
                (then the error join timed out)",
        cost: "nothing: the sweep over time stamps that finds idle clients finds these",
    }
    mailbox_bytes_max: usize = one("SIZE", bytes_at_least_one) => mailbox_bytes_max {
        default: "\"16MiB\"",
        about: "Broadcasts under way in a shard; above, publishers are not read until it is half, \
                and the publish API answers 503",
        cost: "up to so much memory per shard",
    }
    check_origin: Choice<CheckOrigin> = origins("ORIGINS", values::check_origin) => check_origin {
        takes: "\"off\", \"conn\" (the request's own scheme, host and port), a list such as \
                [\"https://example.com\", \"//*.example.com\"] (commas in a flag), \"local\" \
                (pages of this machine, and of the request's own host), or \"auto\": local while \
                listen is loopback alone, else conn",
        default: "\"auto\"",
        about: "Which pages' scripts may connect. Clients that are no browsers send no Origin and \
                are let in",
    }
    trusted_hosts: Vec<String> = comma_list("NAMES", values::host) => trusted_hosts {
        takes: "a list of names without ports such as [\"chat.example.com\"] (commas in a flag)",
        default: "[]",
        about: "While listen is loopback alone, /metrics, the observer and all paths below /api/ \
                answer requests whose Host is a name of loopback or one of these; others get 421. \
                Sockets let in pages of such a host alone: others get 403. For a proxy on this \
                machine that passes them on",
    }
    trusted_proxies: Vec<IpNet> = comma_list("NETWORKS", values::network) => trusted_proxies {
        takes: "a list of networks such as [\"10.0.0.0/8\", \"::1\"] (commas in a flag)",
        default: "[]",
        about: "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, and on loopback \
                the Host that they pass on",
    }
    proxy_protocol: bool = switch("BOOL", ()) => proxy_protocol {
        takes: "true or false; true needs trusted_proxies",
        default: "false",
        about: "Connections of trusted proxies begin with a PROXY protocol header, version 1 or 2",
    }
    api_token: String = one("TOKEN", |text| Ok(text.to_owned())) => api_token {
        takes: "a text without spaces; as a flag it is seen in the process list, so prefer the \
                file or the environment (SIMURGH_API_TOKEN)",
        default: "none",
        example: "\"a-long-random-text\"",
        about: "Bearer token of all paths below /api/, which do not exist without it, and of the \
                observer at /observer/",
    }
    observer: bool = switch("BOOL", ()) => observer {
        takes: "true or false; true needs api_token",
        default: "false",
        about: "Opens the observer at /observer/ to clients beyond this machine that bear \
                api_token. This machine may always look, with the token if there is one",
        cost: "less than a hundredth of a core while somebody looks",
    }
    http_threads: Choice<usize> = one("N", word_or("auto", whole(1, 1_024))) => http.threads {
        takes: "a whole number from 1 to 1024, or \"auto\" for one per core",
        default: "\"auto\"",
        about: "Threads of the HTTP side, each with an event loop and connections of its own",
        cost: "a thread each; idle, nothing else",
    }
    http_connections_max: usize = one("N", whole(1, 1_000_000)) => http.connections_max {
        takes: "a whole number from 1 to 1000000",
        default: "10000",
        about: "Plain HTTP connections at once; above, 503 with Retry-After. As they fill, idle \
                ones may stay for less long, and the longest idle are closed in favour of those \
                who come. Sockets are not counted, nor do they lose descriptors to them",
        cost: "some 20 kB for each that is there, half of it the system's",
    }
    http_connections_reserved: usize = one("N", whole(1, 1_000_000)) => http.connections_reserved {
        takes: "a whole number from 1 to 1000000",
        default: "100",
        about: "Places beyond http_connections_max for /healthz, /metrics, the paths of the API \
                and the observer alone, one request each; and as many on admin_listen",
        cost: "as http_connections_max, while they are taken",
    }
    http_head_bytes_max: usize = one("SIZE", values::head_bytes) => http.head_bytes_max {
        takes: "a size such as \"16KiB\" or a number of bytes, from 1024 to 65536",
        default: "\"16KiB\"",
        about: "Longest head of a request, of an upgrade as well; above, 431",
        cost: "up to so much memory for each head under way",
    }
    http_headers_max: usize = one("N", whole(1, 100)) => http.headers_max {
        takes: "a whole number from 1 to 100",
        default: "100",
        about: "Most headers of a request, of an upgrade as well; above, 431",
    }
    http_target_bytes_max: usize = one("SIZE", bytes_at_least_one) => http.target_bytes_max {
        default: "\"8KiB\"",
        about: "Longest target of a request (path and query), of an upgrade as well; above, 414",
        cost: "as http_head_bytes_max, of which it is a part",
    }
    http_body_bytes_max: usize = one("SIZE", bytes_at_least_one) => http.body_bytes_max {
        default: "\"8MB\"",
        about: "Longest body of a request; above, 413",
        cost: "up to so much memory for each body under way, where the application keeps it whole",
    }
    http_head_timeout: Duration = one("TIME", duration) => http.head_timeout {
        default: "\"10s\"",
        about: "From the first byte of a request's head to its end; above, 408. The first head of \
                a connection has handshake_timeout",
        cost: "a connection that sends slowly is held for so long",
    }
    http_body_timeout: Duration = one("TIME", duration) => http.body_timeout {
        default: "\"10s\"",
        about: "How long a body may be waited for in all, and a second more for each \
                http_body_rate_min that came; above, 408",
        cost: "a connection that sends slowly is held for so long",
    }
    http_body_rate_min: usize = one("SIZE", bytes_at_least_one) => http.body_rate_min {
        default: "\"1kB\"",
        about: "What of a body has to come in a second, in the long run",
    }
    http_write_timeout: Duration = one("TIME", duration) => http.write_timeout {
        default: "\"30s\"",
        about: "How long a client may take nothing of its answer; above, it is cut",
        cost: "an answer that is not read is held for so long",
    }
    http_idle_timeout: Duration = one("TIME", duration) => http.idle_timeout {
        default: "\"75s\"",
        about: "How long a connection may wait for its next request. Longer than a proxy's own \
                time, so that the proxy closes first (nginx: keepalive_timeout, 60 s)",
        cost: "a connection that nobody uses is held for so long",
    }
    http_requests_max: u64 = one("N", whole(1, 1_000_000_000)) => http.requests_max {
        takes: "a whole number from 1 to 1000000000",
        default: "100000",
        about: "Most requests of one connection; the answer to the last closes it",
    }
    callback_warning: Duration = one("TIME", duration) => callback_warning {
        takes: "a time such as \"10ms\"",
        default: "\"10ms\"",
        about: "A callback that holds its shard longer than this is named in the log",
    }
    log: LevelFilter = one("LEVEL", values::level) {
        takes: "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
        default: "\"info\"",
        about: "What is logged to standard error. Single connections appear at debug only",
        cost: "one thread writes; lines that come faster than it can are dropped, never waited for",
    }
    log_format: LogFormat = one("FORMAT", values::log_format) {
        takes: "\"text\" or \"json\" (one object a line)",
        default: "\"text\"",
        about: "How log lines are written",
    }
    static_files: PathBuf = one("DIRECTORY", values::directory) {
        takes: "a directory",
        default: "none",
        example: "\".\"",
        about: "Serves the files below this directory in place of the chat page, but none that is \
                hidden and none that a link leads out to",
        cost: "reads on threads of their own",
    }
    static_copies_bytes_max: Choice<usize> = one("SIZE", word_or("off", bytes_at_least_one)) {
        takes: "a size such as \"32MiB\" or a number of bytes, or \"off\"",
        default: "\"32MiB\"",
        about: "Compressed copies of static files, kept; the longest unused goes first. A file of \
                more than a quarter of this is sent as it is, as is one with none yet",
        cost: "up to so much memory, and once a file a thread's time, of half the cores at most",
    }
    max_channels: u16 = one("N", whole(1, 65_535)) {
        takes: "a whole number from 1 to 65535",
        default: "100",
        about: "Channels one client may hold on one connection; further joins are refused",
        cost: "memory for each channel that is joined",
    }
    auth_token: bool = switch("BOOL", ()) {
        default: "false",
        about: "Takes the auth token that clients send as a subprotocol off the list and answers \
                phoenix. With the table [token] it is on unless this says false; without that \
                table declared channels let everybody in all the same",
    }
    longpoll: Choice<Duration> = one("TIME", word_or("off", duration)) {
        takes: "a time in quotes, such as \"10s\", or \"off\"",
        default: "off; for the built-in chat 10s",
        example: "\"10s\"",
        about: "Serves long polling at /socket/longpoll, for clients that get no WebSocket; a poll \
                waits for so long, and a session that nobody polls for one and a half times that \
                ends",
        cost: "2 kB for each poll that waits, and a place among http_connections_max",
    }
    announce_joins_up_to: u32 = one("N", whole(0, u32::MAX)) {
        takes: "a whole number; 0 announces none",
        default: "100",
        about: "Channels with announce_join announce newcomers while a topic has at most so many \
                members, on all shards; a channel may say otherwise for itself",
        cost: "n joins to one topic cost n²/2 deliveries up to there",
    }
    presence_interval: Duration = one("TIME", duration) => presence.interval {
        takes: "a time such as \"50ms\"",
        default: "\"50ms\"",
        about: "A topic's changes of presence are told once in so long, as one diff; the first \
                after a quiet while at once",
        cost: "one broadcast a topic in so long, while there are changes",
    }
    presence_leave_delay: Duration = one("TIME", duration_or_zero) => presence.leave_delay {
        takes: "a time such as \"5s\", or 0",
        default: "0",
        about: "Members are told of a leave only after so long, unless the same key is here again \
                before, on this node or another: then it is told as an update. For rolling \
                restarts of a cluster, in which clients come back on another node",
        cost: "who has left is shown for so long",
    }
    presence_list_max: usize = one("N", whole(0, u32::MAX)) => presence.list_max {
        takes: "a whole number; 0 tells no lists",
        default: "1000",
        about: "A topic with more presences tells its members their number and a sample in place \
                of a list",
        cost: "n joins to one topic cost lists of n²/2 presences up to there",
    }
    presence_summary_interval: Duration = one("TIME", duration) => presence.summary_interval {
        takes: "a time such as \"5s\"",
        default: "\"5s\"",
        about: "How often that number is told, while it changes",
        cost: "one broadcast a large topic in so long",
    }
    presence_sample: usize = one("N", whole(0, u32::MAX)) => presence.sample {
        takes: "a whole number",
        default: "20",
        about: "Keys in the sample of a topic with more presences than presence_list_max",
        cost: "so many metas beside the number",
    }
    presence_key_bytes_max: usize = one("SIZE", values::size_from(32)) => presence.key_bytes_max {
        takes: "a size such as \"256B\" or a number of bytes, from 32",
        default: "256",
        about: "The longest key of a presence",
        cost: "so much memory a presence",
    }
    presence_meta_bytes_max: usize = one("SIZE", bytes_at_least_one) => presence.meta_bytes_max {
        default: "\"4KiB\"",
        about: "The longest meta of a presence, as JSON text",
        cost: "so much memory a presence, and in each list and diff with it",
    }
    presence_channel_entries_max: usize = one("N", whole(1, 65_535))
        => presence.channel_entries_max {
        takes: "a whole number from 1",
        default: "16",
        about: "Presences one channel of one client may have; more are refused",
        cost: "so many times the above, for each channel",
    }
    history_bytes_max: usize = one("SIZE", bytes_at_least_one) => history.bytes_max {
        default: "\"256MiB\"",
        about: "Broadcasts that are kept of all topics together, where channels declare a history; \
                above, topics that nobody has used for long forget their older half",
        cost: "up to so much memory, as it is needed, and as much again for the topics themselves",
    }
    history_replay_count: usize = one("N", whole(0, u32::MAX)) => history.replay_count {
        takes: "a whole number",
        default: "1000",
        about: "Broadcasts that a client is given which comes back; who has missed more gets the \
                newest, and is told so",
        cost: "as many messages at once to each",
    }
    history_replay_bytes: usize = one("SIZE", bytes_at_least_one) => history.replay_bytes {
        default: "\"1MiB\"",
        about: "Bytes of broadcasts that a client is given which comes back",
        cost: "as many bytes at once to each; once for all who have missed the same",
    }
    history_save: PathBuf = one("FILE", values::file) => history_save {
        takes: "the path of a file in a folder that the server may write to",
        default: "none",
        example: "\"/var/lib/simurgh/history\"",
        about: "Keeps histories over a planned restart: written at the end of a drain (SIGTERM), \
                read at the next start and removed. A crash leaves none, and clients are told",
        cost: "a file of what is kept, for as long as no server runs",
    }
}

/// The setting that can be given in an environment variable, and the variable.
const FROM_ENVIRONMENT: (&str, &str) = ("api_token", "SIMURGH_API_TOKEN");

impl clap::FromArgMatches for PartialSettings {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        ALL.iter().for_each(|key| key.take(&mut settings, matches));
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for PartialSettings {
    /// The flags of all settings, with help from the table.
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(ALL.iter().map(|key| {
            let default = match key.default.trim_matches(['"', '[', ']']) {
                "" => "none",
                default => default,
            };
            let first = key.about.split(". ").next().unwrap_or(key.about);
            let long = format!(
                "{}. [default: {default}]\n\nTakes {}.\nCost: {}.",
                key.about, key.takes, key.cost
            );
            let flag = key.flag().long(key.name.replace('_', "-"));
            let flag = flag.help(format!("{first} [default: {default}]")).long_help(long);
            match FROM_ENVIRONMENT {
                (name, variable) if name == key.name => flag.env(variable).hide_env_values(true),
                _ => flag,
            }
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}
