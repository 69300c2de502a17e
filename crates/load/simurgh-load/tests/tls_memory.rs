//! The memory of TLS on an idle connection; a process of its own, because it measures the process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use simurgh_load::scenario::Tls;
use simurgh_load::tls::TlsConfig;
use simurgh_reactor::{Closed, Config, ConnectOptions, Handler, Io, Key, Next, ShardSet, Slow};

/// The first connections also take what is allocated once.
const FEW: usize = 1500;
const MANY: usize = 4500;

/// Opens connections one after the other, and tells the memory of the process.
struct Crowd {
    to: SocketAddr,
    tls: Option<TlsConfig>,
    open: usize,
    tell: Sender<usize>,
}

impl Crowd {
    fn opened(&mut self, io: &mut Io<()>) {
        self.open += 1;
        if self.open == FEW || self.open == MANY {
            self.tell.send(resident_bytes()).unwrap();
        }
        if self.open < MANY {
            self.dial(io);
        }
    }

    fn dial(&mut self, io: &mut Io<()>) {
        io.connect(self.to, &ConnectOptions::default(), ()).unwrap();
    }
}

impl Handler for Crowd {
    type Conn = ();
    type Mail = ();

    fn connected(&mut self, io: &mut Io<()>, key: Key) {
        match &self.tls {
            Some(tls) => tls.begin(io, key, "a.test").unwrap(),
            None => self.opened(io),
        }
    }

    fn secured(&mut self, io: &mut Io<()>, _: Key) {
        self.opened(io);
    }

    fn readable(&mut self, _: &mut Io<()>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, io: &mut Io<()>, (): ()) {
        self.dial(io);
    }

    fn turn_end(&mut self, _: &mut Io<()>) -> Next {
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

fn resident_bytes() -> usize {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A server for one cipher suite.
fn config(suite: &str) -> Arc<ServerConfig> {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["a.test".to_owned()];
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

/// Accepts all connections, and keeps only their sockets.
fn serve(listener: &TcpListener, config: Option<&Arc<ServerConfig>>) {
    let mut open = Vec::with_capacity(MANY);
    while open.len() < MANY {
        let (mut socket, _) = listener.accept().unwrap();
        if let Some(config) = config {
            let mut connection = ServerConnection::new(config.clone()).unwrap();
            connection.complete_io(&mut socket).unwrap();
        }
        open.push(socket);
    }
    // Until the client has closed, or its process has ended.
    let _ = open.last().map(|last| last.peek(&mut [0]));
}

fn bytes_each(config: Option<Arc<ServerConfig>>) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let any = Tls { insecure: true, ..Tls::default() };
    let tls = config.is_some().then(|| TlsConfig::new(&any).unwrap());
    let (tell, told) = channel();
    let crowd = Crowd { to, tls, open: 0, tell };
    let mut set = ShardSet::prepare(1, 1 << 20).unwrap();
    let server = thread::spawn(move || serve(&listener, config.as_ref()));
    let shard = set.spawn("crowd", Config::default(), move |_| crowd).unwrap();
    set.mailboxes()[0].post_anyway(());
    let [few, many] = [0; 2].map(|_| told.recv_timeout(Duration::from_secs(300)).unwrap());
    shard.stop();
    shard.join().unwrap();
    server.join().unwrap();
    many.saturating_sub(few) / (MANY - FEW)
}

/// Three runs: 111 to 118 bytes, and 123 to 128.
#[test]
fn tls_takes_about_120_bytes_of_an_idle_connection() {
    let plain = bytes_each(None);
    for suite in ["AES_128", "CHACHA20"] {
        let more = bytes_each(Some(config(suite))).saturating_sub(plain);
        println!("{suite}: {more} bytes more than {plain}");
        assert!((90..=140).contains(&more), "{suite}: {more} bytes more than {plain}");
    }
}
