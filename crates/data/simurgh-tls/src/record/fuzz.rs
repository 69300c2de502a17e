//! Any bytes as the input of an open connection: the body of the fuzz target `tls_record`.
//!
//! The first byte chooses suite, side, and whether we have closed. The rest are operations of a
//! peer that has the keys: it seals a record of any type, content and padding, goes to its next
//! key, sends bytes that are no record, or damages what it sent. However the bytes are cut, the
//! connection returns only data that was sealed, in its order, ends at most once, keeps less than
//! one record, and answers little.
#![allow(unreachable_pub, reason = "the fuzz target calls it")]

use super::cipher::Cipher;
use super::{
    AES_128_GCM_BYTES, AES_256_GCM_BYTES, APPLICATION_DATA, CHACHA20_POLY1305_BYTES, Direction,
    End, HANDSHAKE, INPUT_BYTES_MAX, KEY_UPDATE, Keys, PLAIN_BYTES_MAX, Suite,
};

/// Bytes on the wire, about: each is given alone, too.
const BYTES_MAX: usize = 1 << 13;

/// # Panics
/// An invariant is broken.
#[expect(clippy::unwrap_used, reason = "a broken invariant is a find")]
pub fn run(data: &[u8]) {
    let Some((&choice, operations)) = data.split_first() else { return };
    match choice % 3 {
        0 => run_suite::<AES_128_GCM_BYTES>(Suite::Aes128Gcm, choice, operations),
        1 => run_suite::<CHACHA20_POLY1305_BYTES>(Suite::ChaCha20Poly1305, choice, operations),
        _ => run_suite::<AES_256_GCM_BYTES>(Suite::Aes256Gcm, choice, operations),
    }
    .unwrap();
}

fn run_suite<const N: usize>(
    suite: Suite,
    choice: u8,
    operations: &[u8],
) -> Result<(), ring::error::Unspecified> {
    let mut peer = Peer { suite, secret: vec![2; suite.secret_bytes()], number: 0 };
    let (wire, sent) = peer.play(operations)?;
    let mut results = Vec::new();
    for piece in [usize::MAX, 1, usize::from(choice) + 2] {
        let ours = vec![1; suite.secret_bytes()];
        let to_send = Direction { secret: &ours, number: 0 };
        let theirs = vec![2; suite.secret_bytes()];
        let to_open = Direction { secret: &theirs, number: 0 };
        let mut keys = Keys::<N>::new(suite, choice & 64 != 0, to_send, to_open)?;
        if choice & 128 != 0 {
            keys.record().close(&mut Vec::new());
        }
        results.push(receive(&mut keys, &wire, piece));
    }
    for (received, end) in &results {
        assert!(sent.starts_with(received), "data that was not sent");
        assert_eq!((received, end), (&results[0].0, &results[0].1), "depends on the cut");
    }
    Ok(())
}

/// Data and end of the whole `wire`.
fn receive<const N: usize>(
    keys: &mut Keys<N>,
    wire: &[u8],
    piece: usize,
) -> (Vec<u8>, Option<End>) {
    let (mut held, mut all, mut end) = (Vec::new(), Vec::new(), None);
    let mut answer = Vec::new();
    for piece in wire.chunks(piece) {
        held.extend_from_slice(piece);
        let opened = keys.record().open(&mut held, &mut answer);
        assert!(opened.plain.end <= opened.used && opened.used <= held.len());
        all.extend_from_slice(&held[opened.plain]);
        held.drain(..opened.used);
        assert!(held.len() < INPUT_BYTES_MAX, "more is kept than one record");
        assert!(end.is_none() || opened.end.is_none(), "two ends");
        end = end.or(opened.end);
        assert!(end.is_none() || held.is_empty());
    }
    assert!(answer.len() <= 27 * (wire.len() / 22 + 1), "a long answer");
    (all, end)
}

struct Peer {
    suite: Suite,
    secret: Vec<u8>,
    number: u64,
}

impl Peer {
    /// What the operations put on the wire, and the data that was sealed.
    fn play(&mut self, operations: &[u8]) -> Result<(Vec<u8>, Vec<u8>), ring::error::Unspecified> {
        let (mut wire, mut sent, mut rest) = (Vec::new(), Vec::new(), operations);
        while let Some((&[operation, length], more)) = rest.split_first_chunk()
            && wire.len() < BYTES_MAX
        {
            let (content, more) = more.split_at(usize::from(length).min(more.len()));
            rest = more;
            match operation % 8 {
                0 => {
                    sent.extend_from_slice(content);
                    wire.extend(self.seal(APPLICATION_DATA, content, 0)?);
                }
                1 => {
                    sent.extend_from_slice(content);
                    wire.extend(self.seal(APPLICATION_DATA, content, usize::from(length) * 65)?);
                }
                2 => wire.extend(self.seal(HANDSHAKE, content, 0)?),
                3 => {
                    let update = [KEY_UPDATE, 0, 0, 1, operation >> 7];
                    wire.extend(self.seal(HANDSHAKE, &update, 0)?);
                    self.next_key()?;
                }
                4 => wire.extend(match operation >> 3 {
                    // No type at all.
                    0 => self.seal(0, &vec![0; content.len()], 0)?,
                    APPLICATION_DATA => self.seal(99, content, 0)?,
                    kind => self.seal(kind, content, 0)?,
                }),
                5 => self.next_key()?,
                6 => wire.extend_from_slice(content),
                _ => {
                    let back = usize::from(length).min(wire.len());
                    let at = wire.len() - back;
                    if let Some(byte) = wire.get_mut(at) {
                        *byte ^= operation | 1;
                    }
                }
            }
        }
        Ok((wire, sent))
    }

    fn next_key(&mut self) -> Result<(), ring::error::Unspecified> {
        let next = self.suite.next_secret(&self.secret)?;
        let bytes = self.secret.len();
        self.secret.copy_from_slice(&next[..bytes]);
        self.number = 0;
        Ok(())
    }

    fn seal(
        &mut self,
        kind: u8,
        content: &[u8],
        padding: usize,
    ) -> Result<Vec<u8>, ring::error::Unspecified> {
        let mut text = [content, &[kind]].concat();
        // Up to a little more than is allowed.
        text.resize((text.len() + padding).min(PLAIN_BYTES_MAX + 10), 0);
        let [high, low] = ((text.len() + 16) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let cipher: Cipher = self.suite.opening(&self.secret)?;
        let tag = cipher.seal(self.number, header, &mut text)?;
        self.number += 1;
        Ok([&header, text.as_slice(), tag.as_ref()].concat())
    }
}

#[cfg(test)]
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_corpus_of_records_passes() {
        super::corpus::run("tls_record", super::run);
    }
}
