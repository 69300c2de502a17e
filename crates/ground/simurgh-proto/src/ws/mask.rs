//! Masking (RFC 6455 §5.3), a word at a time and in place.

/// XORs `bytes` with the masking key, as if `offset` bytes of the same payload came before.
///
/// The same call masks and unmasks. It processes eight bytes at once; the loop has no branch
/// inside, so the compiler turns it into vector instructions.
#[inline]
pub(super) fn apply(bytes: &mut [u8], key: [u8; 4], offset: usize) {
    let mut key = key;
    key.rotate_left(offset % 4);
    let half = u64::from(u32::from_ne_bytes(key));
    let word = half << 32 | half;
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for chunk in words {
        *chunk = (u64::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(word.to_ne_bytes()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn wordwise_masking_equals_bytewise_masking() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for offset in 0..9 {
            for len in 0..40 {
                let plain: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
                let mut masked = plain.clone();
                apply(&mut masked, key, offset);
                let slow: Vec<u8> = plain
                    .iter()
                    .enumerate()
                    .map(|(n, byte)| byte ^ key[(n + offset) % 4])
                    .collect();
                assert_eq!(masked, slow, "offset {offset}, length {len}");
            }
        }
    }
}
