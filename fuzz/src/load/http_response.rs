//! Any bytes as answers to HTTP requests.
//!
//! The first byte says whether they answer a `HEAD`, the second how they are cut. All answers on
//! the connection must be the same however they are cut.
use simurgh_load::answer::AnswerText;
use simurgh_load::http::{Done, Event, Kept, Limits, Response, ResponseError};

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [to_head, size, wire @ ..] = data else { return };
    let to_head = to_head % 2 == 1;
    let whole = read_all(wire, wire.len(), to_head);
    let pieces = read_all(wire, usize::from(*size) + 1, to_head);
    assert_eq!(whole.1, pieces.1, "the same end");
    for (one, other) in whole.0.iter().zip(&pieces.0) {
        assert_eq!(one, other, "the same answer");
    }
    assert_eq!(whole.0.len(), pieces.0.len(), "as many answers");
}

type Answer = (Done, Vec<u8>);

/// All answers in `wire`, and how it ends.
fn read_all(wire: &[u8], size: usize, to_head: bool) -> (Vec<Answer>, Option<ResponseError>) {
    let mut answers = Vec::new();
    let new = || (Response::new(to_head, Limits { head_bytes_max: 2000 }), Kept::new(usize::MAX));
    let (mut response, mut kept) = new();
    for mut bytes in wire.chunks(size.max(1)) {
        while !bytes.is_empty() {
            match response.next(&mut bytes) {
                Ok(Event::Done(done)) => {
                    answers.push(answer(done, &kept));
                    (response, kept) = new();
                }
                Ok(Event::More) => assert!(bytes.is_empty()),
                Ok(event) => {
                    if let Event::Body(data) = event {
                        assert!(!data.is_empty());
                    }
                    kept.take(&event);
                }
                Err(error) => return (answers, Some(error)),
            }
        }
        // The last answer may end with the connection.
        if response.has_begun()
            && let Ok(Event::Done(done)) = response.next(&mut bytes)
        {
            answers.push(answer(done, &kept));
            (response, kept) = new();
        }
    }
    match response.end() {
        Ok(done) => {
            answers.push(answer(done, &kept));
            (answers, None)
        }
        Err(error) => (answers, Some(error)),
    }
}

fn answer(done: Done, kept: &Kept) -> Answer {
    let text = AnswerText::kept(kept);
    assert_eq!(text.body().len() as u64, done.body_bytes, "all of the body is kept");
    assert!(text.head().is_some_and(|head| head.len() as u64 <= done.head_bytes));
    (done, text.whole().to_vec())
}
