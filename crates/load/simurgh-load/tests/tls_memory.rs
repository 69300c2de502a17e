//! The memory of a user whose connection has TLS; a process of its own, because it counts the heap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod outside;

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use outside::{Peer, Server, head, of, steered};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// What one more user takes is the difference between these numbers of users.
const USERS: [usize; 2] = [256, 768];

/// A server for one cipher suite.
fn config(suite: &str) -> Arc<ServerConfig> {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|known| format!("{known:?}").contains(suite));
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

/// Upgrades a connection. It has no TLS any more when that is done, so that only the client's end
/// takes memory.
fn serve(peer: &mut Peer, config: Option<&Arc<ServerConfig>>) {
    let Some(config) = config else {
        assert!(peer.upgrade());
        return;
    };
    let sock = peer.stream.try_clone().unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), sock);
    let head = head(&mut stream).unwrap();
    let (_, key) = head.split_once("Sec-WebSocket-Key: ").unwrap();
    key.lines().next().unwrap().clone_into(&mut peer.key);
    stream.write_all(peer.switch().as_bytes()).unwrap();
}

/// Heap in use while so many users have their connections.
fn heap_of(users: usize, config: Option<&Arc<ServerConfig>>) -> usize {
    let open = Arc::new(AtomicUsize::new(0));
    let (upgraded, config) = (Arc::clone(&open), config.cloned());
    let scheme = if config.is_some() { "wss" } else { "ws" };
    let server = Server::new(move |mut peer| {
        serve(&mut peer, config.as_ref());
        upgraded.fetch_add(1, SeqCst);
        let _ = (&*peer.stream).read(&mut [0; 64]);
    });
    let session = "steps = [{ connect = \"/\" }, { receive = \"end\" }]";
    let text = of(server.addr, users as u32, "raw", "duration = \"60s\"", session)
        .replace("\"ws://", &format!("\"{scheme}://"));
    let text = format!("{text}\n[tls]\ninsecure = true\n");
    let mut looking = None;
    let ran = steered(&text, 1, |control| {
        looking = Some(thread::spawn(move || {
            let began = Instant::now();
            while open.load(SeqCst) < users {
                assert!(began.elapsed() < Duration::from_secs(60), "{open:?} are open");
                thread::sleep(Duration::from_millis(10));
            }
            // Measurements are handed over each second, and dropped then.
            let looks = (0..25).map(|_| {
                thread::sleep(Duration::from_millis(100));
                dhat::HeapStats::get().curr_bytes
            });
            let least = looks.min().unwrap();
            control.stop();
            least
        }));
    });
    ran.errors_are(&[]);
    looking.unwrap().join().unwrap()
}

fn bytes_of_a_user(config: Option<&Arc<ServerConfig>>) -> usize {
    let [few, many] = USERS.map(|users| heap_of(users, config));
    many.saturating_sub(few) / (USERS[1] - USERS[0])
}

#[test]
fn user_with_tls_takes_little_more_memory_than_one_without() {
    let _profiler = dhat::Profiler::builder().testing().build();
    // The first run allocates what is allocated once.
    heap_of(1, None);
    let plain = bytes_of_a_user(None);
    for (suite, bytes_max) in [("AES_128", 130), ("CHACHA20", 130), ("AES_256", 180)] {
        let more = bytes_of_a_user(Some(&config(suite))).saturating_sub(plain);
        println!("{suite}: {more} bytes more than {plain}");
        assert!((100..=bytes_max).contains(&more), "{suite}: {more} bytes more than {plain}");
    }
}
