//! Parses keys from a keyboard's bytes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Pause,
    Resume,
    Faster,
    Slower,
    /// Asks for confirmation.
    Stop,
    Yes,
    /// Any other key: it answers the question with no.
    Other,
}

const ESCAPE: u8 = 0x1b;

/// The keys of one read. Arrows and similar keys are sequences that begin with an escape and whose
/// letters are not keys; they come in one read.
pub(super) fn parse(bytes: &[u8]) -> Vec<Key> {
    let typed = bytes.iter().position(|byte| *byte == ESCAPE).unwrap_or(bytes.len());
    let keys = bytes.iter().take(typed).map(|byte| match byte {
        b'p' | b'P' => Key::Pause,
        b'r' | b'R' => Key::Resume,
        b'+' | b'=' => Key::Faster,
        b'-' | b'_' => Key::Slower,
        b'q' | b'Q' => Key::Stop,
        b'y' | b'Y' => Key::Yes,
        _ => Key::Other,
    });
    let sequence = (typed < bytes.len()).then_some(Key::Other);
    keys.chain(sequence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_keys_and_sequences_are_not() {
        assert_eq!(parse(b"pr+-q"), [Key::Pause, Key::Resume, Key::Faster, Key::Slower, Key::Stop]);
        assert_eq!(parse(b"\x1b[q"), [Key::Other]);
        assert_eq!(parse(b"p\x1b[1;5q"), [Key::Pause, Key::Other]);
        assert_eq!(parse(b""), []);
        assert_eq!(parse(&[0xff, 0]), [Key::Other, Key::Other]);
    }
}
