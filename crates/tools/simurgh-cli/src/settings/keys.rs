//! Describes every key of `simurgh.toml` and every flag of `serve` once: reader, field, values,
//! default, purpose and cost. Help, the file that `config` prints and all messages use this table.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use simurgh::{CheckOrigin, Compress};
use simurgh_text::{Choice, bytes_at_least_one, duration, duration_or_zero, whole, word_or};
use simurgh_tune::{CONNECTIONS_MAX, SHARDS_MAX};
use tracing_subscriber::filter::LevelFilter;

use super::table::{self, settings};
use super::values::{self, LogFormat};

settings! {
    listen: Vec<SocketAddr> = list("ADDRESS", values::address) => listen {
        takes: "a list of addresses with ports such as [\"127.0.0.1:4000\", \"[::]:4000\"]; port \
                0 takes any free port",
        default: "[\"127.0.0.1:4000\"]",
        about: "Addresses to listen on; 0.0.0.0 is all of IPv4, [::] all of IPv6. Beyond \
                loopback, only pages of this host may connect (check_origin), and /metrics moves \
                to admin_listen",
        cost: "one listening socket per address and shard",
    }
    admin_listen: Choice<SocketAddr> = one("ADDRESS", word_or("off", values::address))
        => admin_listen {
        takes: "an address with a port, or \"off\"",
        default: "\"off\"",
        about: "Address of /metrics if listen goes beyond loopback; on loopback /metrics is on \
                the same port. It also serves the observer to clients that have api_token",
        cost: "one listening socket",
    }
    listen_unix: Vec<PathBuf> = list("FILE", values::file) => listen_unix {
        takes: "a list of paths in directories that the server can write to",
        default: "[]",
        about: "Unix sockets to listen on, for a proxy on this machine. Owner and group may \
                connect. Their clients count as 127.0.0.1, unless a PROXY header names them",
        cost: "one listening socket each",
    }
    admin_listen_unix: PathBuf = one("FILE", values::file) => admin_listen_unix {
        takes: "a path in a directory that the server can write to",
        default: "none",
        example: "\"/var/lib/simurgh/admin.sock\"",
        about: "Unix socket for /metrics and the observer, beside admin_listen or in its place",
        cost: "one listening socket",
    }
    shards: Choice<usize> = one("N", word_or("auto", whole(1, SHARDS_MAX))) => shards {
        takes: "a whole number from 1 to 4096, or \"auto\" for one per core",
        default: "\"auto\"",
        about: "Threads that hold the connections. Each shard has its own connections and its own \
                descriptor limit; use more shards than cores if connections / limit is higher",
        cost: "a thread and about 0.1 MB of memory per shard",
    }
    pin_shards: bool = switch("BOOL", ()) => pin_shards {
        default: "false",
        about: "Pins shard n to core n modulo the number of cores. Useful to measure, rarely in \
                production",
        cost: "the kernel cannot move a shard away from a busy core",
    }
    max_connections: Choice<usize> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Maximum number of sockets. Above, the server answers upgrades with 503 and \
                Retry-After. The server starts more shards if the descriptor limit requires it. \
                `simurgh tune --connections N` shows what else the system needs",
        cost: "about 4.5 kB per open socket, nearly all of it in the kernel",
    }
    max_connections_per_address: Choice<u32> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections_per_address {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Maximum concurrent sockets per client address (per /64 network for IPv6). Above, \
                upgrades get 429. Behind a proxy set trusted_proxies, or all clients share the \
                address of the proxy",
        cost: "16 bytes per socket, shared with max_connections_per_user",
    }
    max_connections_per_user: Choice<u32> = one("N", word_or("off", whole(1, CONNECTIONS_MAX)))
        => max_connections_per_user {
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        about: "Maximum concurrent sockets per user, by the id from the token or the application. \
                Above, upgrades get 429. Sockets without an id are not counted",
        cost: "as max_connections_per_address",
    }
    idle_timeout: Choice<Duration> = one("TIME", word_or("off", duration)) => idle_timeout {
        takes: "a time such as \"60s\", \"500ms\" or \"1m 30s\", or \"off\"",
        default: "\"60s\"",
        about: "Closes a client with 1002 if it sends nothing in this time. Official clients send \
                a heartbeat every 30 s; Tsung sends none",
        cost: "nothing per client; with \"off\", a client that vanished stays until the kernel \
               notices",
    }
    handshake_timeout: Duration = one("TIME", duration) => handshake_timeout {
        default: "\"10s\"",
        about: "Time from accepting a connection to the end of its upgrade request",
        cost: "a silent connection stays open this long",
    }
    close_timeout: Duration = one("TIME", duration) => close_timeout {
        takes: "a time such as \"5s\" or \"500ms\"",
        default: "\"3s\"",
        about: "Time to wait for the answer to a close frame",
        cost: "a closed connection stays this long",
    }
    drain_time: Duration = one("TIME", duration_or_zero) => drain_time {
        takes: "a time such as \"10s\" or \"2m\"; \"0s\" is all at once",
        default: "\"10s\"",
        about: "Time over which a drain (SIGTERM, or another process takes over) spreads its \
                closes with 1012. Clients then do not all reconnect at once",
        cost: "a restart takes this long",
    }
    frame_bytes_max: usize = one("SIZE", values::size_from(125)) => limits.frame_bytes_max {
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        about: "Largest frame that a client may send. A larger one closes the connection with \
                1009",
        cost: "nothing until a client sends as much: memory is allocated as data arrives",
    }
    message_bytes_max: usize = one("SIZE", values::size_from(125)) => limits.message_bytes_max {
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        about: "Largest message, in any number of frames. A larger one closes the connection with \
                1009. A channel may set its own limit; the built-in chat has 64KiB unless this \
                key is set",
        cost: "as frame_bytes_max; inbound_budget limits all messages together",
    }
    compress: Compress = one("MESSAGES", values::compress) {
        takes: "\"off\", \"text\", or \"all\" (binary messages, too)",
        default: "\"off\"",
        about: "Messages of 256 bytes to 64 KiB that are compressed for clients that offer \
                permessage-deflate. A channel may set its own `compress`. Leave it off where \
                messages have a secret beside text that others choose: their length may give it \
                away (BREACH)",
        cost: "10 microseconds per kB, for a broadcast once per shard; 310 kB per shard",
    }
    message_timeout: Duration = one("TIME", duration) => message_timeout {
        default: "\"30s\"",
        about: "Time from the first byte of a message to its last. A slower one may continue \
                while it brings 8 KiB per second, else the connection closes with 1013",
        cost: "nothing for messages that arrive whole",
    }
    inbound_budget: usize = one("SIZE", bytes_at_least_one) => inbound_budget_bytes {
        default: "\"256MiB\"",
        about: "Memory per shard for incomplete messages and requests. Above, the server closes \
                the clients that hold the most for the longest, with 1013",
        cost: "up to this much memory per shard while messages are incomplete",
    }
    outbound_bytes_max: usize = one("SIZE", bytes_at_least_one) => outbound_bytes_max {
        default: "\"24MiB\"",
        about: "Maximum queue of one slow client. Above, the server closes it with 1013. Half of \
                it is the largest message and broadcast. At a quarter, publishers on the topics \
                of this client are slowed: to half of this size per slow_after",
        cost: "up to this much memory for slow clients: broadcasts once for all of them, replies \
               and pushes for each; outbound_budget limits the sum",
    }
    outbound_budget: usize = one("SIZE", bytes_at_least_one) => outbound_budget_bytes {
        default: "\"128MiB\"",
        about: "Memory per shard for the queues of all slow clients. Above, the server closes the \
                clients with the longest and oldest queues, with 1013",
        cost: "up to this much memory per shard while clients are slow",
    }
    slow_after: Duration = one("TIME", duration) => slow_after {
        default: "\"10s\"",
        about: "Closes a client with 1013 if it reads less than 16 KiB of its queue in this time",
        cost: "nothing while clients keep up",
    }
    mailbox_bytes_max: usize = one("SIZE", bytes_at_least_one) => mailbox_bytes_max {
        default: "\"16MiB\"",
        about: "Memory per shard for broadcasts on their way. Above, the server reads no \
                publishers until it is half empty, and the publish API answers 503",
        cost: "up to this much memory per shard",
    }
    check_origin: Choice<CheckOrigin> = origins("ORIGINS", values::check_origin) => check_origin {
        takes: "\"off\", \"conn\" (scheme, host and port of the request), a list such as \
                [\"https://example.com\", \"//*.example.com\"] (commas in a flag), \"local\" \
                (pages of this machine and of the request's own host), or \"auto\": local if \
                listen is loopback only, else conn",
        default: "\"auto\"",
        about: "Pages that may connect, by their Origin header. Clients other than browsers send \
                no Origin and may connect",
    }
    trusted_hosts: Vec<String> = comma_list("NAMES", values::host) => trusted_hosts {
        takes: "a list of names without ports such as [\"chat.example.com\"] (commas in a flag)",
        default: "[]",
        about: "Names that a proxy on this machine passes on as Host. If listen is loopback only, \
                /metrics, the observer and /api/ answer only requests whose Host is a loopback \
                name or one of these (else 421), and sockets accept only pages of such hosts \
                (else 403)",
    }
    trusted_proxies: Vec<IpNet> = comma_list("NETWORKS", values::network) => trusted_proxies {
        takes: "a list of networks such as [\"10.0.0.0/8\", \"::1\"] (commas in a flag)",
        default: "[]",
        about: "Proxies whose X-Forwarded-For and X-Forwarded-Proto the server believes. On \
                loopback it also believes the Host that they pass on",
    }
    proxy_protocol: bool = switch("BOOL", ()) => proxy_protocol {
        takes: "true or false; true needs trusted_proxies",
        default: "false",
        about: "Expects a PROXY protocol header, version 1 or 2, on connections of trusted \
                proxies",
    }
    api_token: String = one("TOKEN", |text| Ok(text.to_owned())) => api_token {
        takes: "a text without spaces. The process list shows flags, so prefer the file or the \
                environment (SIMURGH_API_TOKEN)",
        default: "none",
        example: "\"a-long-random-text\"",
        about: "Bearer token of /api/ and of the observer. Without it /api/ does not exist",
    }
    observer: bool = switch("BOOL", ()) => observer {
        takes: "true or false; true needs api_token",
        default: "false",
        about: "Opens the observer (/observer/) to other machines, for clients that have \
                api_token. This machine may always use it, with the token if one is set",
        cost: "less than a hundredth of a core while it is open",
    }
    http_threads: Choice<usize> = one("N", word_or("auto", whole(1, 1_024))) => http.threads {
        takes: "a whole number from 1 to 1024, or \"auto\" for one per core",
        default: "\"auto\"",
        about: "Threads for HTTP requests, each with its own connections",
        cost: "one thread each, idle without requests",
    }
    http_connections_max: usize = one("N", whole(1, 1_000_000)) => http.connections_max {
        takes: "a whole number from 1 to 1000000",
        default: "10000",
        about: "Maximum concurrent HTTP connections, sockets not counted. Above, the server \
                answers 503 with Retry-After. As the number grows, idle connections close sooner, \
                the longest idle first",
        cost: "about 20 kB per open connection, half of it in the kernel",
    }
    http_connections_reserved: usize = one("N", whole(1, 1_000_000)) => http.connections_reserved {
        takes: "a whole number from 1 to 1000000",
        default: "100",
        about: "Connections beyond http_connections_max for /healthz, /metrics, /api/ and the \
                observer, one request each. admin_listen has as many",
        cost: "as http_connections_max, while they are in use",
    }
    http_head_bytes_max: usize = one("SIZE", values::head_bytes) => http.head_bytes_max {
        takes: "a size such as \"16KiB\" or a number of bytes, from 1024 to 65536",
        default: "\"16KiB\"",
        about: "Longest head of a request or an upgrade. Above: 431",
        cost: "up to this much memory per head in progress",
    }
    http_headers_max: usize = one("N", whole(1, 100)) => http.headers_max {
        takes: "a whole number from 1 to 100",
        default: "100",
        about: "Maximum number of headers of a request or an upgrade. Above: 431",
    }
    http_target_bytes_max: usize = one("SIZE", bytes_at_least_one) => http.target_bytes_max {
        default: "\"8KiB\"",
        about: "Longest target (path and query) of a request or an upgrade. Above: 414",
        cost: "included in http_head_bytes_max",
    }
    http_body_bytes_max: usize = one("SIZE", bytes_at_least_one) => http.body_bytes_max {
        default: "\"8MB\"",
        about: "Longest body of a request. Above: 413",
        cost: "up to this much memory per body in progress, if the application reads it whole",
    }
    http_head_timeout: Duration = one("TIME", duration) => http.head_timeout {
        default: "\"10s\"",
        about: "Time from the first byte of a request's head to its end. Above: 408. The first \
                head of a connection has handshake_timeout",
        cost: "a slow connection stays open this long",
    }
    http_body_timeout: Duration = one("TIME", duration) => http.body_timeout {
        default: "\"10s\"",
        about: "Time to receive a body. One more second for each http_body_rate_min received. \
                Above: 408",
        cost: "a slow connection stays open this long",
    }
    http_body_rate_min: usize = one("SIZE", bytes_at_least_one) => http.body_rate_min {
        default: "\"1kB\"",
        about: "Minimum rate per second at which a body must arrive, on average",
    }
    http_write_timeout: Duration = one("TIME", duration) => http.write_timeout {
        default: "\"30s\"",
        about: "Time in which a client must read a part of its response. Above, the connection \
                closes",
        cost: "an unread response stays in memory this long",
    }
    http_idle_timeout: Duration = one("TIME", duration) => http.idle_timeout {
        default: "\"75s\"",
        about: "Time to wait for the next request of a connection. Make it longer than the \
                proxy's own timeout, so that the proxy closes first (nginx: keepalive_timeout, 60 \
                s)",
        cost: "an unused connection stays open this long",
    }
    http_requests_max: u64 = one("N", whole(1, 1_000_000_000)) => http.requests_max {
        takes: "a whole number from 1 to 1000000000",
        default: "100000",
        about: "Maximum number of requests per connection. The last response closes it",
    }
    static_files: PathBuf = one("DIRECTORY", values::directory) {
        takes: "a directory",
        default: "none",
        example: "\".\"",
        about: "Serves the files of this directory instead of the chat page. Hidden files and \
                links that lead out of the directory are not served",
        cost: "files are read by separate threads",
    }
    static_copies_bytes_max: Choice<usize> = one("SIZE", word_or("off", bytes_at_least_one)) {
        takes: "a size such as \"32MiB\" or a number of bytes, or \"off\"",
        default: "\"32MiB\"",
        about: "Memory for compressed copies of static files. The least recently used copy is \
                removed first. Files larger than a quarter of this are sent uncompressed",
        cost: "up to this much memory; each file is compressed once, on up to half of the cores",
    }
    log: LevelFilter = one("LEVEL", values::level) {
        takes: "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
        default: "\"info\"",
        about: "Log level, on standard error. Single connections appear at debug only",
        cost: "one thread writes; it drops lines that come faster than it can write",
    }
    log_format: LogFormat = one("FORMAT", values::log_format) {
        takes: "\"text\" or \"json\" (one object per line)",
        default: "\"text\"",
        about: "Format of log lines",
    }
    callback_warning: Duration = one("TIME", duration) => callback_warning {
        takes: "a time such as \"10ms\"",
        default: "\"10ms\"",
        about: "Logs callbacks that block their shard longer than this",
    }
    hibernate_after: Choice<Duration> = one("TIME", word_or("off", duration)) => hibernate_after {
        takes: "a time such as \"15s\" or \"500ms\", or \"off\"",
        default: "\"15s\"",
        about: "Asks an idle channel to release memory after this time, at most twice this time. \
                Declared channels have none to release",
        cost: "a look at each channel in this time, while some are not hibernating",
    }
    decision_timeout: Duration = one("TIME", duration) => decision_timeout {
        default: "\"30s\"",
        about: "Time in which an application must decide about a connect or a join. Above: 503 \
                for a connect, the error `join timed out` for a join",
    }
    max_channels: u16 = one("N", whole(1, 65_535)) {
        takes: "a whole number from 1 to 65535",
        default: "100",
        about: "Maximum number of channels per connection. Further joins are refused",
        cost: "memory for each joined channel",
    }
    auth_token: bool = switch("BOOL", ()) {
        default: "false",
        about: "Accepts the auth token that clients send as a subprotocol, and answers `phoenix`. \
                With [token] the default is true. Without [token] the declared channels admit \
                everybody even so",
    }
    longpoll: Choice<Duration> = one("TIME", word_or("off", duration)) {
        takes: "a time in quotes, such as \"10s\", or \"off\"",
        default: "off; for the built-in chat 10s",
        example: "\"10s\"",
        about: "Serves long polling at /socket/longpoll, for clients that cannot open a \
                WebSocket. A poll waits this long; a session ends after one and a half times as \
                long without a poll",
        cost: "2 kB per waiting poll, and one of http_connections_max",
    }
    announce_joins_up_to: u32 = one("N", whole(0, u32::MAX)) {
        takes: "a whole number; 0 announces none",
        default: "100",
        about: "Members per topic up to which announce_join announces joins. Counted on all \
                shards; a channel may set its own number",
        cost: "n joins to one topic cost n²/2 deliveries up to this number",
    }
    presence_interval: Duration = one("TIME", duration) => presence.interval {
        takes: "a time such as \"50ms\"",
        default: "\"50ms\"",
        about: "How often a topic sends presence changes. All changes in the interval are sent as \
                one diff; the first change after a quiet interval is sent immediately",
        cost: "one broadcast per topic and interval, while there are changes",
    }
    presence_leave_delay: Duration = one("TIME", duration_or_zero) => presence.leave_delay {
        takes: "a time such as \"5s\", or 0",
        default: "0",
        about: "Delays leaves by this time. If the key returns before, on any node, members \
                receive an update instead. Useful for rolling restarts, in which clients \
                reconnect to another node",
        cost: "a user who left stays in the list this long",
    }
    presence_list_max: usize = one("N", whole(0, u32::MAX)) => presence.list_max {
        takes: "a whole number; 0 sends no lists",
        default: "1000",
        about: "Presences per topic up to which members receive the list. Above, they receive the \
                number and a sample",
        cost: "n joins to one topic cost lists of n²/2 presences up to this number",
    }
    presence_summary_interval: Duration = one("TIME", duration) => presence.summary_interval {
        takes: "a time such as \"5s\"",
        default: "\"5s\"",
        about: "How often a topic above presence_list_max sends its number, while it changes",
        cost: "one broadcast per large topic and interval",
    }
    presence_sample: usize = one("N", whole(0, u32::MAX)) => presence.sample {
        takes: "a whole number",
        default: "20",
        about: "Number of keys in that sample",
        cost: "as many metas in each summary",
    }
    presence_key_bytes_max: usize = one("SIZE", values::size_from(32)) => presence.key_bytes_max {
        takes: "a size such as \"256B\" or a number of bytes, at least 32",
        default: "256",
        about: "Longest key of a presence",
        cost: "up to this much memory per presence",
    }
    presence_meta_bytes_max: usize = one("SIZE", bytes_at_least_one) => presence.meta_bytes_max {
        default: "\"4KiB\"",
        about: "Longest meta of a presence, as JSON",
        cost: "up to this much memory per presence, and in each list and diff",
    }
    presence_channel_entries_max: usize = one("N", whole(1, 65_535))
        => presence.channel_entries_max {
        takes: "a whole number of 1 or more",
        default: "16",
        about: "Maximum number of presences of one client in one channel. More are refused",
        cost: "this many presences for each channel",
    }
    history_bytes_max: usize = one("SIZE", bytes_at_least_one) => history.bytes_max {
        default: "\"256MiB\"",
        about: "Memory for the histories of all topics. Above, topics that were not used lately \
                lose their older half",
        cost: "up to this much memory, and as much again for the topics themselves",
    }
    history_replay_count: usize = one("N", whole(0, u32::MAX)) => history.replay_count {
        takes: "a whole number",
        default: "1000",
        about: "Maximum number of messages that a client receives when it resumes. If it missed \
                more, it receives the newest and a gap",
        cost: "as many messages at once per client",
    }
    history_replay_bytes: usize = one("SIZE", bytes_at_least_one) => history.replay_bytes {
        default: "\"1MiB\"",
        about: "Maximum bytes of messages that a client receives when it resumes",
        cost: "as many bytes at once per client, once for clients that missed the same",
    }
    history_save: PathBuf = one("FILE", values::file) => history_save {
        takes: "the path of a file in a directory that the server can write to",
        default: "none",
        example: "\"/var/lib/simurgh/history\"",
        about: "File that keeps histories over a planned restart. Written at the end of a drain \
                (SIGTERM), read and removed at the next start. After a crash clients receive the \
                gap `epoch`",
        cost: "a file of the size of the histories while no server runs",
    }
    state_dir: PathBuf = one("DIRECTORY", values::directory) => state_dir {
        takes: "the path of a directory that the server can write to",
        default: "none",
        example: "\"/var/lib/simurgh\"",
        about: "Directory that keeps the list of blocked users and revoked tokens over restarts, \
                and on a single node the cached answers of hooks over planned ones",
        cost: "a write of the whole list for each change, about 100 bytes per entry",
    }
}

/// The sections of help and file: the first key and the title.
const SECTIONS: [(&str, &str); 9] = [
    ("listen", "Addresses and shards"),
    ("max_connections", "Connections"),
    ("frame_bytes_max", "Messages and memory"),
    ("check_origin", "Access and proxies"),
    ("http_threads", "HTTP"),
    ("log", "Logging"),
    ("hibernate_after", "Channels"),
    ("presence_interval", "Presence"),
    ("history_bytes_max", "History"),
];

/// The title of the section that begins with this key.
pub(crate) fn section(first: &str) -> Option<&'static str> {
    SECTIONS.iter().find(|(key, _)| *key == first).map(|(_, title)| *title)
}

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
        let mut heading = "";
        command.args(ALL.iter().map(|key| {
            heading = section(key.name).unwrap_or(heading);
            let default = match key.default.trim_matches(['"', '[', ']']) {
                "" => "none",
                default => default,
            };
            let first = key.about.split(". ").next().unwrap_or(key.about);
            let long = format!("{}. [default: {default}]\n\n{}", key.about, key.details("\n"));
            let flag = key.flag().long(key.name.replace('_', "-")).help_heading(heading);
            flag.help(format!("{first} [default: {default}]")).long_help(long)
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}
