//! Resolves host names before anything runs.
#![allow(clippy::disallowed_types, reason = "there are no tables of workers yet")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Replaces host and port as `--map` says.
pub fn mapped(host: &str, port: u16, map: &[(String, String)]) -> (String, u16) {
    let Some((_, to)) = map.iter().find(|(from, _)| from.eq_ignore_ascii_case(host)) else {
        return (host.to_owned(), port);
    };
    split(to, port)
}

/// How long an address of several may take to accept a connection.
const TRIED_FOR: Duration = Duration::from_millis(200);

/// The address of a host, after `--map`: of several the first that accepts a connection now, IPv4
/// before IPv6. An error says what is wrong and what to do about it, to be put after the name of
/// the key.
pub fn resolve(host: &str, port: u16, map: &[(String, String)]) -> Result<SocketAddr, String> {
    let (name, port) = mapped(host, port, map);
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let help = format!("name its address with --map {host}=ADDRESS");
    let found = match (name.as_str(), port).to_socket_addrs() {
        Ok(found) => found,
        Err(error) => return Err(format!("the host {name:?} has no address: {error}; {help}")),
    };
    let mut found: Vec<SocketAddr> = found.collect();
    // Both, whatever the resolver knows: as curl and browsers do (RFC 6761 §6.3).
    if name.eq_ignore_ascii_case("localhost") {
        found
            .extend([SocketAddr::from(([127, 0, 0, 1], port)), (Ipv6Addr::LOCALHOST, port).into()]);
    }
    // Stable, so the resolver's order within a family is kept.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    // `localhost` often has two addresses, and a server one of them.
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, TRIED_FOR).is_ok();
    let chosen = match found.as_slice() {
        [] | [_] => found.first(),
        [first, ..] => found.iter().find(accepts).or(Some(first)),
    };
    let chosen = chosen.copied();
    chosen.ok_or_else(|| format!("the host {name:?} has no address; {help}"))
}

/// Host and port of `host`, `host:port`, `::1` or `[::1]:port`.
fn split(text: &str, port: u16) -> (String, u16) {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return (address.ip().to_string(), address.port());
    }
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return (ip.to_string(), port);
    }
    match text.rsplit_once(':') {
        Some((host, number)) => match number.parse() {
            Ok(number) => (host.to_owned(), number),
            Err(_) => (text.to_owned(), port),
        },
        None => (text.to_owned(), port),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Also where the resolver knows one of them alone.
    #[test]
    fn localhost_resolves_to_the_address_that_accepts_connections() {
        for (ip, other) in [("127.0.0.1", "::1"), ("::1", "127.0.0.1")] {
            let Ok(listener) = TcpListener::bind((ip, 0)) else { continue };
            let address = listener.local_addr().unwrap();
            // Another program may listen at the same port of the other.
            if TcpStream::connect((other, address.port())).is_err() {
                assert_eq!(resolve("Localhost", address.port(), &[]), Ok(address));
            }
        }
    }

    #[test]
    fn mapped_address_overrides_the_resolver_and_may_have_a_port() {
        let map = |to: &str| vec![("server_ip_address".to_owned(), to.to_owned())];
        for (to, expected) in [
            ("127.0.0.1", "127.0.0.1:4000"),
            ("127.0.0.2:5000", "127.0.0.2:5000"),
            ("::1", "[::1]:4000"),
            ("[::1]", "[::1]:4000"),
            ("[::1]:5000", "[::1]:5000"),
        ] {
            let address = resolve("Server_IP_address", 4000, &map(to)).map(|a| a.to_string());
            assert_eq!(address.as_deref(), Ok(expected), "{to}");
        }
        assert_eq!(mapped("a", 1, &[("a".into(), "b:2".into())]), ("b".to_owned(), 2));
        assert_eq!(mapped("c", 1, &map("x")), ("c".to_owned(), 1));
    }

    #[test]
    fn error_for_an_unresolvable_name_says_what_to_do() {
        let error = resolve("no-such-host.invalid", 80, &[]).unwrap_err();
        assert!(error.contains("--map no-such-host.invalid=ADDRESS"), "{error}");
    }
}
