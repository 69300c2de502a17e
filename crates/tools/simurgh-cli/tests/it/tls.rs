//! `[tls]` in `simurgh.toml`: addresses, `config --check`, and the reload by SIGHUP.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};

use crate::support::{Server, directory, run, run_with_envs};

const TOML: &str = "listen = [\"127.0.0.1:0\"]\n[tls]\nlisten = \"127.0.0.1:0\"\n\
    certificate = \"fullchain.pem\"\nkey = \"privkey.pem\"\n";

/// Writes `fullchain.pem` and `privkey.pem`, valid until a day.
pub(crate) fn write_certificate(dir: &Path, until: (i32, u8, u8)) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("fullchain.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("privkey.pem"), key.serialize_pem()).unwrap();
}

#[test]
fn hangup_reloads_the_certificates_and_a_failure_keeps_the_old_ones() {
    let dir = directory(&[("simurgh.toml", TOML)]);
    let path = dir.path().to_owned();
    write_certificate(&path, (4096, 1, 1));
    let mut server = Server::start_in(dir, &[], 2);
    assert!(server.addresses[1].starts_with("https://127.0.0.1:"), "{:?}", server.addresses);
    server.logged("socket: wss://127.0.0.1:");
    server.signal("HUP");
    server.logged("reloaded the TLS certificates");
    std::fs::remove_file(path.join("privkey.pem")).unwrap();
    server.signal("HUP");
    let line = server.logged("not reloaded, nothing has changed");
    assert!(line.contains("simurgh.toml:5: [tls] key: cannot read privkey.pem"), "{line}");
    assert_eq!(server.metric("simurgh_tls_reloads_total{result=\"failed\"}"), 1);
    assert_eq!(server.get("/healthz"), 200);
}

#[test]
fn hangup_without_tls_reloads_the_settings() {
    let mut server = Server::start("", &["--listen", "127.0.0.1:0"]);
    server.signal("HUP");
    server.logged("reloaded; changed: no setting");
    assert_eq!(server.get("/healthz"), 200);
    server.signal("TERM");
    assert!(server.ended().0.success());
}

#[test]
fn check_reads_the_certificates() {
    let dir = directory(&[("simurgh.toml", TOML)]);
    let check = || run(dir.path(), &["config", "--check", "simurgh.toml"]);
    let missing = check();
    assert_eq!(missing.status.code(), Some(2));
    let expected = "simurgh.toml:4: [tls] certificate: cannot read fullchain.pem: No such file";
    assert!(missing.stderr.contains(expected), "{}", missing.stderr);
    write_certificate(dir.path(), (2020, 1, 1));
    let expired = check();
    assert_eq!(expired.status.code(), Some(2));
    let expected =
        "[tls] certificate: fullchain.pem: the certificate expired at 2020-01-01T00:00:00Z";
    assert!(expired.stderr.contains(expected), "{}", expired.stderr);
    write_certificate(dir.path(), (4096, 1, 1));
    let fine = check();
    assert!(fine.status.success() && fine.stderr.is_empty(), "{fine:?}");
}

#[test]
fn environment_sets_keys_of_tls_and_never_shows_a_key() {
    let dir = directory(&[]);
    write_certificate(dir.path(), (4096, 1, 1));
    let key = std::fs::read_to_string(dir.path().join("privkey.pem")).unwrap();
    let secret = key.lines().nth(1).unwrap().to_owned();
    for (name, value) in [("SIMURGH_TLS__KEY", &*key), ("SIMURGH_TLS__KEY_FILE", "privkey.pem")] {
        let envs = [
            ("SIMURGH_TLS__LISTEN", "127.0.0.1:0"),
            ("SIMURGH_TLS__CERTIFICATE", "fullchain.pem"),
            (name, value),
        ];
        let ran = run_with_envs(dir.path(), &["serve", "--listen", "127.0.0.1:0"], &envs);
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert!(ran.stderr.contains(&format!("{name}: [tls] key")), "{}", ran.stderr);
        assert!(!ran.stderr.contains(&secret), "{}", ran.stderr);
    }
}
