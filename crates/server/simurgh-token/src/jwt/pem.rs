//! PEM, and why one cannot be used. No message shows its text, which may be a private key.

use rustls_pki_types::pem::{PemObject, SectionKind};

use crate::error::KeyError;

pub(super) struct Section(pub(super) SectionKind, pub(super) Vec<u8>);

impl PemObject for Section {
    fn from_pem(kind: SectionKind, der: Vec<u8>) -> Option<Self> {
        Some(Self(kind, der))
    }
}

/// Keys that do not verify, by a mark in their PEM: what they are, and what converts them.
const NOT_PUBLIC: &[(&str, &str)] = &[
    (
        "OPENSSH PRIVATE KEY",
        "it is a private key of OpenSSH; `ssh-keygen -e -m PKCS8 -f FILE` prints the public one \
         for RSA and ECDSA, not for Ed25519",
    ),
    (
        "PRIVATE KEY",
        "it is a private key, which is only for signing; `openssl pkey -in FILE -pubout` prints \
         the public one",
    ),
    (
        "RSA PUBLIC KEY",
        "it is a public key of PKCS #1 (RSA PUBLIC KEY); `openssl rsa -RSAPublicKey_in -in FILE \
         -pubout` converts it",
    ),
    (
        "CERTIFICATE",
        "it is a certificate; `openssl x509 -in FILE -noout -pubkey` prints its public key",
    ),
];

/// Keys that do not sign, likewise.
const NOT_PRIVATE: &[(&str, &str)] = &[
    (
        "OPENSSH PRIVATE KEY",
        "it is a private key of OpenSSH; `ssh-keygen -p -m PKCS8 -f COPY` converts a copy of it \
         for RSA and ECDSA, `openssl genpkey -algorithm ed25519` makes a new key for Ed25519",
    ),
    (
        "ENCRYPTED",
        "it is an encrypted private key; `openssl pkey -in FILE -out NEW` asks for its passphrase \
         and writes it without one",
    ),
    (
        "EC PRIVATE KEY",
        "it is a key of SEC 1; `openssl pkcs8 -topk8 -nocrypt -in FILE` makes PKCS #8 of it",
    ),
    ("PUBLIC KEY", "it is a public key; signing needs the private one"),
    ("CERTIFICATE", "it is a certificate; signing needs its private key"),
];

pub(super) fn not_public(pem: &str) -> KeyError {
    unusable(pem, NOT_PUBLIC, "PUBLIC KEY")
}

pub(super) fn not_private(pem: &str) -> KeyError {
    unusable(pem, NOT_PRIVATE, "PRIVATE KEY")
}

fn unusable(pem: &str, known: &[(&str, &str)], label: &str) -> KeyError {
    KeyError::new(match known.iter().find(|(mark, _)| pem.contains(mark)) {
        Some((_, what)) => (*what).to_owned(),
        None => format!(
            "the PEM cannot be read: it needs the line -----BEGIN {label}-----, lines of base64, \
             and the line -----END {label}-----. Restore its line breaks if they are missing or \
             written as \\n"
        ),
    })
}
