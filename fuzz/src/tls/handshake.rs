//! Any bytes in a handshake.
//!
//! The first byte chooses between bytes without a peer, and a peer of ours whose flights are
//! damaged. An undamaged handshake succeeds, one without a peer does not, and memory has its bound.
use std::sync::{Arc, LazyLock};

use simurgh_tls::rustls::crypto::ring;
use simurgh_tls::rustls::pki_types::{PrivateKeyDer, ServerName};
use simurgh_tls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use simurgh_tls::{Handshake, Progress, prepare_client, prepare_server};

const HELD_MAX: usize = 64 * 1024;
/// The longest flight has one certificate and two tickets.
const OUT_MAX: usize = 16 * 1024;

type Versions = &'static [&'static rustls::SupportedProtocolVersion];

const TLS12: Versions = &[&rustls::version::TLS12];

static CONFIGS: LazyLock<[(Arc<ServerConfig>, Arc<ClientConfig>); 2]> =
    LazyLock::new(|| [configs(rustls::ALL_VERSIONS), configs(TLS12)]);

fn configs(versions: Versions) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a key");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let provider = Arc::new(ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("versions that ring has")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a key that fits");
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions that ring has")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.resumption = rustls::client::Resumption::disabled();
    prepare_server(&mut server);
    prepare_client(&mut client);
    (Arc::new(server), Arc::new(client))
}

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [choice, rest @ ..] = data else { return };
    let (server, client) = &CONFIGS[usize::from(choice >> 1 & 1)];
    let mut up = Vec::new();
    let name = ServerName::try_from("localhost").expect("a name");
    let client = Handshake::client(client, name, &mut up).expect("a client");
    let server = Handshake::server(server).expect("a server");
    let piece = usize::from(choice >> 2) * 8 + 1;
    if choice & 1 == 0 {
        for mut side in [client, server] {
            assert_ne!(receive(&mut side, rest, piece, &mut Vec::new()), Some(Progress::Done));
        }
        return;
    }
    with_a_peer(client, server, up, rest, piece);
}

fn with_a_peer(
    mut client: Handshake,
    mut server: Handshake,
    mut up: Vec<u8>,
    damages: &[u8],
    piece: usize,
) {
    let (mut are_done, mut is_damaged) = ([false; 2], false);
    for flight in 0..4 {
        let mut down = Vec::new();
        is_damaged |= damage(&mut up, damages, 2 * flight);
        let Some(progress) = receive(&mut server, &up, piece, &mut down) else { break };
        are_done[0] = progress == Progress::Done;
        up.clear();
        is_damaged |= damage(&mut down, damages, 2 * flight + 1);
        let Some(progress) = receive(&mut client, &down, piece, &mut up) else { break };
        are_done[1] = progress == Progress::Done;
    }
    assert!(is_damaged || are_done == [true; 2], "an undamaged handshake fails");
    for (side, is_done) in [server, client].into_iter().zip(are_done) {
        assert!(!is_done || side.finish().is_ok());
    }
}

/// Damages a flight: each four bytes are its number, a position, and what is changed there.
fn damage(flight: &mut [u8], damages: &[u8], number: u8) -> bool {
    let mut is_damaged = false;
    for damage in damages.as_chunks().0 {
        let [flight_of, high, low, change] = *damage;
        let at = usize::from(u16::from_be_bytes([high, low]));
        if flight_of % 8 == number
            && change != 0
            && let Some(byte) = flight.get_mut(at)
        {
            *byte ^= change;
            is_damaged = true;
        }
    }
    is_damaged
}

/// `None` after an error.
fn receive(
    side: &mut Handshake,
    input: &[u8],
    piece: usize,
    out: &mut Vec<u8>,
) -> Option<Progress> {
    let mut progress = side.receive(b"", out).ok()?;
    for piece in input.chunks(piece) {
        let received = side.receive(piece, out);
        assert!(out.len() <= OUT_MAX, "a long answer");
        progress = received.inspect_err(|error| assert!(!error.to_string().is_empty())).ok()?;
        assert!(progress == Progress::Done || side.held_bytes() <= HELD_MAX);
    }
    Some(progress)
}
