//! A peer that has the keys of a connection and seals whatever a test wants, by code of its own.

use std::sync::{Arc, Mutex};

use ring::{aead, hkdf};
use rustls::KeyLog;
use simurgh_tls::rustls;

/// Both first traffic secrets, as the peer's rustls logged them.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Mutex<[Vec<u8>; 2]>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap();
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => secrets[0] = secret.to_vec(),
            "SERVER_TRAFFIC_SECRET_0" => secrets[1] = secret.to_vec(),
            _ => {}
        }
    }
}

impl Secrets {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn client(&self) -> Vec<u8> {
        self.0.lock().unwrap()[0].clone()
    }

    pub(crate) fn server(&self) -> Vec<u8> {
        self.0.lock().unwrap()[1].clone()
    }
}

/// With `TLS_AES_128_GCM_SHA256`.
pub(crate) struct Attacker {
    pub(crate) secret: Vec<u8>,
    pub(crate) number: u64,
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(secret: &[u8], label: &str, bytes: usize) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&[0, bytes as u8, label.len() as u8][..], label.as_bytes(), &[0]];
    let mut out = vec![0; bytes];
    let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    secret.expand(&info, Length(bytes)).unwrap().fill(&mut out).unwrap();
    out
}

impl Attacker {
    pub(crate) fn next_key(&mut self) {
        self.secret = expand(&self.secret, "traffic upd", 32);
        self.number = 0;
    }

    /// A record of this type and content, with zeros behind.
    pub(crate) fn seal(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut text = [content, &[kind], &vec![0; padding]].concat();
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, &expand(&self.secret, "key", 16));
        let mut nonce: [u8; 12] = expand(&self.secret, "iv", 12).try_into().unwrap();
        for (nonce, byte) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *nonce ^= byte;
        }
        self.number += 1;
        let [high, low] = (text.len() as u16 + 16).to_be_bytes();
        let header = [23, 3, 3, high, low];
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let key = aead::LessSafeKey::new(key.unwrap());
        key.seal_in_place_append_tag(nonce, aead::Aad::from(header), &mut text).unwrap();
        [&header[..], &text].concat()
    }
}
