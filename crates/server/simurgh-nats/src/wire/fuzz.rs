//! Any bytes as the stream of a server: the body of the fuzz target `nats_wire`.
//!
//! The first byte is the size of the pieces that the rest is cut into. It must change neither the
//! operations nor the error; no more is buffered than was received; a message has the bytes of the
//! input, and decodes the same when it is encoded again.

use super::{Decoder, MESSAGE_BYTES_MAX, Malformed, Message, Op};

/// # Panics
/// An invariant is broken.
pub fn run(data: &[u8]) {
    let Some((&piece, input)) = data.split_first() else { return };
    let (whole, end) = all(input, input.len());
    for piece in [1, usize::from(piece) + 1] {
        assert_eq!(all(input, piece), (whole.clone(), end), "in pieces of {piece}");
    }
    let messages = whole.into_iter().filter_map(|op| match op {
        Op::Message(message) => Some(message),
        _ => None,
    });
    let messages: Vec<Message> = messages.collect();
    messages.iter().for_each(|message| check_message(message.clone(), input));
    crate::jetstream::fuzz::run(messages);
}

fn all(input: &[u8], piece: usize) -> (Vec<Op>, Option<Malformed>) {
    let (mut decoder, mut ops, mut received) = (Decoder::default(), Vec::new(), 0);
    for piece in input.chunks(piece.max(1)) {
        decoder.buffer.extend_from_slice(piece);
        received += piece.len();
        loop {
            assert!(decoder.buffer.len() <= received, "more is buffered than was received");
            // The decoder may reserve room for the rest of one message only.
            assert!(decoder.buffer.capacity() <= 4 * MESSAGE_BYTES_MAX + 2 * received);
            match decoder.next() {
                Ok(Some(op)) => ops.push(op),
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return (ops, Some(error));
                }
            }
        }
    }
    (ops, None)
}

fn check_message(message: Message, input: &[u8]) {
    let subject = message.subject().to_vec();
    assert!(!subject.is_empty() && !subject.iter().any(|it| b" \t\n".contains(it)));
    let sid = message.sid;
    let stands =
        |bytes: &[u8]| bytes.is_empty() || input.windows(bytes.len()).any(|it| it == bytes);
    assert!(stands(message.payload()), "the payload is not in the input");
    if let Some(numbers) = message.stored() {
        let input = message.header("Nats-Sequence").and_then(|it| it.parse().ok());
        assert_eq!(input, Some(numbers.seq));
    }
    let payload = message.into_payload();
    assert!(payload.len() <= MESSAGE_BYTES_MAX);
    let mut again = b"MSG ".to_vec();
    again.extend_from_slice(&subject);
    again.extend_from_slice(format!(" {sid} {}\r\n", payload.len()).as_bytes());
    again.extend_from_slice(&payload);
    again.extend_from_slice(b"\r\n");
    let (read, error) = all(&again, again.len());
    let [Op::Message(read)] = <[Op; 1]>::try_from(read).expect("one message") else {
        panic!("not a message, {error:?}");
    };
    assert_eq!((read.sid, read.subject(), read.payload()), (sid, &subject[..], &payload[..]));
    assert_eq!(read.stored(), None);
}
