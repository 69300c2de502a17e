//! Why a handshake failed, for people.

use rustls::{AlertDescription, Error, PeerIncompatible};

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are no handshake record. A server may answer plain HTTP with 400.
    #[error("the other side does not speak TLS: is its address https or wss?")]
    NotTls,
    /// The peer sent more than 64 KiB without an end of the handshake.
    #[error("the TLS handshake is longer than 64 KiB")]
    TooLong,
    /// A programming error of the caller.
    #[error("the TLS handshake is not done yet")]
    NotDone,
    /// The configuration has another key log, or rustls moved on without us.
    #[error("rustls uses other traffic secrets than it logged: the connection cannot leave rustls")]
    OtherSecrets,
    /// rustls refused the configuration or the peer, or the peer refused us.
    #[error("{}", explanation(.0))]
    Refused(#[from] Error),
}

fn explanation(error: &Error) -> String {
    match error {
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "the two sides have no TLS version in common".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon) => {
            "the two sides have no cipher suite in common".to_owned()
        }
        Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) => {
            "the two sides have no key exchange in common".to_owned()
        }
        Error::NoApplicationProtocol => {
            "the two sides have no application protocol (ALPN) in common".to_owned()
        }
        Error::NoCertificatesPresented => "the other side sent no certificate".to_owned(),
        Error::InvalidCertificate(why) => {
            format!("the certificate of the other side is not valid: {why}")
        }
        Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA),
        ) => format!("the other side does not accept our certificate (alert {alert:?})"),
        Error::AlertReceived(alert) => {
            format!("the other side ended the TLS handshake (alert {alert:?})")
        }
        error => format!("the TLS handshake failed: {error}"),
    }
}
