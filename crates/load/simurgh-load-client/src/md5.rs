//! MD5 as text.

use md5::Digest as _;

/// Lower-case MD5, as in digest authentication and Tsung's `ts_digest:md5hex`.
#[must_use]
pub fn md5_hex(bytes: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(md5::Md5::digest(bytes).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_matches_the_examples_of_rfc_1321() {
        assert_eq!(md5_hex(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(md5_hex(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }
}
