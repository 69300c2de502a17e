//! Resolves host names before anything runs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Replaces host and port as `--map` says.
pub fn mapped(host: &str, port: u16, map: &[(String, String)]) -> (String, u16) {
    let Some((_, to)) = map.iter().find(|(from, _)| from.eq_ignore_ascii_case(host)) else {
        return (host.to_owned(), port);
    };
    split(to, port)
}

/// The address of a host, after `--map`. IPv4 is preferred where a name has both. An error says
/// what is wrong and what to do about it, to be put after the name of the key.
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
    // Stable, so the resolver's order within a family is kept.
    found
        .min_by_key(SocketAddr::is_ipv6)
        .ok_or_else(|| format!("the host {name:?} has no address; {help}"))
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
    use super::*;

    #[test]
    fn a_map_wins_and_may_name_a_port() {
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
    fn a_name_without_an_address_says_what_to_do() {
        let error = resolve("no-such-host.invalid", 80, &[]).unwrap_err();
        assert!(error.contains("--map no-such-host.invalid=ADDRESS"), "{error}");
    }
}
