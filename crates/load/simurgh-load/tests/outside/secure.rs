//! A TLS server with a self-signed certificate.
#![allow(clippy::unwrap_used, clippy::disallowed_types, unreachable_pub)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write as _};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Server;

/// A self-signed certificate for 127.0.0.1, as PEM and as a server's configuration.
pub fn certificate() -> (String, Arc<ServerConfig>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    (certificate.pem(), Arc::new(config))
}

pub type Secure = StreamOwned<ServerConnection, std::net::TcpStream>;

pub fn secure_server(
    config: Arc<ServerConfig>,
    serve: impl Fn(Secure) + Send + Sync + 'static,
) -> Server {
    Server::new(move |peer| {
        let stream = peer.stream.try_clone().unwrap();
        serve(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream));
    })
}

/// The next head of a request; `None` at the end.
pub fn head(stream: &mut Secure) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

/// Announces its end as asyncio's servers do: the FIN comes after the client's end.
pub fn close_notify(mut stream: Secure) {
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut rest = [0; 1024];
    while stream.sock.read(&mut rest).is_ok_and(|n| n > 0) {}
}
