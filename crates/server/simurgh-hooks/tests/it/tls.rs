//! TLS with an authority of one's own, and with a client certificate.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use simurgh_hooks::{FailureKind, HookConfig, Kind};
use tokio_rustls::TlsAcceptor;

use crate::support::app::{App, Reply, ok, patient};
use crate::support::{ask, failure, joined, question, start};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn certificate(name: &str, issuer: &Issuer) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, issuer).unwrap(), key)
}

/// An application that wants a certificate of this authority.
#[allow(clippy::disallowed_types, reason = "a test has no reactor")]
async fn listen(app: &Arc<App>, issuer: &Issuer) -> HookConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(issuer.der().clone()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let (certificate, key) = certificate("localhost", issuer);
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(Arc::clone(&app).talk(stream));
            }
        }
    });
    patient(HookConfig::new("app", format!("https://localhost:{port}").parse().unwrap()))
}

#[tokio::test]
async fn certificates_of_both_sides_are_verified() {
    let app = App::new(|number, _| match number {
        1 => Reply::Last(String::new()),
        _ => Reply::Answer(ok("")),
    });
    let (ours, others) = (authority(), authority());
    let config = listen(&app, &ours).await;
    let with = |ca: &Issuer, client: &Issuer| {
        let (certificate, key) = certificate("simurgh", client);
        let mut config = config.clone();
        config.tls.ca = Some(ca.pem().into_bytes());
        config.tls.cert = Some(certificate.pem().into_bytes());
        config.tls.key = Some(key.serialize_pem().into_bytes());
        start(config)
    };
    for (_hooks, hook) in [start(config.clone()), with(&others, &ours), with(&ours, &others)] {
        assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    }
    assert_eq!(app.asked(), 0);
    let (_hooks, hook) = with(&ours, &ours);
    joined(&ask(&hook, question(Kind::Join)).await);
    joined(&ask(&hook, question(Kind::Join)).await);
    assert_eq!((app.asked(), app.connections()), (3, 2), "a broken connection is replaced");
}
