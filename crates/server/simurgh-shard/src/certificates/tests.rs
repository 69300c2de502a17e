//! Files with every problem, choices by name, and reloads.

use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A self-signed certificate from 2026-01-01 to 2026-07-01.
    fn self_signed(&self, file: &str, names: &[&str]) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).self_signed(&key).unwrap();
        let chain = self.write(&format!("{file}.pem"), &certificate.pem());
        CertificateFiles { chain, key: self.write(&format!("{file}.key"), &key.serialize_pem()) }
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2026, 7, 1);
    params
}

fn day(text: &str) -> SystemTime {
    humantime::parse_rfc3339(&format!("{text}T12:00:00Z")).unwrap()
}

/// The problems on 1 April 2026, with the directory left out of their texts.
fn problems(dir: &Dir, files: &[CertificateFiles]) -> Vec<String> {
    problems_at(dir, files, day("2026-04-01"))
}

fn problems_at(dir: &Dir, files: &[CertificateFiles], now: SystemTime) -> Vec<String> {
    let problems = match CertificateSet::read(files, now) {
        Ok((_, problems)) => problems,
        Err(problems) => problems.0,
    };
    let folder = format!("{}/", dir.0.path().display());
    problems.iter().map(|problem| problem.to_string().replace(&folder, "")).collect()
}

#[test]
fn valid_files_have_no_problem_and_their_names_and_dates_are_known() {
    let dir = Dir::new();
    let files = dir.self_signed("a", &["a.example", "*.b.example"]);
    let (set, problems) =
        CertificateSet::read(std::slice::from_ref(&files), day("2026-04-01")).unwrap();
    assert_eq!(problems, []);
    let certificate = set.all().first().unwrap();
    assert_eq!(certificate.names, ["a.example", "*.b.example"]);
    assert_eq!(certificate.not_after, day("2026-07-01") - DAY / 2);
    assert_eq!(certificate.files, files);
}

#[test]
fn each_file_that_cannot_be_used_is_named_with_the_reason() {
    let dir = Dir::new();
    let good = dir.self_signed("good", &["a.example"]);
    let other = dir.self_signed("other", &["b.example"]);
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let key = text(&good.key);
    let with_key = |name: &str, text: &str| CertificateFiles {
        chain: good.chain.clone(),
        key: dir.write(name, text),
    };
    let with_chain = |name: &str, text: &str| CertificateFiles {
        chain: dir.write(name, text),
        key: good.key.clone(),
    };
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let old_form = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n";
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let open_end = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    for (files, expected) in [
        (
            CertificateFiles { chain: dir.0.path().join("none"), key: good.key.clone() },
            "cannot read none: No such file",
        ),
        (
            CertificateFiles { chain: good.chain.clone(), key: dir.0.path().join("none") },
            "cannot read none: No such file",
        ),
        (with_chain("empty.pem", ""), "empty.pem has no certificate"),
        (with_chain("key.pem", &key), "key.pem has no certificate"),
        (with_chain("bad.pem", damaged), "bad.pem: the certificate cannot be read: "),
        (with_chain("open.pem", open_end), "open.pem: the certificate cannot be read: "),
        (with_key("empty.key", ""), "empty.key has no private key"),
        (with_key("chain.key", &text(&good.chain)), "chain.key has no private key"),
        (with_key("enc.key", &encrypted), "enc.key: the private key is encrypted"),
        (with_key("old.key", old_form), "old.key: the private key is encrypted"),
        (
            with_key("bad.key", &damaged.replace("CERTIFICATE", "PRIVATE KEY")),
            "bad.key: the private key cannot be used: ",
        ),
        (
            CertificateFiles { chain: good.chain.clone(), key: other.key.clone() },
            "other.key is not the key of the first certificate in good.pem",
        ),
    ] {
        let found = problems(&dir, std::slice::from_ref(&files));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(expected), "{found:?} instead of {expected:?}");
        assert!(!found[0].contains("MIG"), "shows a key: {found:?}");
        assert!(CertificateSet::read(&[files], day("2026-04-01")).is_err());
    }
    assert_eq!(problems(&dir, &[]).len(), 1);
}

#[test]
fn dates_are_problems_that_do_not_prevent_a_start() {
    let dir = Dir::new();
    let files = [dir.self_signed("a", &["a.example"])];
    for (now, expected, severity) in [
        (
            "2025-12-31",
            "a.pem: the certificate is not valid before 2026-01-01T00:00:00Z",
            Severity::NotValid,
        ),
        (
            "2026-07-02",
            "a.pem: the certificate expired at 2026-07-01T00:00:00Z",
            Severity::NotValid,
        ),
        ("2026-06-11", "a.pem: the certificate expires at 2026-07-01T00:00:00Z", Severity::Warning),
    ] {
        let found = problems_at(&dir, &files, day(now));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        let (_, problems) = CertificateSet::read(&files, day(now)).unwrap();
        assert_eq!(problems[0].severity(), severity);
    }
    assert_eq!(problems_at(&dir, &files, day("2026-06-09")), [""; 0]);
}

#[test]
fn chain_without_the_issuer_is_a_warning() {
    let dir = Dir::new();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = params(&[]);
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "An issuer");
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut leaf = params(&["a.example"]);
    leaf.distinguished_name.push(DnType::CommonName, "A server");
    let leaf = leaf.signed_by(&key, &issuer).unwrap().pem();
    let key = dir.write("a.key", &key.serialize_pem());
    let files = |chain| [CertificateFiles { chain, key: key.clone() }];
    let alone = files(dir.write("cert.pem", &leaf));
    let found = problems(&dir, &alone);
    assert!(
        found.len() == 1 && found[0].starts_with("cert.pem: the issuer's certificate is not"),
        "{found:?}"
    );
    let whole = files(dir.write("fullchain.pem", &format!("{leaf}{ca_pem}")));
    assert_eq!(problems(&dir, &whole), [""; 0]);
    let reversed = files(dir.write("reversed.pem", &format!("{ca_pem}{leaf}")));
    assert!(problems(&dir, &reversed)[0].contains("Put the server's own certificate first"));
}

#[test]
fn exact_name_precedes_wildcard_and_others_get_the_first_certificate() {
    let dir = Dir::new();
    let files = [
        dir.self_signed("default", &["first.example"]),
        dir.self_signed("wild", &["*.Chat.example"]),
        dir.self_signed("exact", &["a.chat.example"]),
    ];
    let (set, problems) = CertificateSet::read(&files, day("2026-04-01")).unwrap();
    assert_eq!(problems, []);
    let chosen = |name| set.for_name(name).unwrap().files.chain.file_stem().unwrap();
    for (name, expected) in [
        (None, "default"),
        (Some("first.example"), "default"),
        (Some("b.chat.example"), "wild"),
        (Some("B.CHAT.example"), "wild"),
        (Some("a.chat.example"), "exact"),
        (Some("x.b.chat.example"), "default"),
        (Some("chat.example"), "default"),
        (Some("other.example"), "default"),
        (Some(""), "default"),
        (Some("."), "default"),
    ] {
        assert_eq!(chosen(name), expected, "{name:?}");
    }
}

#[test]
fn second_certificate_with_a_name_is_a_warning_and_is_not_used_for_it() {
    let dir = Dir::new();
    let files = [
        dir.self_signed("one", &["a.example"]),
        dir.self_signed("two", &["A.example", "b.example"]),
    ];
    assert_eq!(
        problems(&dir, &files),
        ["two.pem: A.example is also a name of one.pem, which is used for it"]
    );
}

#[test]
fn reload_replaces_all_certificates_or_none() {
    let dir = Dir::new();
    let new = |file: &str, name: &str| {
        let key = KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let pem = certificate.self_signed(&key).unwrap().pem();
        let chain = dir.write(&format!("{file}.pem"), &pem);
        CertificateFiles { chain, key: dir.write(&format!("{file}.key"), &key.serialize_pem()) }
    };
    let files = [new("one", "a.example"), new("two", "b.example")];
    let certificates = Certificates::read(&files).unwrap();
    let first = certificates.current();
    new("one", "c.example");
    std::fs::remove_file(&files[1].key).unwrap();
    let problems = certificates.reload().unwrap_err();
    assert!(problems.to_string().contains("cannot read"), "{problems}");
    assert!(Arc::ptr_eq(&first, &certificates.current()));
    new("two", "d.example");
    certificates.reload().unwrap();
    let names: Vec<_> =
        certificates.current().all().iter().flat_map(|it| it.names.clone()).collect();
    assert_eq!(names, ["c.example", "d.example"]);
    // One that has expired does not replace one that may still be valid.
    dir.self_signed("two", &["d.example"]);
    let problems = certificates.reload().unwrap_err();
    assert!(problems.to_string().contains("expired"), "{problems}");
    assert_eq!(certificates.reloads.load(Relaxed), 1);
    assert_eq!(certificates.failed_reloads.load(Relaxed), 2);
}
