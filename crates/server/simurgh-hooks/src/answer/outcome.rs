//! The HTTP status of an answer decides, so that `403` of any framework is enough.

use std::time::{Duration, SystemTime};

use super::{Grant, grant, read};
use crate::breaker::Fault;
use crate::limiter::Signal;
use crate::question::Kind;
use crate::verdict::Refusal;

/// Most bytes of an answer's body.
pub(crate) const BODY_MAX: usize = 64 * 1024;

const PAUSE_MAX: Duration = Duration::from_secs(30);
const REFUSAL_S: u64 = 5;
const REFUSAL_MAX_S: u64 = 3600;
const SHOWN: usize = 200;

/// A response, as far as it counts.
#[derive(Debug, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    pub(crate) retry_after: Option<String>,
    pub(crate) date: Option<SystemTime>,
    /// `None`: longer than [`BODY_MAX`].
    pub(crate) body: Option<Vec<u8>>,
}

impl Response {
    fn shown(&self) -> String {
        shown(self.status, self.body.as_deref())
    }
}

/// The decision of a response.
#[derive(Debug)]
pub(crate) enum Outcome {
    Allowed(Grant),
    Refused {
        refusal: Refusal,
        /// Seconds that the refusal may be cached.
        cache_for: u64,
        /// A hint for the log.
        note: Option<String>,
    },
    Failed {
        fault: Fault,
        /// The hook sends nothing for this time.
        pause: Option<Duration>,
        signal: Signal,
        /// The reason, for the log.
        note: String,
    },
}

/// Decides about a response that came at `now`; answers may name these limits.
pub(crate) fn decide(
    kind: Kind,
    response: &Response,
    now: SystemTime,
    limits: &[String],
) -> Outcome {
    match response.status {
        200..=299 => allowed(kind, response, now, limits),
        401 | 403 => refused(response),
        302 | 303 | 307 => redirected(response),
        status => {
            let congested = matches!(status, 429 | 502 | 503 | 504);
            let signal = if congested { Signal::Congested } else { Signal::Answered };
            let asked = response.retry_after.as_deref().filter(|_| matches!(status, 429 | 503));
            let pause =
                asked.and_then(|text| retry_after(text, now)).map(|time| time.min(PAUSE_MAX));
            let fault = match status {
                400..=499 => Fault::Rejected,
                502..=504 => Fault::Silent,
                _ => Fault::Wrong,
            };
            Outcome::Failed { fault, pause, signal, note: response.shown() }
        }
    }
}

fn allowed(kind: Kind, response: &Response, now: SystemTime, limits: &[String]) -> Outcome {
    let problem = match &response.body {
        None => "the body is longer than 64 KiB".to_owned(),
        Some(body) => match grant(kind, body, unix_s(now), limits) {
            Ok(grant) => return Outcome::Allowed(grant),
            Err(wrong) => wrong.to_string(),
        },
    };
    let note = format!("{problem}; {}", response.shown());
    Outcome::Failed { fault: Fault::Wrong, pause: None, signal: Signal::Answered, note }
}

fn refused(response: &Response) -> Outcome {
    let body = response.body.as_deref().and_then(|body| std::str::from_utf8(body).ok());
    // Django answers 403 to a missing CSRF token: this looks like a decision and is a mistake.
    let note = body
        .filter(|body| body.contains("CSRF"))
        .map(|_| format!("{}; exempt the hook's path from CSRF checks", response.shown()));
    let Some((reason, retry_after)) = body.and_then(read::refusal) else {
        return Outcome::Refused { refusal: unauthorized(), cache_for: REFUSAL_S, note };
    };
    let reason = reason.unwrap_or_else(|| unauthorized().reason);
    let refusal = Refusal { reason, response: body.unwrap_or_default().trim().to_owned() };
    let cache_for = retry_after.unwrap_or(REFUSAL_S).min(REFUSAL_MAX_S);
    Outcome::Refused { refusal, cache_for, note }
}

/// A login page.
fn redirected(response: &Response) -> Outcome {
    let location = response.location.as_deref().unwrap_or_default();
    let page = location.split(['?', '#']).next().unwrap_or_default();
    let note = Some(format!("status {}, location {page:.200}", response.status));
    Outcome::Refused { refusal: unauthorized(), cache_for: REFUSAL_S, note }
}

fn unauthorized() -> Refusal {
    let response = r#"{"reason":"unauthorized"}"#.to_owned();
    Refusal { reason: "unauthorized".to_owned(), response }
}

/// Seconds, or a date.
/// The time of a header `retry-after`.
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let seconds = text.trim().parse().ok().map(Duration::from_secs);
    seconds.or_else(|| httpdate::parse_http_date(text).ok()?.duration_since(now).ok())
}

/// Status and start of the body, for the log.
pub(crate) fn shown(status: u16, body: Option<&[u8]>) -> String {
    let body = body.unwrap_or_default();
    let start = String::from_utf8_lossy(body.get(..SHOWN).unwrap_or(body));
    format!("status {status}, body {start:?}")
}

pub(crate) fn unix_s(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_773_600)
    }

    fn response(status: u16, body: &str) -> Response {
        Response { status, body: Some(body.as_bytes().to_vec()), ..Response::default() }
    }

    fn refusal(response: &Response) -> (Refusal, u64, Option<String>) {
        match decide(Kind::Join, response, at(), &[]) {
            Outcome::Refused { refusal, cache_for, note } => (refusal, cache_for, note),
            other => panic!("{other:?}"),
        }
    }

    fn failure(response: &Response) -> (Option<Duration>, Signal, String) {
        match decide(Kind::Join, response, at(), &[]) {
            Outcome::Failed { pause, signal, note, .. } => (pause, signal, note),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn status_2xx_allows() {
        for status in [200, 201, 204, 299] {
            let outcome = decide(Kind::Connect, &response(status, ""), at(), &[]);
            assert!(matches!(outcome, Outcome::Allowed(_)), "{status}");
        }
    }

    #[test]
    fn status_401_and_403_refuse_with_the_object_of_the_application() {
        let body = r#" {"reason":"staff only","more":1,"retry_after":9000} "#;
        let (of_application, cache_for, _) = refusal(&response(403, body));
        assert_eq!(of_application.reason, "staff only");
        assert_eq!(of_application.response, body.trim());
        assert_eq!(cache_for, 3600);
        for body in ["", "<html>", "[]", "{"] {
            assert_eq!(refusal(&response(401, body)).0, unauthorized(), "{body}");
        }
        let too_long = Response { status: 403, ..Response::default() };
        assert_eq!(refusal(&too_long).0, unauthorized());
        assert_eq!(refusal(&response(403, r#"{"reason":7}"#)).0.reason, "unauthorized");
        assert_eq!(refusal(&response(403, "{}")).1, 5);
    }

    #[test]
    fn refusal_of_a_csrf_check_says_so() {
        let (_, _, note) = refusal(&response(403, "<h1>CSRF verification failed</h1>"));
        assert!(note.unwrap().contains("exempt the hook's path"));
    }

    #[test]
    fn redirect_to_a_login_page_refuses_and_names_it() {
        for status in [302, 303, 307] {
            let location = Some("/login?next=secret".to_owned());
            let (_, _, note) = refusal(&Response { location, ..response(status, "") });
            assert_eq!(note.unwrap(), format!("status {status}, location /login"));
        }
    }

    #[test]
    fn all_other_answers_fail() {
        for status in [100, 101, 301, 308, 400, 404, 410, 419, 422, 500, 599, 999] {
            let (pause, signal, _) = failure(&response(status, "{}"));
            assert_eq!((pause, signal), (None, Signal::Answered), "{status}");
        }
        for status in [429, 502, 503, 504] {
            assert_eq!(failure(&response(status, "{}")).1, Signal::Congested, "{status}");
        }
        let (_, _, note) = failure(&response(200, "oops"));
        assert_eq!(note, r#"the body must be empty or a JSON object; status 200, body "oops""#);
        let (_, _, note) = failure(&Response { status: 200, ..Response::default() });
        assert!(note.starts_with("the body is longer than 64 KiB"));
    }

    #[test]
    fn faults_tell_wrong_answers_from_missing_ones() {
        for (status, expected) in [
            (404, Fault::Rejected),
            (429, Fault::Rejected),
            (500, Fault::Wrong),
            (503, Fault::Silent),
            (200, Fault::Wrong),
        ] {
            match decide(Kind::Message, &response(status, "?"), at(), &[]) {
                Outcome::Failed { fault, .. } => assert_eq!(fault, expected, "{status}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn log_shows_200_bytes_of_a_body() {
        let (_, _, note) = failure(&response(500, &"ü".repeat(1000)));
        assert!(note.contains(&"ü".repeat(100)) && note.len() < 250, "{note}");
    }

    #[test]
    fn retry_after_pauses_for_thirty_seconds_at_most() {
        let pause = |status, text: &str| {
            failure(&Response { retry_after: Some(text.to_owned()), ..response(status, "") }).0
        };
        assert_eq!(pause(503, "7"), Some(Duration::from_secs(7)));
        assert_eq!(pause(429, "600"), Some(Duration::from_secs(30)));
        let date = httpdate::fmt_http_date(at() + Duration::from_secs(3));
        assert_eq!(pause(503, &date), Some(Duration::from_secs(3)));
        assert_eq!(pause(503, "soon"), None);
        assert_eq!(pause(500, "7"), None);
    }
}
