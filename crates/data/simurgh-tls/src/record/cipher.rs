//! Keys of one direction: their derivation (RFC 8446 §7) and their use (§5.2, §5.3), by ring.

use ring::aead::{self, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::error::Unspecified;
use ring::hkdf;
use zeroize::Zeroizing;

pub(crate) const IV_BYTES: usize = 12;
pub(super) const TAG_BYTES: usize = 16;
const KEY_BYTES_MAX: usize = 32;
const SECRET_BYTES_MAX: usize = 48;

/// The AEAD of a connection, with the hash that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128Gcm,
    /// `TLS_CHACHA20_POLY1305_SHA256`
    ChaCha20Poly1305,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256Gcm,
}

impl Suite {
    pub(super) const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Aes128Gcm,
            1 => Self::ChaCha20Poly1305,
            _ => Self::Aes256Gcm,
        }
    }

    pub(crate) const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::ChaCha20Poly1305 | Self::Aes256Gcm => KEY_BYTES_MAX,
        }
    }

    pub(crate) const fn secret_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => 32,
            Self::Aes256Gcm => SECRET_BYTES_MAX,
        }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            Self::Aes256Gcm => &aead::AES_256_GCM,
        }
    }

    fn hkdf(self, secret: &[u8]) -> hkdf::Prk {
        let hash = match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
            Self::Aes256Gcm => hkdf::HKDF_SHA384,
        };
        hkdf::Prk::new_less_safe(hash, secret)
    }

    /// Key and IV of a traffic secret, one behind the other (RFC 8446 §7.3).
    pub(crate) fn key_and_iv(
        self,
        secret: &[u8],
    ) -> Result<Zeroizing<[u8; KEY_BYTES_MAX + IV_BYTES]>, Unspecified> {
        let mut both = Zeroizing::new([0; KEY_BYTES_MAX + IV_BYTES]);
        let secret = self.hkdf(secret);
        let (key, rest) = both.split_at_mut(self.key_bytes());
        expand_label(&secret, b"key", key)?;
        expand_label(&secret, b"iv", &mut rest[..IV_BYTES])?;
        Ok(both)
    }

    /// The secret that follows on `secret` after a key update (RFC 8446 §7.2).
    pub(super) fn next_secret(
        self,
        secret: &[u8],
    ) -> Result<Zeroizing<[u8; SECRET_BYTES_MAX]>, Unspecified> {
        let mut next = Zeroizing::new([0; SECRET_BYTES_MAX]);
        expand_label(&self.hkdf(secret), b"traffic upd", &mut next[..self.secret_bytes()])?;
        Ok(next)
    }

    pub(super) fn opening(self, secret: &[u8]) -> Result<Cipher, Unspecified> {
        let both = self.key_and_iv(secret)?;
        Cipher::new(self, &both[..self.key_bytes() + IV_BYTES])
    }
}

/// A key that is ready for use, 560 bytes: it lives for one call only.
pub(super) struct Cipher {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
}

impl Cipher {
    pub(super) fn new(suite: Suite, key_and_iv: &[u8]) -> Result<Self, Unspecified> {
        let (key, iv) = key_and_iv.split_at_checked(suite.key_bytes()).ok_or(Unspecified)?;
        let key = LessSafeKey::new(UnboundKey::new(suite.aead(), key)?);
        Ok(Self { key, iv: iv.try_into().map_err(|_| Unspecified)? })
    }

    pub(super) fn seal(
        &self,
        number: u64,
        header: [u8; 5],
        text: &mut [u8],
    ) -> Result<Tag, Unspecified> {
        self.key.seal_in_place_separate_tag(self.nonce(number), Aad::from(header), text)
    }

    /// Opens the body that begins at `body` in `in_out`, and puts the plaintext at the front.
    pub(super) fn open<'t>(
        &self,
        number: u64,
        header: [u8; 5],
        in_out: &'t mut [u8],
        body: usize,
    ) -> Result<&'t [u8], Unspecified> {
        let (nonce, header) = (self.nonce(number), Aad::from(header));
        Ok(self.key.open_within(nonce, header, in_out, body..)?)
    }

    /// RFC 8446 §5.3.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        let bytes = number.to_be_bytes();
        nonce.iter_mut().rev().zip(bytes.iter().rev()).for_each(|(nonce, byte)| *nonce ^= byte);
        Nonce::assume_unique_for_key(nonce)
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `HKDF-Expand-Label` without context (RFC 8446 §7.1).
fn expand_label(secret: &hkdf::Prk, label: &[u8], out: &mut [u8]) -> Result<(), Unspecified> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(out.len()).map_err(|_| Unspecified)?.to_be_bytes();
    let label_length = u8::try_from(PREFIX.len() + label.len()).map_err(|_| Unspecified)?;
    let info = [&length, &[label_length][..], PREFIX, label, &[0]];
    secret.expand(&info, Length(out.len()))?.fill(out)
}
