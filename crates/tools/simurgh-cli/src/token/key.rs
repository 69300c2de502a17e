//! Keys from a file, standard input or the environment, never from an argument, which every user of
//! the machine can see.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use simurgh_token::jwt::{Keys, SigningKey};
use simurgh_token::{KeyError, KeySource};

use super::{INPUT_BYTES_MAX, standard_input};

/// The key, and what it is for.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// File with the key: PEM, a JWK or JWKS, a secret (with --secret), or secret_key_base; - reads
    /// standard input. One newline at the end is not part of a secret.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Environment variable with the key, without --key-file.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "SIMURGH_TOKEN_KEY",
        conflicts_with = "key_file"
    )]
    key_env: String,
    /// The key is a secret for HS256. Required for keys other than PEM or JSON.
    #[arg(long, conflicts_with = "phoenix_salt")]
    secret: bool,
    /// The key is a secret_key_base, and this is the salt of Phoenix.Token.sign.
    #[arg(long, value_name = "SALT")]
    pub(super) phoenix_salt: Option<String>,
}

pub(super) struct Text {
    bytes: Vec<u8>,
    is_secret: bool,
}

impl Flags {
    pub(super) fn reads_standard_input(&self) -> bool {
        self.key_file.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }

    pub(super) fn read(&self) -> Result<Option<Text>, String> {
        let bytes = match &self.key_file {
            Some(_) if self.reads_standard_input() => Some(standard_input()?),
            Some(path) => {
                let mut bytes = Vec::new();
                File::open(path)
                    .and_then(|file| file.take(INPUT_BYTES_MAX).read_to_end(&mut bytes))
                    .map_err(|error| format!("cannot read the key {}: {error}", path.display()))?;
                Some(bytes)
            }
            None => std::env::var_os(&self.key_env).map(std::ffi::OsString::into_encoded_bytes),
        };
        match bytes {
            Some(bytes) if bytes.trim_ascii().is_empty() => Err("the key is empty".to_owned()),
            bytes => Ok(bytes.map(|bytes| Text { bytes, is_secret: self.secret })),
        }
    }

    pub(super) fn required(&self) -> Result<Text, String> {
        let none = || {
            let name = &self.key_env;
            format!("no key given: use --key-file, or set the environment variable {name}")
        };
        self.read()?.ok_or_else(none)
    }
}

impl Text {
    /// As a secret, without the final newline that an editor adds.
    fn secret(&self) -> &[u8] {
        let bytes = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }

    pub(super) fn secret_key_base(&self) -> Result<&str, String> {
        std::str::from_utf8(self.secret()).map_err(|_| "secret_key_base is not UTF-8".to_owned())
    }

    /// A signing key; its format is recognised.
    pub(super) fn signing(&self) -> Result<SigningKey, String> {
        let key = self.source().and_then(|source| match source {
            KeySource::Pem(pem) => SigningKey::from_pem(&pem),
            KeySource::Jwks(jwk) => SigningKey::from_jwk(&jwk),
            source => SigningKey::from_secret(secret_of(&source)),
        });
        key.map_err(|error| error.to_string())
    }

    /// Verification keys: public keys, or a signing key.
    pub(super) fn verifying(&self) -> Result<Keys, String> {
        let keys = self.source().and_then(|source| match source {
            KeySource::Pem(pem) if pem.contains("PRIVATE KEY-----") => {
                SigningKey::from_pem(&pem).map(|key| key.verifying_key().into())
            }
            KeySource::Pem(pem) => Keys::from_pem(&pem),
            KeySource::Jwks(jwks) => match SigningKey::from_jwk(&jwks) {
                Ok(key) => Ok(key.verifying_key().into()),
                Err(_) => Keys::from_jwks(&jwks),
            },
            source => Keys::from_secret(secret_of(&source)),
        });
        keys.map_err(|error| error.to_string())
    }

    fn source(&self) -> Result<KeySource, KeyError> {
        KeySource::recognise(self.secret(), self.is_secret)
    }
}

fn secret_of(source: &KeySource) -> &[u8] {
    match source {
        KeySource::Secret(secret) => secret,
        _ => &[],
    }
}
