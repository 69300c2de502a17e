//! Answers are parsed the same however they are split, and as they were made.

use proptest::prelude::*;
use simurgh_load::answer::AnswerText;
use simurgh_load::http::{Done, Event, Kept, Limits, Response, ResponseError};

#[derive(Clone, Debug)]
enum Ending {
    Length,
    /// Sizes of chunks; the rest is the last chunk.
    Chunked(Vec<usize>, bool, bool),
    Close,
}

#[derive(Clone, Debug)]
struct Made {
    status: u16,
    version_1_0: bool,
    interim: u8,
    to_head: bool,
    connection: Option<&'static str>,
    ending: Ending,
    body: Vec<u8>,
}

impl Made {
    fn has_body(&self) -> bool {
        !self.to_head && !matches!(self.status, 204 | 304)
    }

    fn head(&self) -> Vec<u8> {
        let mut head = String::new();
        for _ in 0..self.interim {
            head += "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
        }
        let minor = u8::from(!self.version_1_0);
        head += &format!("HTTP/1.{minor} {} a: reason\r\nServer: x\r\n", self.status);
        if let Some(connection) = self.connection {
            head += &format!("connection: {connection}\r\n");
        }
        match &self.ending {
            Ending::Length => head += &format!("Content-Length:  {} \r\n", self.body.len()),
            Ending::Chunked(..) => head += "Transfer-Encoding: gzip, Chunked\r\n",
            Ending::Close => {}
        }
        head += "Set-Cookie: a=b\r\n\r\n";
        head.into_bytes()
    }

    fn body_on_the_wire(&self) -> Vec<u8> {
        let Ending::Chunked(sizes, extension, trailer) = &self.ending else {
            return self.body.clone();
        };
        let extension = if *extension { " ;name=\"va\\\"lue\"" } else { "" };
        let (mut out, mut rest) = (Vec::new(), self.body.as_slice());
        for size in sizes.iter().copied().chain([usize::MAX]) {
            let (chunk, after) = rest.split_at(size.min(rest.len()));
            if !chunk.is_empty() {
                out.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            rest = after;
        }
        let trailer = if *trailer { "X-Sum: \r1\r\nY: 2\r\n" } else { "" };
        out.extend_from_slice(format!("000{extension}\r\n{trailer}\r\n").as_bytes());
        out
    }

    fn wire(&self) -> Vec<u8> {
        let mut wire = self.head();
        if self.has_body() {
            wire.extend_from_slice(&self.body_on_the_wire());
        }
        wire
    }

    fn ends_by_close(&self) -> bool {
        self.has_body() && matches!(self.ending, Ending::Close)
    }

    fn keeps_alive(&self) -> bool {
        if self.ends_by_close() {
            return false;
        }
        let by_version = match self.connection {
            Some(value) if value.contains("close") => false,
            Some(value) if value.to_ascii_lowercase().contains("keep-alive") => true,
            _ => !self.version_1_0,
        };
        let odd = self.version_1_0 && self.has_body() && matches!(self.ending, Ending::Chunked(..));
        by_version && !odd
    }
}

fn made() -> impl Strategy<Value = Made> {
    let chunked = (prop::collection::vec(1..40_usize, 0..5), any::<bool>(), any::<bool>());
    let ending = prop_oneof![
        Just(Ending::Length),
        chunked.prop_map(|(sizes, extension, trailer)| Ending::Chunked(sizes, extension, trailer)),
        Just(Ending::Close),
    ];
    let status = prop::sample::select(vec![200, 204, 304, 404, 500, 999]);
    let connection =
        prop::sample::select(vec![None, Some("close"), Some("x, Keep-Alive"), Some("x")]);
    (
        (status, any::<bool>(), 0..3_u8, any::<bool>()),
        connection,
        ending,
        prop::collection::vec(any::<u8>(), 0..200),
    )
        .prop_map(|((status, version_1_0, interim, to_head), connection, ending, body)| Made {
            status,
            version_1_0,
            interim,
            to_head,
            connection,
            ending,
            body,
        })
}

/// The result of parsing: what was kept, how it ended, and what was left unread.
type Parsed = (Kept, Result<Option<Done>, ResponseError>, usize);

/// Feeds `wire` in pieces; the sizes are used in turn.
fn feed(wire: &[u8], sizes: &[usize], to_head: bool) -> Parsed {
    let mut response = Response::new(to_head, Limits { head_bytes_max: 600 });
    let mut kept = Kept::new(usize::MAX);
    let (mut at, mut sizes) = (0, sizes.iter().cycle());
    while at < wire.len() {
        let size = sizes.next().copied().unwrap_or(wire.len()).max(1);
        let piece = &wire[at..wire.len().min(at + size)];
        let mut bytes = piece;
        loop {
            match response.next(&mut bytes) {
                Ok(Event::More) => {
                    break assert!(bytes.is_empty(), "more is wanted, but not taken");
                }
                Ok(Event::Done(done)) => {
                    at += piece.len() - bytes.len();
                    return (kept, Ok(Some(done)), wire.len() - at);
                }
                Ok(event) => kept.take(&event),
                Err(error) => return (kept, Err(error), 0),
            }
        }
        at += piece.len();
    }
    // An empty body is over at once, but only the next call says so.
    match response.next(&mut &[][..]) {
        Ok(Event::Done(done)) => (kept, Ok(Some(done)), 0),
        _ => (kept, response.end().map(Some), 0),
    }
}

proptest! {
    #[test]
    fn generated_response_is_parsed_back(
        made in made(),
        after in prop::collection::vec(any::<u8>(), 0..20),
        sizes in prop::collection::vec(1..50_usize, 1..6),
    ) {
        let mut wire = made.wire();
        let wire_bytes = wire.len();
        let after = if made.ends_by_close() { Vec::new() } else { after };
        wire.extend_from_slice(&after);
        let (kept, done, left) = feed(&wire, &sizes, made.to_head);
        let done = done.unwrap().unwrap();
        let body: &[u8] = if made.has_body() { &made.body } else { b"" };
        prop_assert_eq!(AnswerText::kept(&kept).body(), body);
        prop_assert_eq!(left, after.len());
        prop_assert_eq!(done, Done {
            status: made.status,
            keep_alive: made.keeps_alive(),
            head_bytes: made.head().len() as u64,
            body_bytes: body.len() as u64,
        });
        prop_assert!(AnswerText::kept(&kept).head().unwrap().ends_with(b"Set-Cookie: a=b\r\n\r\n"));
        prop_assert!(AnswerText::kept(&kept).head().unwrap().starts_with(b"HTTP/1."));
        prop_assert!(wire_bytes >= made.head().len());
    }

    #[test]
    fn truncated_response_is_detected(made in made(), cut in any::<prop::sample::Index>()) {
        let wire = made.wire();
        let cut = cut.index(wire.len());
        let (_, done, _) = feed(&wire[..cut], &[7], made.to_head);
        let in_body = cut >= made.head().len();
        match done {
            Ok(Some(_)) => prop_assert!(in_body && made.ends_by_close()),
            Err(ResponseError::NoAnswer) => prop_assert_eq!(cut, 0),
            Err(error) => prop_assert_eq!(error, ResponseError::Cut),
            Ok(None) => unreachable!(),
        }
    }
}

fn error(wire: &str) -> Option<ResponseError> {
    let (whole, bytewise) = (feed(wire.as_bytes(), &[], false), feed(wire.as_bytes(), &[1], false));
    assert_eq!(whole.1, bytewise.1, "{wire:?}");
    whole.1.err()
}

#[test]
fn invalid_response_is_refused() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let chunked = format!("{ok}Transfer-Encoding: chunked\r\n\r\n");
    let table = [
        (String::new(), ResponseError::NoAnswer),
        ("HTTP/1.1 2".to_owned(), ResponseError::Cut),
        ("SSH-2.0-OpenSSH\r\n".to_owned(), ResponseError::NotHttp),
        ("HTTP/2 200 OK\r\n\r\n".to_owned(), ResponseError::NotHttp),
        ("HTTP/1.1 99 Low\r\n\r\n".to_owned(), ResponseError::NotHttp),
        ("HTTP/1.1 099 Low\r\n\r\n".to_owned(), ResponseError::NotHttp),
        ("\0\x01\x02".to_owned(), ResponseError::NotHttp),
        (format!("{ok}no colon\r\n\r\n"), ResponseError::NotHttp),
        (format!("{ok}X: {}", "x".repeat(600)), ResponseError::HeadTooLarge),
        (format!("{ok}{}\r\n", "a:\r\n".repeat(129)), ResponseError::HeadTooLarge),
        (format!("{ok}Content-Length: +5\r\n\r\nabcde"), ResponseError::Framing),
        (format!("{ok}Content-Length: -1\r\n\r\n"), ResponseError::Framing),
        (format!("{ok}Content-Length: 99999999999999999999\r\n\r\n"), ResponseError::Framing),
        (format!("{ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), ResponseError::Framing),
        (format!("{ok}Content-Length: 5\r\n\r\nabcd"), ResponseError::Cut),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(), ResponseError::Switched),
        ("HTTP/1.1 100 Continue\r\n\r\n".to_owned(), ResponseError::Cut),
        (format!("{chunked}5\r\nabcde\r\n"), ResponseError::Cut),
        (format!("{chunked}\r\n"), ResponseError::Framing),
        (format!("{chunked}g\r\n"), ResponseError::Framing),
        (format!("{chunked}-1\r\n"), ResponseError::Framing),
        (format!("{chunked}1\r\nab"), ResponseError::Framing),
        (format!("{chunked}1\rX"), ResponseError::Framing),
        (format!("{chunked}10000000000000000\r\n"), ResponseError::Framing),
        (format!("{chunked}1;{}\r\na\r\n0\r\n\r\n", "x".repeat(5000)), ResponseError::Framing),
        (format!("{chunked}0\r\n{}\r\n\r\n", "x".repeat(17_000)), ResponseError::Framing),
    ];
    for (wire, wanted) in table {
        let shown: String = wire.chars().take(80).collect();
        assert_eq!(error(&wire), Some(wanted), "{shown:?}");
    }
}

#[test]
fn sloppy_but_clear_responses_are_accepted() {
    let bare = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n";
    let (kept, done, _) = feed(bare.as_bytes(), &[1], false);
    assert_eq!(
        (AnswerText::kept(&kept).body(), done.unwrap().unwrap().keep_alive),
        (&b"abc"[..], true)
    );
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(error(twice), None);
    // Both lengths: the chunks count, and the connection is not reused.
    let both =
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert!(!feed(both.as_bytes(), &[], false).1.unwrap().unwrap().keep_alive);
}

#[test]
fn responses_on_one_connection_are_separated() {
    let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na\
        HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
    let mut bytes = &wire[..];
    let mut told = Vec::new();
    for _ in 0..2 {
        let mut response = Response::new(false, Limits::default());
        loop {
            match response.next(&mut bytes).unwrap() {
                Event::Done(done) => break told.push((done.status, done.body_bytes)),
                Event::More => panic!("all of it is there"),
                Event::Head(_) | Event::Body(_) => {}
            }
        }
    }
    assert_eq!((told, bytes.len()), (vec![(200, 1), (404, 0)], 0));
}

#[test]
fn response_body_is_stored_up_to_its_limit() {
    let mut kept = Kept::new(3);
    kept.take(&Event::Body(b"ab"));
    assert!(!kept.is_cut());
    kept.take(&Event::Body(b"cd"));
    kept.take(&Event::Body(b"ef"));
    assert_eq!((AnswerText::kept(&kept).body(), kept.is_cut()), (&b"abc"[..], true));
}

#[test]
fn response_parser_takes_at_most_96_bytes() {
    assert!(size_of::<Response>() <= 96, "{}", size_of::<Response>());
}
