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
    /// The key: PEM, a JWK or JWKS, a secret (with --secret), secret_key_base. One newline at its
    /// end is not part of a secret. A - reads standard input.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The environment variable that has the key, where there is no --key-file.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "SIMURGH_TOKEN_KEY",
        conflicts_with = "key_file"
    )]
    key_env: String,
    /// Says that the key is the secret of HS256: any other text than PEM or JSON is refused.
    #[arg(long, conflicts_with = "phoenix_salt")]
    secret: bool,
    /// Says that the key is a secret_key_base, and what Phoenix.Token.sign is given as salt.
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
            format!("there is no key: name a --key-file, or put it into the variable {name}")
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
