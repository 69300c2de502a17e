//! `hold`: the seeds' traffic. Clients that join as Tsung does (PROTOCOL §17: serializer V1, JSON
//! in a *binary* frame, with the newline of the original file, `Host` without port, `Origin`
//! without scheme) and stay without ever sending a heartbeat.

use std::net::{SocketAddrV4, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::args::Hold;
use simurgh_bench_kit::clients::{Script, VerifiedClients};
use simurgh_bench_kit::frames;
use simurgh_bench_kit::rounds::check_machine;

const JOIN: &str = concat!(
    r#"{"topic":"rooms:lobby", "event":"phx_join", "payload":"#,
    "\n",
    r#"{"user":"1"}, "ref":"1"}"#
);
const PATH: &str = "/socket/websocket";

/// Joins, stays, reports. An error if a client was cut.
pub(crate) fn run(options: &Hold) -> Result<()> {
    check_machine(options.clients)?;
    let (server, path) = locate(&options.server)?;
    let origin = format!("Origin: {}\r\n", server.ip());
    let upgrade = frames::upgrade_request(&path, &server.ip().to_string(), &origin);
    let mut join = Vec::new();
    frames::masked(frames::BINARY, JOIN.as_bytes(), &mut join);
    let mut clients = VerifiedClients::new(server, Script { upgrade, join })?;
    let started = Instant::now();
    clients.grow(options.clients, Duration::from_secs(120))?;
    println!("{} joined in {:.1} s", clients.joined(), started.elapsed().as_secs_f64());
    let until = Instant::now() + Duration::from_secs(options.seconds);
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        clients.rest(left.min(Duration::from_secs(10)))?;
        println!(
            "{:6.0} s: {} joined, {} cut",
            started.elapsed().as_secs_f64(),
            clients.joined(),
            clients.tally().lost
        );
    }
    let tally = clients.tally();
    println!(
        "{} of {} stayed joined for {} s without a heartbeat; {} cut; close codes {:?}; \
         received besides replies: {:?}, {} of unknown form",
        clients.joined(),
        options.clients,
        options.seconds,
        tally.lost,
        tally.closes,
        tally.events,
        tally.odd
    );
    ensure!(clients.joined() == options.clients, "not all stayed");
    Ok(())
}

/// The address and the path of `ws://host:port/path`, `http://…` or `host:port`.
fn locate(url: &str) -> Result<(SocketAddrV4, String)> {
    let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://")).unwrap_or(url);
    let (host, path) = match rest.find('/') {
        Some(at) if at + 1 < rest.len() => rest.split_at(at),
        Some(at) => (rest.get(..at).unwrap_or(rest), PATH),
        None => (rest, PATH),
    };
    let mut found = host.to_socket_addrs().with_context(|| format!("no address: {host:?}"))?;
    let v4 = found.find_map(|address| match address {
        std::net::SocketAddr::V4(v4) => Some(v4),
        std::net::SocketAddr::V6(_) => None,
    });
    Ok((v4.with_context(|| format!("{host} has no IPv4 address"))?, path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_join_is_the_seeds_own() {
        assert!(JOIN.contains("\"payload\":\n{\"user\":\"1\"}"));
        let join: serde_json::Value = serde_json::from_str(JOIN).unwrap();
        assert_eq!(join["event"], "phx_join");
        assert_eq!(join["ref"], "1");
    }

    #[test]
    fn urls() {
        let at = |url: &str| {
            let (address, path) = locate(url).unwrap();
            (address.to_string(), path)
        };
        let plain = ("127.0.0.1:4000".to_owned(), PATH.to_owned());
        assert_eq!(at("ws://127.0.0.1:4000"), plain);
        assert_eq!(at("http://127.0.0.1:4000/"), plain);
        assert_eq!(at("127.0.0.1:4000"), plain);
        assert_eq!(at("ws://127.0.0.1:4000/s/websocket?x=1").1, "/s/websocket?x=1");
        assert!(locate("ws://127.0.0.1").is_err());
    }
}
