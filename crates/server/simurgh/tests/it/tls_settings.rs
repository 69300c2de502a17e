//! A server with TLS: its addresses, its certificates, and their reload.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use simurgh::tls::TlsConfig;
use simurgh::{Config, Endpoint, Error};

use crate::support::metrics;

fn write_certificate(dir: &Path, until: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("chain.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
}

fn tls(dir: &Path) -> TlsConfig {
    let address = "127.0.0.1:0".parse().unwrap();
    TlsConfig::new(address, dir.join("chain.pem"), dir.join("key.pem"))
}

#[test]
fn addresses_with_tls_follow_those_without() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), 4096);
    let endpoint = Endpoint::builder().tls(tls(dir.path())).listen("127.0.0.1:0").start().unwrap();
    let [plain, with_tls] = endpoint.addresses() else { panic!("{:?}", endpoint.addresses()) };
    let urls: Vec<_> = endpoint.urls().collect();
    assert_eq!(urls, [format!("http://{plain}"), format!("https://{with_tls}")]);
    Endpoint::builder().tls(tls(dir.path())).start().unwrap();
}

#[test]
fn public_address_with_tls_makes_a_server_public() {
    let mut config = Config::default();
    config.listen = vec!["127.0.0.1:4000".parse().unwrap()];
    config.tls = Some(TlsConfig::new("127.0.0.1:443".parse().unwrap(), "chain", "key"));
    assert!(config.is_loopback());
    config.tls = Some(TlsConfig::new("0.0.0.0:443".parse().unwrap(), "chain", "key"));
    assert!(!config.is_loopback());
}

#[test]
fn start_fails_if_a_certificate_cannot_be_used_but_not_if_it_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Endpoint::builder().tls(tls(dir.path())).start();
    let error = start().unwrap_err();
    assert!(matches!(error, Error::Certificates(_)), "{error}");
    let missing = format!("cannot read {}", dir.path().join("chain.pem").display());
    assert!(error.to_string().starts_with(&missing), "{error}");
    write_certificate(dir.path(), 2020);
    start().unwrap();
}

#[test]
fn reloads_are_counted_and_metrics_have_the_time_until_expiry() {
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), 4096);
    let endpoint = Endpoint::builder().listen("127.0.0.1:0").tls(tls(dir.path())).start().unwrap();
    endpoint.reload_certificates().unwrap();
    std::fs::remove_file(dir.path().join("key.pem")).unwrap();
    endpoint.reload_certificates().unwrap_err();
    endpoint.handle().reload_certificates().unwrap_err();
    let text = metrics(&endpoint);
    for line in [
        "simurgh_tls_reloads_total{result=\"ok\"} 1",
        "simurgh_tls_reloads_total{result=\"failed\"} 2",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let file = dir.path().join("chain.pem");
    let name = "simurgh_tls_certificate_expires_seconds";
    let labels = format!("{name}{{name=\"localhost\",file=\"{}\"}} ", file.display());
    let left = text.lines().find_map(|line| line.strip_prefix(&labels)).unwrap();
    assert!(left.parse::<u64>().unwrap() > 1_000_000_000, "{left}");
}

#[test]
fn reload_without_tls_does_nothing() {
    let endpoint = Endpoint::builder().listen("127.0.0.1:0").start().unwrap();
    endpoint.reload_certificates().unwrap();
    assert!(!metrics(&endpoint).contains("simurgh_tls_certificate"));
}
