//! Every key of `simurgh.toml` and every flag of `serve`, described once: what it is for, what it
//! takes, its default, its cost. Help, the file that `config` prints and the errors all speak from
//! this table.

mod history;
mod key;
mod presence;
mod read;

use crate::units;
pub(crate) use key::{Key, Value, Wrong};
use read::{boolean, list, scalar};

/// All keys, in the order of [`Layer`](crate::layer::Layer).
pub(crate) const ALL: &[Key] = &all();

const PARTS: [&[Key]; 3] = [GENERAL, presence::KEYS, history::KEYS];

const fn all() -> [Key; GENERAL.len() + presence::KEYS.len() + history::KEYS.len()] {
    let mut all = [GENERAL[0]; GENERAL.len() + presence::KEYS.len() + history::KEYS.len()];
    let (mut at, mut part, mut before) = (0, 0, 0);
    while at < all.len() {
        while at - before == PARTS[part].len() {
            (before, part) = (at, part + 1);
        }
        all[at] = PARTS[part][at - before];
        at += 1;
    }
    all
}

const GENERAL: &[Key] = &[
    Key {
        name: "listen",
        takes: "a list of addresses with ports, IPv4 or IPv6, such as [\"127.0.0.1:4000\", \
                \"[::]:4000\"]; port 0 is any free one",
        default: "[\"127.0.0.1:4000\"]",
        example: None,
        about: "Where to listen. Beyond loopback, browsers may connect from this host's own pages \
                only (check_origin) and metrics move to admin_listen",
        cost: "one listening socket per address and shard",
        set: |layer, value| list(&mut layer.listen, value, units::address),
    },
    Key {
        name: "admin_listen",
        takes: "an address with a port, or \"off\"",
        default: "\"off\"",
        example: None,
        about: "Where /metrics is served when listen goes beyond loopback; on loopback alone it \
                is on the same port. The observer is there too, for bearers of api_token",
        cost: "one listening socket",
        set: |layer, value| scalar(&mut layer.admin_listen, value, units::address_or_off),
    },
    Key {
        name: "shards",
        takes: "a whole number from 1 to 4096, or \"auto\" for one per core",
        default: "\"auto\"",
        example: None,
        about: "Event loops, each one thread with its own connections and its own descriptor \
                limit: take connections / limit when that is more than cores",
        cost: "a thread and about 0.1 MB of memory each",
        set: |layer, value| scalar(&mut layer.shards, value, units::shards),
    },
    Key {
        name: "max_connections",
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        example: None,
        about: "Sockets at most; an upgrade beyond them gets 503 with Retry-After. There are as \
                many shards as the descriptor limit asks for then, or shards, if those are more. \
                `simurgh tune --connections N` says what else the system needs",
        cost: "some 4.5 kB for each socket that is there, nearly all of it the system's",
        set: |layer, value| scalar(&mut layer.max_connections, value, units::connections),
    },
    Key {
        name: "max_connections_per_address",
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        example: None,
        about: "Sockets at most that one address has at once, of IPv6 its first 64 bits; an \
                upgrade beyond them gets 429. Behind a proxy it needs trusted_proxies: else all \
                have the address of the proxy",
        cost: "16 bytes a socket, which max_connections_per_user shares",
        set: |layer, value| {
            scalar(&mut layer.max_connections_per_address, value, units::connections_of_one)
        },
    },
    Key {
        name: "max_connections_per_user",
        takes: "a whole number from 1 to 80000000, or \"off\"",
        default: "\"off\"",
        example: None,
        about: "Sockets at most that one user has at once, by the id that a token or the \
                application gives; an upgrade beyond them gets 429. Sockets without an id are not \
                counted",
        cost: "as max_connections_per_address",
        set: |layer, value| {
            scalar(&mut layer.max_connections_per_user, value, units::connections_of_one)
        },
    },
    Key {
        name: "pin_shards",
        takes: "true or false",
        default: "false",
        example: None,
        about: "Pins shard n to core n modulo cores. Useful to measure, rarely to serve",
        cost: "the system can no longer move a shard away from a busy core",
        set: |layer, value| boolean(&mut layer.pin_shards, value),
    },
    Key {
        name: "idle_timeout",
        takes: "a time such as \"60s\", \"500ms\" or \"1m 30s\", or \"off\"",
        default: "\"60s\"",
        example: None,
        about: "A client that says nothing for so long is closed with 1002. Official clients send \
                a heartbeat every 30 s; Tsung sends none",
        cost: "nothing per client: a sweep over time stamps. Off, clients that vanished without a \
               word stay until the system notices",
        set: |layer, value| scalar(&mut layer.idle_timeout, value, units::duration_or_off),
    },
    Key {
        name: "hibernate_after",
        takes: "a time such as \"15s\" or \"500ms\", or \"off\"",
        default: "\"15s\"",
        example: None,
        about: "A channel on which nothing has happened for so long, at most twice as long, is \
                asked to release what it can make again. Declared channels hold nothing of the \
                kind",
        cost: "a look at each channel in that time, while not all of them hibernate",
        set: |layer, value| scalar(&mut layer.hibernate_after, value, units::duration_or_off),
    },
    Key {
        name: "handshake_timeout",
        takes: "a time such as \"10s\" or \"500ms\"",
        default: "\"10s\"",
        example: None,
        about: "From accept to the end of the upgrade request",
        cost: "a silent connection is held for so long",
        set: |layer, value| scalar(&mut layer.handshake_timeout, value, units::duration),
    },
    Key {
        name: "close_timeout",
        takes: "a time such as \"5s\" or \"500ms\"",
        default: "\"3s\"",
        example: None,
        about: "How long a close frame waits for its answer",
        cost: "a closed connection is held for so long",
        set: |layer, value| scalar(&mut layer.close_timeout, value, units::duration),
    },
    Key {
        name: "drain_time",
        takes: "a time such as \"10s\" or \"2m\"; \"0s\" is all at once",
        default: "\"10s\"",
        example: None,
        about: "Over how long a drain (SIGTERM) spreads the closes with 1012, so that clients do \
                not all come back at once",
        cost: "a restart takes so long",
        set: |layer, value| scalar(&mut layer.drain_time, value, units::duration_or_zero),
    },
    Key {
        name: "frame_bytes_max",
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        example: None,
        about: "Largest frame a client may send; above, it is closed with 1009",
        cost: "nothing until a client sends as much: memory is taken as data arrives",
        set: |layer, value| scalar(&mut layer.frame_bytes_max, value, units::message_bytes),
    },
    Key {
        name: "message_bytes_max",
        takes: "a size such as \"64KiB\", \"10MB\" or a number of bytes, at least 125",
        default: "\"10MB\"",
        example: None,
        about: "Largest message, in however many frames; above, the client is closed with 1009. A \
                channel may have a limit of its own, as the built-in chat has: 64KiB, where this \
                is not given",
        cost: "as frame_bytes_max; inbound_budget bounds all of them together",
        set: |layer, value| scalar(&mut layer.message_bytes_max, value, units::message_bytes),
    },
    Key {
        name: "inbound_budget",
        takes: "a size such as \"256MiB\" or a number of bytes",
        default: "\"256MiB\"",
        example: None,
        about: "What all half-received messages and requests of a shard may hold together; above, \
                those who hold most for longest are closed with 1013",
        cost: "up to so much memory per shard, while messages are incomplete",
        set: |layer, value| scalar(&mut layer.inbound_budget, value, units::bytes),
    },
    Key {
        name: "outbound_bytes_max",
        takes: "a size such as \"24MiB\" or a number of bytes",
        default: "\"24MiB\"",
        example: None,
        about: "What may wait for one slow reader; above, it is cut with 1013. Half of it is the \
                largest message and broadcast. Once a quarter waits for a reader, publishers on \
                its topic are slowed to half of it in slow_after",
        cost: "up to so much memory for what waits for slow readers: broadcasts once for all of \
               them, replies and pushes for each; outbound_budget bounds it",
        set: |layer, value| scalar(&mut layer.outbound_bytes_max, value, units::bytes),
    },
    Key {
        name: "outbound_budget",
        takes: "a size such as \"128MiB\" or a number of bytes",
        default: "\"128MiB\"",
        example: None,
        about: "What may wait for all readers of a shard together; above, those who have kept \
                most waiting for longest are cut with 1013",
        cost: "up to so much memory per shard, while readers are slow",
        set: |layer, value| scalar(&mut layer.outbound_budget, value, units::bytes),
    },
    Key {
        name: "slow_after",
        takes: "a time such as \"10s\" or \"500ms\"",
        default: "\"10s\"",
        example: None,
        about: "A reader that has taken less than 16 kB of what waits for it in this time is cut \
                with 1013",
        cost: "nothing while readers keep up: only who has something waiting is looked at",
        set: |layer, value| scalar(&mut layer.slow_after, value, units::duration),
    },
    Key {
        name: "message_timeout",
        takes: "a time such as \"30s\" or \"500ms\"",
        default: "\"30s\"",
        example: None,
        about: "From the first byte of a message to its last; one that takes longer is waited for \
                while it brings 8 kB a second, else it ends with 1013",
        cost: "nothing but for messages that are not whole",
        set: |layer, value| scalar(&mut layer.message_timeout, value, units::duration),
    },
    Key {
        name: "decision_timeout",
        takes: "a time such as \"30s\" or \"500ms\"",
        default: "\"30s\"",
        example: None,
        about: "How long an application may take to decide about a connect (then 503) or a join \
                (then the error join timed out)",
        cost: "nothing: the sweep over time stamps that finds idle clients finds these",
        set: |layer, value| scalar(&mut layer.decision_timeout, value, units::duration),
    },
    Key {
        name: "mailbox_bytes_max",
        takes: "a size such as \"16MiB\" or a number of bytes",
        default: "\"16MiB\"",
        example: None,
        about: "Broadcasts under way in a shard; above, publishers are not read until it is half, \
                and the publish API answers 503",
        cost: "up to so much memory per shard",
        set: |layer, value| scalar(&mut layer.mailbox_bytes_max, value, units::bytes),
    },
    Key {
        name: "check_origin",
        takes: "\"off\", \"conn\" (the request's own scheme, host and port), a list such as \
                [\"https://example.com\", \"//*.example.com\"] (commas in a flag), \"local\" \
                (pages of this machine, and of the request's own host), or \"auto\": local while \
                listen is loopback alone, else conn",
        default: "\"auto\"",
        example: None,
        about: "Which pages' scripts may connect. Clients that are no browsers send no Origin and \
                are let in",
        cost: "nothing",
        set: read::origins,
    },
    Key {
        name: "trusted_hosts",
        takes: "a list of names without ports such as [\"chat.example.com\"] (commas in a flag)",
        default: "[]",
        example: None,
        about: "While listen is loopback alone, /metrics, the observer, POST /api/broadcast and \
                GET /api/presence answer requests whose Host is a name of loopback or one of \
                these; others get 421. For a proxy on this machine that passes them on",
        cost: "nothing",
        set: |layer, value| list(&mut layer.trusted_hosts, value, units::host),
    },
    Key {
        name: "trusted_proxies",
        takes: "a list of networks such as [\"10.0.0.0/8\", \"::1\"] (commas in a flag)",
        default: "[]",
        example: None,
        about: "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed",
        cost: "nothing",
        set: |layer, value| list(&mut layer.trusted_proxies, value, units::network),
    },
    Key {
        name: "proxy_protocol",
        takes: "true or false; true needs trusted_proxies",
        default: "false",
        example: None,
        about: "Connections of trusted proxies begin with a PROXY protocol header, version 1 or 2",
        cost: "nothing",
        set: |layer, value| boolean(&mut layer.proxy_protocol, value),
    },
    Key {
        name: "api_token",
        takes: "a text without spaces; as a flag it is seen in the process list, so prefer the \
                file or the environment (SIMURGH_API_TOKEN)",
        default: "none",
        example: Some("\"a-long-random-text\""),
        about: "Bearer token of POST /api/broadcast and GET /api/presence, whose paths do not \
                exist without, and of the observer at /observer/",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.api_token, value, |text| Ok(text.to_owned())),
    },
    Key {
        name: "observer",
        takes: "true or false; true needs api_token",
        default: "false",
        example: None,
        about: "Opens the observer at /observer/ to clients beyond this machine that bear \
                api_token. This machine may always look, with the token if there is one",
        cost: "less than a hundredth of a core while somebody looks",
        set: |layer, value| boolean(&mut layer.observer, value),
    },
    Key {
        name: "http_threads",
        takes: "a whole number from 1 to 1024, or \"auto\" for one per core",
        default: "\"auto\"",
        example: None,
        about: "Threads of the HTTP side, each with an event loop and connections of its own",
        cost: "a thread each; idle, nothing else",
        set: |layer, value| scalar(&mut layer.http_threads, value, units::http_threads),
    },
    Key {
        name: "http_connections_max",
        takes: "a whole number from 1 to 1000000",
        default: "10000",
        example: None,
        about: "Plain HTTP connections at once; above, 503 with Retry-After. As they fill, idle \
                ones may stay for less long, and the longest idle are closed in favour of those \
                who come. Sockets are not counted, nor do they lose descriptors to them",
        cost: "some 20 kB for each that is there, half of it the system's",
        set: |layer, value| scalar(&mut layer.http_connections_max, value, units::http_connections),
    },
    Key {
        name: "http_connections_reserved",
        takes: "a whole number from 1 to 1000000",
        default: "100",
        example: None,
        about: "Places beyond http_connections_max for /healthz, /metrics, POST /api/broadcast, \
                GET /api/presence and the observer alone, one request each; and as many on \
                admin_listen",
        cost: "as http_connections_max, while they are taken",
        set: |layer, value| {
            scalar(&mut layer.http_connections_reserved, value, units::http_connections)
        },
    },
    Key {
        name: "http_head_bytes_max",
        takes: "a size such as \"16KiB\" or a number of bytes, from 1024 to 65536",
        default: "\"16KiB\"",
        example: None,
        about: "Longest head of a request, of an upgrade as well; above, 431",
        cost: "up to so much memory for each head under way",
        set: |layer, value| scalar(&mut layer.http_head_bytes_max, value, units::head_bytes),
    },
    Key {
        name: "http_headers_max",
        takes: "a whole number from 1 to 100",
        default: "100",
        example: None,
        about: "Most headers of a request, of an upgrade as well; above, 431",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.http_headers_max, value, units::headers),
    },
    Key {
        name: "http_target_bytes_max",
        takes: "a size such as \"8KiB\" or a number of bytes",
        default: "\"8KiB\"",
        example: None,
        about: "Longest target of a request (path and query), of an upgrade as well; above, 414",
        cost: "as http_head_bytes_max, of which it is a part",
        set: |layer, value| scalar(&mut layer.http_target_bytes_max, value, units::bytes),
    },
    Key {
        name: "http_body_bytes_max",
        takes: "a size such as \"8MB\" or a number of bytes",
        default: "\"8MB\"",
        example: None,
        about: "Longest body of a request; above, 413",
        cost: "up to so much memory for each body under way, where the application keeps it whole",
        set: |layer, value| scalar(&mut layer.http_body_bytes_max, value, units::bytes),
    },
    Key {
        name: "http_head_timeout",
        takes: "a time such as \"10s\" or \"500ms\"",
        default: "\"10s\"",
        example: None,
        about: "From the first byte of a request's head to its end; above, 408. The first head of \
                a connection has handshake_timeout",
        cost: "a connection that sends slowly is held for so long",
        set: |layer, value| scalar(&mut layer.http_head_timeout, value, units::duration),
    },
    Key {
        name: "http_body_timeout",
        takes: "a time such as \"10s\" or \"500ms\"",
        default: "\"10s\"",
        example: None,
        about: "How long a body may be waited for in all, and a second more for each \
                http_body_rate_min that came; above, 408",
        cost: "a connection that sends slowly is held for so long",
        set: |layer, value| scalar(&mut layer.http_body_timeout, value, units::duration),
    },
    Key {
        name: "http_body_rate_min",
        takes: "a size such as \"1kB\" or a number of bytes",
        default: "\"1kB\"",
        example: None,
        about: "What of a body has to come in a second, in the long run",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.http_body_rate_min, value, units::bytes),
    },
    Key {
        name: "http_write_timeout",
        takes: "a time such as \"30s\" or \"500ms\"",
        default: "\"30s\"",
        example: None,
        about: "How long a client may take nothing of its answer; above, it is cut",
        cost: "an answer that is not read is held for so long",
        set: |layer, value| scalar(&mut layer.http_write_timeout, value, units::duration),
    },
    Key {
        name: "http_idle_timeout",
        takes: "a time such as \"75s\" or \"500ms\"",
        default: "\"75s\"",
        example: None,
        about: "How long a connection may wait for its next request. Longer than a proxy's own \
                time, so that the proxy closes first (nginx: keepalive_timeout, 60 s)",
        cost: "a connection that nobody uses is held for so long",
        set: |layer, value| scalar(&mut layer.http_idle_timeout, value, units::duration),
    },
    Key {
        name: "http_requests_max",
        takes: "a whole number from 1 to 1000000000",
        default: "100000",
        example: None,
        about: "Most requests of one connection; the answer to the last closes it",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.http_requests_max, value, units::http_requests),
    },
    Key {
        name: "callback_warning",
        takes: "a time such as \"10ms\"",
        default: "\"10ms\"",
        example: None,
        about: "A callback that holds its shard longer than this is named in the log",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.callback_warning, value, units::duration),
    },
    Key {
        name: "log",
        takes: "\"off\", \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
        default: "\"info\"",
        example: None,
        about: "What is logged to standard error. Single connections appear at debug only",
        cost: "one thread writes; lines that come faster than it can are dropped, never waited for",
        set: |layer, value| scalar(&mut layer.log, value, units::level),
    },
    Key {
        name: "log_format",
        takes: "\"text\" or \"json\" (one object a line)",
        default: "\"text\"",
        example: None,
        about: "How log lines are written",
        cost: "nothing",
        set: |layer, value| scalar(&mut layer.log_format, value, units::log_format),
    },
    Key {
        name: "static_files",
        takes: "a directory",
        default: "none",
        example: Some("\".\""),
        about: "Serves the files below this directory in place of the chat page, but none that is \
                hidden and none that a link leads out to",
        cost: "reads on threads of their own",
        set: |layer, value| scalar(&mut layer.static_files, value, units::directory),
    },
    Key {
        name: "static_copies_bytes_max",
        takes: "a size such as \"32MiB\" or a number of bytes, or \"off\"",
        default: "\"32MiB\"",
        example: None,
        about: "Compressed copies of static files, kept; the longest unused goes first. A file of \
                more than a quarter of this is sent as it is, as is one with none yet",
        cost: "up to so much memory, and once a file a thread's time, of half the cores at most",
        set: |layer, value| scalar(&mut layer.static_copies_bytes_max, value, units::bytes_or_off),
    },
    Key {
        name: "max_channels",
        takes: "a whole number from 1 to 65535",
        default: "100",
        example: None,
        about: "Channels one client may hold on one connection; further joins are refused",
        cost: "memory for each channel that is joined",
        set: |layer, value| scalar(&mut layer.max_channels, value, units::channels),
    },
    Key {
        name: "auth_token",
        takes: "true or false",
        default: "false",
        example: None,
        about: "Takes the auth token that clients send as a subprotocol off the list and answers \
                phoenix. With the table [token] it is on unless this says false; without that \
                table declared channels let everybody in all the same",
        cost: "nothing",
        set: |layer, value| boolean(&mut layer.auth_token, value),
    },
    Key {
        name: "longpoll",
        takes: "a time in quotes, such as \"10s\", or \"off\"",
        default: "off; for the built-in chat 10s",
        example: Some("\"10s\""),
        about: "Serves long polling at /socket/longpoll, for clients that get no WebSocket; a poll \
                waits for so long, and a session that nobody polls for one and a half times that \
                ends",
        cost: "2 kB for each poll that waits, and a place among http_connections_max",
        set: |layer, value| scalar(&mut layer.longpoll, value, units::duration_or_off),
    },
    Key {
        name: "announce_joins_up_to",
        takes: "a whole number; 0 announces none",
        default: "100",
        example: None,
        about: "Channels with announce_join announce newcomers while a topic has at most so many \
                members, on all shards; a channel may say otherwise for itself",
        cost: "n joins to one topic cost n²/2 deliveries up to there",
        set: |layer, value| scalar(&mut layer.announce_joins_up_to, value, units::members),
    },
];
