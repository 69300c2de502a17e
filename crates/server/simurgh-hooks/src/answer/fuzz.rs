//! Any bytes as an answer: the body of the fuzz target `hook_answer`.
//!
//! The first byte chooses kind and status. Only 2xx may allow, an answer reads the same each time
//! (cached ones are read again), and a refusal has a JSON object.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::Answer;
use super::outcome::{BODY_MAX, Outcome, Response, decide};
use crate::question::Kind;

const STATUSES: [u16; 8] = [200, 204, 302, 401, 403, 429, 500, 503];

/// # Panics
/// An invariant is broken.
pub fn run(data: &[u8]) {
    let Some((&choice, body)) = data.split_first() else { return };
    let kind = Kind::ALL[usize::from(choice) % 4];
    let status = STATUSES[usize::from(choice) / 4 % 8];
    let text = String::from_utf8_lossy(body).into_owned();
    let response = Response {
        status,
        location: Some(text.clone()),
        retry_after: Some(text),
        date: None,
        body: (body.len() <= BODY_MAX).then(|| body.to_vec()),
    };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_773_600);
    let outcome = decide(kind, &response, now, &[]);
    assert_eq!(format!("{outcome:?}"), format!("{:?}", decide(kind, &response, now, &[])));
    match outcome {
        Outcome::Allowed(grant) => {
            assert!(matches!(status, 200 | 204) && response.body.is_some());
            if let Answer::Connect(answer) = grant.answer {
                assert_ne!(answer.user.as_deref(), Some(""));
            }
        }
        Outcome::Refused { refusal, cache_for, .. } => {
            assert!(matches!(status, 302 | 401 | 403) && cache_for <= 3600);
            serde_json::from_str::<Map<String, Value>>(&refusal.response).expect("an object");
        }
        Outcome::Failed { pause, .. } => assert!(pause.unwrap_or_default().as_secs() <= 30),
    }
}

#[cfg(test)]
mod tests {
    use crate::answer::corpus;

    #[test]
    fn fuzz_corpus_of_answers_passes() {
        corpus::run("hook_answer", super::run);
    }
}
