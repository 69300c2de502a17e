//! The memory of an idle TLS connection; a process of its own, because it counts the heap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write as _;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use simurgh_load::scenario::Tls;
use simurgh_load::tls::{TlsClient, TlsConfig};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const CONNECTIONS: usize = 64;

fn heap_bytes() -> usize {
    dhat::HeapStats::get().curr_bytes
}

fn carry(client: &mut TlsClient, server: &mut ServerConnection, sent: &mut Vec<u8>) {
    let (mut plain, mut cipher) = (Vec::new(), Vec::new());
    loop {
        let mut left = sent.as_slice();
        while !left.is_empty() {
            server.read_tls(&mut left).unwrap();
            server.process_new_packets().unwrap();
        }
        sent.clear();
        cipher.clear();
        while server.wants_write() {
            server.write_tls(&mut cipher).unwrap();
        }
        if cipher.is_empty() {
            return;
        }
        // In pieces, so that every possible buffer is used.
        for piece in cipher.chunks_mut(1000) {
            client.receive(piece, &mut plain, sent).unwrap();
        }
    }
}

#[test]
fn idle_tls_connection_owns_no_buffer() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["a.test".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    for (version, bytes_max) in [(&rustls::version::TLS13, 4400), (&rustls::version::TLS12, 4100)] {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let server = Arc::new(server);
        let tls = Tls { roots_pem: vec![certificate.pem()], ..Tls::default() };
        let config = TlsConfig::new(&tls).unwrap();
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let mut server = ServerConnection::new(server.clone()).unwrap();
            let mut client = TlsClient::new(&config, "a.test").unwrap();
            let mut sent = Vec::new();
            client.start(&mut sent).unwrap();
            carry(&mut client, &mut server, &mut sent);
            server.writer().write_all(&[7; 15_000]).unwrap();
            carry(&mut client, &mut server, &mut sent);
            client.send(&[7; 1000], &mut sent).unwrap();
            assert!(client.progress().handshake_done);
            drop((server, sent));
            clients.push(client);
        }
        let all = heap_bytes();
        drop(clients);
        let each = (all - heap_bytes() + CONNECTIONS * size_of::<TlsClient>()) / CONNECTIONS;
        println!("{version:?}: {each} bytes for each idle connection");
        assert!((1000..=bytes_max).contains(&each), "{each} bytes");
    }
}
