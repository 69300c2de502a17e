//! Problems of certificates and keys, and how to fix them.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use humantime::format_rfc3339_seconds as date;

/// Something that is wrong with the files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateProblem {
    /// No files are set.
    #[error("TLS needs a certificate: set the files of a certificate and its key")]
    NoFiles,
    /// The system refuses to read a file.
    #[error("cannot read {}: {why}", .file.display())]
    Unreadable {
        /// Which one.
        file: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// The file of a certificate has none.
    #[error("{} has no certificate (-----BEGIN CERTIFICATE-----)", .0.display())]
    NoCertificate(PathBuf),
    /// A certificate cannot be used.
    #[error("{}: the certificate cannot be read: {why}", .file.display())]
    BadCertificate {
        /// Its file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file of a key has none.
    #[error("{} has no private key (-----BEGIN PRIVATE KEY-----)", .0.display())]
    NoKey(PathBuf),
    /// A key needs a passphrase.
    #[error(
        "{}: the private key is encrypted. Write it without a passphrase: \
         openssl pkey -in OLD -out NEW", .0.display()
    )]
    EncryptedKey(PathBuf),
    /// A key cannot be used.
    #[error(
        "{}: the private key cannot be used: {why}. Use ECDSA (P-256), Ed25519 or RSA, as PEM",
        .file.display()
    )]
    BadKey {
        /// Its file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// Key and certificate do not belong together.
    #[error(
        "{} is not the key of the first certificate in {}. Put the server's own certificate first",
        .file.display(), .chain.display()
    )]
    Mismatch {
        /// The file of the key.
        file: PathBuf,
        /// The file of the certificate.
        chain: PathBuf,
    },
    /// The certificate has expired.
    #[error("{}: the certificate expired at {}: clients refuse it", .file.display(), date(*.at))]
    Expired {
        /// Its file.
        file: PathBuf,
        /// When.
        at: SystemTime,
    },
    /// The certificate is not valid yet.
    #[error(
        "{}: the certificate is not valid before {}: clients refuse it until then. Check this \
         machine's clock", .file.display(), date(*.from)
    )]
    NotYetValid {
        /// Its file.
        file: PathBuf,
        /// From when on it is valid.
        from: SystemTime,
    },
    /// The certificate expires within 21 days.
    #[error("{}: the certificate expires at {}: renew it", .file.display(), date(*.at))]
    ExpiresSoon {
        /// Its file.
        file: PathBuf,
        /// When.
        at: SystemTime,
    },
    /// The certificate of the issuer is missing.
    #[error(
        "{}: the issuer's certificate is not in the file, and some clients then refuse the \
         connection. Use the file with the whole chain, often fullchain.pem", .0.display()
    )]
    Incomplete(PathBuf),
    /// Two certificates have the same DNS name.
    #[error(
        "{}: {name} is also a name of {}, which is used for it", .file.display(), .first.display()
    )]
    NameTwice {
        /// The name.
        name: String,
        /// The file that is not used for it.
        file: PathBuf,
        /// The file that is.
        first: PathBuf,
    },
}

/// The consequence of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Prevents a start, and a reload.
    Error,
    /// Prevents a reload: the certificate is not valid now.
    NotValid,
    /// Prevents nothing.
    Warning,
}

impl CertificateProblem {
    /// Its consequence.
    pub fn severity(&self) -> Severity {
        match self {
            Self::Expired { .. } | Self::NotYetValid { .. } => Severity::NotValid,
            Self::ExpiresSoon { .. } | Self::Incomplete(_) | Self::NameTwice { .. } => {
                Severity::Warning
            }
            _ => Severity::Error,
        }
    }

    /// Its file; `None` if no files are set.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::NoFiles => None,
            Self::NoCertificate(file)
            | Self::NoKey(file)
            | Self::EncryptedKey(file)
            | Self::Incomplete(file)
            | Self::Unreadable { file, .. }
            | Self::BadCertificate { file, .. }
            | Self::BadKey { file, .. }
            | Self::Mismatch { file, .. }
            | Self::Expired { file, .. }
            | Self::NotYetValid { file, .. }
            | Self::ExpiresSoon { file, .. }
            | Self::NameTwice { file, .. } => Some(file),
        }
    }

    pub(super) fn log(&self) {
        match self.severity() {
            Severity::Warning => tracing::warn!("TLS: {self}"),
            _ => tracing::error!("TLS: {self}"),
        }
    }
}

/// All problems of a server's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateProblems(pub Vec<CertificateProblem>);

impl std::error::Error for CertificateProblems {}

impl fmt::Display for CertificateProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}
