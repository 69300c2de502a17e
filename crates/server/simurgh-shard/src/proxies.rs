//! A client's address and origin, as far as trusted proxies report them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use simurgh_proto::origin::{CheckOrigin, OwnOrigin};

pub fn is_trusted(trusted: &[IpNet], hop: IpAddr) -> bool {
    trusted.iter().any(|net| net.contains(&hop))
}

/// Whether a page of this origin may connect; `host` is the request's own header.
pub fn origin_is_allowed(
    policy: &CheckOrigin,
    origin: Option<&str>,
    host: Option<&str>,
    is_https: bool,
) -> bool {
    let scheme = if is_https { "https" } else { "http" };
    // Without a usable Host no origin can be the request's own.
    let own = OwnOrigin::from_host_header(scheme, host.unwrap_or_default());
    policy.allows(origin, own.unwrap_or(OwnOrigin { scheme, host: "", port: 0 }))
}

/// The client's address as reported by the last untrusted hop: walks `x-forwarded-for` from the
/// right while the addresses belong to trusted proxies.
pub fn real_peer(peer: SocketAddr, forwarded_for: Option<&str>, trusted: &[IpNet]) -> SocketAddr {
    let mut real = peer;
    for hop in forwarded_for.unwrap_or_default().rsplit(',') {
        if !is_trusted(trusted, real.ip()) {
            break;
        }
        match hop.trim().parse::<IpAddr>() {
            Ok(ip) => real = SocketAddr::new(ip, 0),
            Err(_) => break,
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_for_is_believed_only_from_trusted_proxies() {
        let trusted: Vec<IpNet> = vec!["127.0.0.0/8".parse().unwrap()];
        let proxy: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let stranger: SocketAddr = "192.0.2.9:9".parse().unwrap();
        let header = Some("198.51.100.7, 192.0.2.1, 127.0.0.3");
        assert_eq!(real_peer(proxy, header, &trusted).ip().to_string(), "192.0.2.1");
        assert_eq!(real_peer(stranger, header, &trusted), stranger);
        assert_eq!(real_peer(proxy, None, &trusted), proxy);
        assert_eq!(real_peer(proxy, Some("rubbish"), &trusted), proxy);
    }
}
