//! Any bytes as a compressed message, and as one to compress.
use simurgh_proto::ws::{Deflater, FrameError, Inflater};

/// The longest message that is accepted here, in bytes.
const BYTES_MAX: usize = 100_000;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let mut inflater = Inflater::default();
    let first = inflater.inflate(data, BYTES_MAX);
    match &first {
        Ok(message) => {
            assert!(message.len() <= BYTES_MAX && message.capacity() <= BYTES_MAX);
            if let Some(limit) = message.len().checked_sub(1) {
                assert_eq!(inflater.inflate(data, limit), Err(FrameError::MessageTooBig));
            }
        }
        Err(error) => {
            assert!(matches!(error, FrameError::MessageTooBig | FrameError::Compression));
        }
    }
    assert_eq!(inflater.inflate(data, BYTES_MAX), first, "no message has a part in the next");
    let mut deflater = Deflater::default();
    for _ in 0..2 {
        let Some(short) = deflater.deflate(data) else { continue };
        assert!(short.len() < data.len());
        assert_eq!(inflater.inflate(short, data.len()).as_deref(), Ok(data));
    }
}
