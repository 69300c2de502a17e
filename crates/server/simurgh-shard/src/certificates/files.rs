//! Reads a certificate with its key from PEM files, and checks both.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use super::problem::CertificateProblem;
use crate::config::CertificateFiles;

/// An earlier warning would come with every certificate that is renewed a month before its end.
const SOON: Duration = Duration::from_secs(21 * 24 * 3600);

/// A certificate with its chain and key.
#[derive(Debug)]
pub struct Certificate {
    pub files: CertificateFiles,
    /// Its DNS names, also wildcards.
    pub names: Vec<String>,
    pub not_after: SystemTime,
    key: Arc<CertifiedKey>,
}

impl Certificate {
    /// Reads the files; adds all problems. Returns `None` if one of them prevents a start.
    pub(super) fn read(
        files: &CertificateFiles,
        now: SystemTime,
        problems: &mut Vec<CertificateProblem>,
    ) -> Option<Self> {
        let mut note = |problem| problems.push(problem);
        let chain = read_chain(&files.chain).map_err(&mut note);
        let key = read_key(&files.key).map_err(&mut note);
        let (chain, key) = (chain.ok()?, key.ok()?);
        let certificate = Self::check(files, chain, key, now, problems);
        certificate.map_err(|problem| problems.push(problem)).ok()
    }

    /// Seconds until it expires; negative afterwards.
    pub fn expires_in_s(&self) -> f64 {
        match self.not_after.duration_since(SystemTime::now()) {
            Ok(left) => left.as_secs_f64(),
            Err(error) => -error.duration().as_secs_f64(),
        }
    }

    pub(super) fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key)
    }

    fn check(
        files: &CertificateFiles,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        now: SystemTime,
        problems: &mut Vec<CertificateProblem>,
    ) -> Result<Self, CertificateProblem> {
        let file = &files.chain;
        let wrong = |why: &dyn ToString| CertificateProblem::BadCertificate {
            file: file.clone(),
            why: why.to_string(),
        };
        let no_certificate = || CertificateProblem::NoCertificate(file.clone());
        let (first, issuers) = chain.split_first().ok_or_else(no_certificate)?;
        let leaf = EndEntityCert::try_from(first).map_err(|error| wrong(&error))?;
        let names = leaf.valid_dns_names().map(str::to_owned).collect();
        let (not_before, not_after) = validity(&leaf).map_err(|error| wrong(&error))?;
        let has_issuer = leaf.issuer() == leaf.subject()
            || issuers.iter().any(|issuer| is_subject(issuer, leaf.issuer()));
        let signing_key = ring::sign::any_supported_type(&key).map_err(|error| {
            CertificateProblem::BadKey { file: files.key.clone(), why: error.to_string() }
        })?;
        let key = CertifiedKey::new(chain.clone(), signing_key);
        key.keys_match().map_err(|_| CertificateProblem::Mismatch {
            file: files.key.clone(),
            chain: file.clone(),
        })?;
        if now >= not_after {
            problems.push(CertificateProblem::Expired { file: file.clone(), at: not_after });
        } else if now < not_before {
            problems.push(CertificateProblem::NotYetValid { file: file.clone(), from: not_before });
        } else if now + SOON >= not_after {
            problems.push(CertificateProblem::ExpiresSoon { file: file.clone(), at: not_after });
        }
        if !has_issuer {
            problems.push(CertificateProblem::Incomplete(file.clone()));
        }
        Ok(Self { files: files.clone(), names, not_after, key: Arc::new(key) })
    }
}

fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateProblem> {
    let text = read(file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| CertificateProblem::BadCertificate {
        file: file.to_owned(),
        why: error.to_string(),
    })?;
    match chain.is_empty() {
        true => Err(CertificateProblem::NoCertificate(file.to_owned())),
        false => Ok(chain),
    }
}

fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>, CertificateProblem> {
    use rustls::pki_types::pem::Error;
    let text = read(file)?;
    let is_encrypted = text.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
    if is_encrypted {
        return Err(CertificateProblem::EncryptedKey(file.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        Error::NoItemsFound => CertificateProblem::NoKey(file.to_owned()),
        // Other errors quote lines of the file.
        _ => CertificateProblem::BadKey { file: file.to_owned(), why: "not PEM".to_owned() },
    })
}

/// In `BEGIN ENCRYPTED PRIVATE KEY` (PKCS #8) and `Proc-Type: 4,ENCRYPTED` (RFC 1421).
const ENCRYPTED: &[u8] = b"ENCRYPTED";

fn read(file: &Path) -> Result<Vec<u8>, CertificateProblem> {
    std::fs::read(file).map_err(|error| CertificateProblem::Unreadable {
        file: file.to_owned(),
        why: error.to_string(),
    })
}

fn is_subject(certificate: &CertificateDer<'_>, name: &[u8]) -> bool {
    EndEntityCert::try_from(certificate).is_ok_and(|it| it.subject() == name)
}

/// From when and until when it is valid: webpki has no other access to these fields than the error
/// of a check before or after them. The check of a time precedes all others.
fn validity(leaf: &EndEntityCert<'_>) -> Result<(SystemTime, SystemTime), webpki::Error> {
    let at = |seconds| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        leaf.verify_for_usage(&[], &[], &[], time, KeyUsage::server_auth(), None, None).err()
    };
    let not_before = match at(0) {
        Some(webpki::Error::CertNotValidYet { not_before, .. }) => system_time(not_before),
        Some(error @ webpki::Error::InvalidCertValidity) => return Err(error),
        _ => UNIX_EPOCH,
    };
    match at(u64::MAX) {
        Some(webpki::Error::CertExpired { not_after, .. }) => {
            Ok((not_before, system_time(not_after)))
        }
        other => Err(other.unwrap_or(webpki::Error::BadDerTime)),
    }
}

fn system_time(time: UnixTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(time.as_secs())
}
