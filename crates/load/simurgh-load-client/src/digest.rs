//! Digests as text.

use md5::Digest as _;
use ring::hmac;

/// Lower-case MD5, as in digest authentication and Tsung's `ts_digest:md5hex`.
#[must_use]
pub fn md5_hex(bytes: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(md5::Md5::digest(bytes).into()))
}

/// Lower-case HMAC with SHA-256, as in the signatures of Pusher.
#[must_use]
pub fn hmac_sha256_hex(key: &[u8], text: &[u8]) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_matches_the_examples_of_rfc_1321() {
        assert_eq!(md5_hex(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5_hex(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }

    #[test]
    fn hmac_matches_test_case_2_of_rfc_4231() {
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hmac_sha256_hex(b"Jefe", b"what do ya want for nothing?"), expected);
    }
}
