//! Handshakes in memory with a client of rustls.

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, HandshakeKind, ProtocolVersion, RootCertStore,
    ServerConnection, SupportedProtocolVersion,
};
use tempfile::TempDir;

use super::*;

/// Writes a new certificate for this name, and returns its files.
fn write(dir: &TempDir, name: &str) -> CertificateFiles {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
    let [chain, file] = ["pem", "key"].map(|kind| dir.path().join(format!("{name}.{kind}")));
    std::fs::write(&chain, certificate.pem()).unwrap();
    std::fs::write(&file, key.serialize_pem()).unwrap();
    CertificateFiles { chain, key: file }
}

fn der(files: &CertificateFiles) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(&files.chain).unwrap()
}

fn prepared(files: &[CertificateFiles], min_version: TlsVersion) -> Prepared {
    let [first, ..] = files else { panic!("no certificate") };
    let address = "127.0.0.1:0".parse().unwrap();
    let mut tls = TlsConfig::new(address, &first.chain, &first.key);
    (tls.certificates, tls.min_version) = (files.to_vec(), min_version);
    let mut config = Config::default();
    (config.listen, config.tls) = (vec![address], Some(tls));
    prepare(&config).unwrap()
}

fn server(prepared: &Prepared) -> Arc<ServerConfig> {
    let [None, Some(server)] = &*prepared.listeners else { panic!("not plain, then TLS") };
    Arc::clone(server)
}

fn client(roots: &[&CertificateFiles], version: &'static SupportedProtocolVersion) -> ClientConfig {
    let mut store = RootCertStore::empty();
    roots.iter().for_each(|files| store.add(der(files)).unwrap());
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]);
    let builder = builder.unwrap().with_root_certificates(store);
    let mut client = builder.with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    client
}

fn transfer(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut bytes = &*bytes;
    while !bytes.is_empty() {
        to.read_tls(&mut bytes).unwrap();
        to.process_new_packets()?;
    }
    Ok(())
}

/// A handshake in memory; returns the client's end.
fn handshake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &'static str,
) -> Result<Connection, rustls::Error> {
    let name = ServerName::try_from(name).unwrap();
    let client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut ends = [Connection::Client(client), Connection::Server(server)];
    for _ in 0..10 {
        let [client, server] = &mut ends;
        transfer(client, server)?;
        transfer(server, client)?;
    }
    let [client, _] = ends;
    assert!(!client.is_handshaking());
    Ok(client)
}

#[test]
fn clients_get_http_1_1_aes_128_and_a_ticket_to_resume() {
    let dir = tempfile::tempdir().unwrap();
    let files = write(&dir, "a.example");
    let server = server(&prepared(std::slice::from_ref(&files), TlsVersion::Tls12));
    for (version, suite) in [
        (&version::TLS13, "TLS13_AES_128_GCM_SHA256"),
        (&version::TLS12, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ] {
        let client = Arc::new(client(&[&files], version));
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let connection = handshake(&server, &client, "a.example").unwrap();
            assert_eq!(connection.handshake_kind(), Some(kind));
            assert_eq!(connection.protocol_version(), Some(version.version));
            assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
            let used = connection.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(used.as_str(), Some(suite));
        }
    }
    assert_eq!(server.max_early_data_size, 0);
}

#[test]
fn tls_1_2_is_refused_if_the_least_version_is_1_3() {
    let dir = tempfile::tempdir().unwrap();
    let files = write(&dir, "a.example");
    let server = server(&prepared(std::slice::from_ref(&files), TlsVersion::Tls13));
    let old = Arc::new(client(&[&files], &version::TLS12));
    assert!(handshake(&server, &old, "a.example").is_err());
    let new = Arc::new(client(&[&files], &version::TLS13));
    let connection = handshake(&server, &new, "a.example").unwrap();
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));
}

#[test]
fn client_gets_the_certificate_of_its_name_and_after_a_reload_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let files = [write(&dir, "a.example"), write(&dir, "b.example")];
    let prepared = prepared(&files, TlsVersion::Tls12);
    let server = server(&prepared);
    let certificate = |name| {
        let roots: Vec<_> = files.iter().collect();
        let client = Arc::new(client(&roots, &version::TLS13));
        let connection = handshake(&server, &client, name).unwrap();
        connection.peer_certificates().unwrap()[0].clone()
    };
    let old = der(&files[1]);
    assert_eq!(certificate("a.example"), der(&files[0]));
    assert_eq!(certificate("b.example"), old);
    write(&dir, "b.example");
    prepared.certificates.unwrap().reload().unwrap();
    assert_ne!(certificate("b.example"), old);
    assert_eq!(certificate("b.example"), der(&files[1]));
}
