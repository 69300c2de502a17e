//! A stack against RFC 9293 (`rfc`), and against another TCP over a bad link (`smoltcp`).

mod rfc;
mod smoltcp;

use super::{AddressRange, Network, Sources};

fn network() -> Network {
    let sources = Sources { tun: Some("test".to_owned()), ..Sources::default() };
    Network::of(&sources, 0, 1).unwrap().unwrap()
}

#[test]
fn workers_share_the_network_without_overlap() {
    let range = |first: &str, last: &str| {
        vec![AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() }]
    };
    let addresses = range("10.9.0.0", "10.9.0.255");
    let of = |addresses, index, workers| {
        let sources = Sources { tun: Some("t".to_owned()), addresses, ..Sources::default() };
        Network::of(&sources, index, workers).map(Option::unwrap)
    };
    let configs: Vec<_> =
        (0..3).map(|index| of(addresses.clone(), index, 3).unwrap().config()).collect();
    let shown: Vec<_> =
        configs.iter().map(|it| format!("{} {}/{}", it.name, it.address, it.prefix)).collect();
    assert_eq!(shown, ["t0 10.9.0.1/26", "t1 10.9.0.65/26", "t2 10.9.0.129/26"]);
    let clients = of(addresses.clone(), 2, 3).unwrap().clients();
    assert_eq!(clients, 61 * 64_512);
    assert!(network().clients() > 8_000_000_000, "the default network");
    assert!(of(addresses, 0, 65).unwrap_err().contains("too few"));
    for (first, last) in [("10.9.0.1", "10.9.1.0"), ("10.9.0.128", "10.9.1.127"), ("::1", "::2")] {
        let why = of(range(first, last), 0, 1).unwrap_err();
        assert!(why.contains("is no IPv4 network"), "{first}: {why}");
    }
    let long = Sources { tun: Some("a-name".to_owned()), ..Sources::default() };
    assert!(Network::of(&long, 0, 1).unwrap_err().contains("letters and digits"));
}
