//! Tests that need the secrets of a real handshake.

use std::io::Read as _;
use std::sync::Arc;

use super::*;

#[allow(dead_code, reason = "the tests of the crate need more of it")]
#[path = "../../tests/it/support/config.rs"]
mod config;

/// Our server's side, done, and stock rustls that got all of it.
fn pair(suite: CipherSuite) -> (Handshake, ClientConnection) {
    let configs = config::Configs::of(suite);
    let mut client = ClientConnection::new(Arc::clone(&configs.client), config::name()).unwrap();
    let mut server = Handshake::server(&configs.server).unwrap();
    for _ in 0..2 {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut up).unwrap();
        }
        server.receive(&up, &mut down).unwrap();
        receive(&mut client, &down);
    }
    (server, client)
}

fn receive(client: &mut ClientConnection, mut input: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while !input.is_empty() {
        client.read_tls(&mut input).unwrap();
        client.process_new_packets().unwrap();
        let _ = client.reader().read_to_end(&mut data);
    }
    data
}

/// RFC 8446 §5.5, §4.6.3: rustls reads what follows on the key update at our limit. It cannot be
/// brought near the limit itself, so a second record layer with the same secrets gives it the same
/// key update under the number that it expects.
fn passes_the_limit<const N: usize>(suite: CipherSuite) {
    const LIMIT: u64 = 1 << 23;
    let (server, mut client) = pair(suite);
    let extracted = server.connection.dangerous_extract_secrets().unwrap();
    let at = |number| {
        let to_send = Direction { secret: &server.secrets.server, number };
        let to_open = Direction { secret: &server.secrets.client, number: 0 };
        let suite = parts(&extracted.tx.1).unwrap().0;
        Keys::<N>::new(suite, false, to_send, to_open).unwrap()
    };
    // As the limit does it, one record after the handshake.
    let mut twin = at(extracted.tx.0);
    let mut out = Vec::new();
    twin.record().update(&mut out).unwrap();
    let update = out.len();
    assert_eq!(receive(&mut client, &out), b"");
    drop(twin);
    let mut keys = at(LIMIT);
    let mut out = Vec::new();
    keys.record().seal([&b"first"[..]], &mut out).unwrap();
    keys.record().seal([&b" second"[..]], &mut out).unwrap();
    assert_eq!(receive(&mut client, &out[update..]), b"first second");
}

#[test]
fn rustls_follows_our_key_update_at_the_limit() {
    passes_the_limit::<AES_128_GCM_BYTES>(config::SUITES[0]);
    passes_the_limit::<CHACHA20_POLY1305_BYTES>(config::SUITES[1]);
    passes_the_limit::<AES_256_GCM_BYTES>(config::SUITES[2]);
}

/// What a rustls that reads on behind the Finished would cause.
#[test]
fn stale_or_missing_secret_is_refused() {
    for change in [
        (|secrets| secrets.server[0] ^= 1) as fn(&mut Secrets),
        |secrets| secrets.client[31] ^= 1,
        |secrets| std::mem::swap(&mut secrets.client, &mut secrets.server),
        |secrets| secrets.client.clear(),
        |secrets| secrets.server.push(0),
    ] {
        let (mut server, _) = pair(config::SUITES[0]);
        change(&mut server.secrets);
        assert!(matches!(server.finish(), Err(HandshakeError::OtherSecrets)));
    }
}

#[test]
fn secrets_do_not_stay_in_the_thread() {
    let (server, _) = pair(config::SUITES[0]);
    assert!(!server.secrets.client.is_empty() && !server.secrets.server.is_empty());
    let left = secrets::take();
    assert!(left.client.is_empty() && left.server.is_empty());
}
