//! The load generator: what it does for each frame and each answer, and how it reads a scenario.

use std::hint::black_box;
use std::path::Path;

use simurgh_load::answer::{CompiledMatcher, PatternCache};
use simurgh_load::http::{Event as Answer, Limits as AnswerLimits, Request, Response};
use simurgh_load::record::{Hist, Metric, Names, Recorder, Seen, WorkerId};
use simurgh_load::scenario::{Matcher, Overrides, Part, Template};
use simurgh_load::stamp::{Stamp, Stamps};
use simurgh_load::tsung;
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Frame, Serializer};
use simurgh_proto::session::client::{Client, Incoming, Topic};
use simurgh_proto::ws::{Decoder, Event, FrameLimits, OpCode, Role, encode};

use crate::item::Item;
use crate::{HERE, counted};

pub(crate) const ITEMS: &[Item] = &[
    Item { name: "load-stamped-delivery", times: 1000, inside: HERE, run: deliveries },
    Item { name: "load-match", times: 1000, inside: HERE, run: matches },
    Item { name: "load-push-and-reply", times: 1000, inside: HERE, run: replies },
    Item { name: "load-http-request", times: 1000, inside: HERE, run: requests },
    Item { name: "histogram-record", times: 10_000, inside: HERE, run: histogram },
    Item { name: "tsung-xml", times: 10, inside: HERE, run: read_tsung },
];

const ROOM: &str = "rooms:lobby";

/// Broadcasts as receivers get them: a frame, a stamp in it, a time to take down.
fn deliveries(times: u32) {
    let mut bytes = Vec::new();
    for number in 0..times {
        let mut text = br#"[null,null,"rooms:lobby","new:msg",{"body":""#.to_vec();
        Stamp { run: 7, sender: 1, number: number / 100, at_ns: 1_000, index: 0 }.write(&mut text);
        text.extend_from_slice(br#""}]"#);
        encode(OpCode::Text, &text, None, &mut bytes);
    }
    let limits = FrameLimits::default();
    let mut recorder = Recorder::new(WorkerId::default(), &Names::default(), false);
    let mut seen = vec![Seen::default(); 100];
    let found = counted(|| {
        let (mut decoder, mut input) = (Decoder::new(), bytes.as_mut_slice());
        let (mut stamps, mut found) = (Stamps::new(7), 0);
        let mut receivers = seen.iter_mut();
        while let Ok(Some(Event::Text(text))) = decoder.next(Role::Client, &limits, &mut input) {
            let Some(stamp) = stamps.find(text.as_bytes()) else { break };
            let received_ns = 2_000_000 + 700 * u64::from(found);
            let receiver = receivers.next();
            recorder.delivery(stamp.sender, stamp.number, stamp.at_ns, received_ns, receiver);
            found += 1;
        }
        found
    });
    assert_eq!(found, times, "every frame bears a stamp");
}

/// One frame checked with each sort of our own matchers.
fn matches(times: u32) {
    let text = r#"[null,null,"rooms:lobby","new:msg",{"body":"it is said","at":1700000000}]"#;
    let words = |text: &str| Template { parts: vec![Part::Literal(text.as_bytes().to_vec())] };
    let matchers = [
        Matcher::Contains(words("is said")),
        Matcher::Json { path: "payload.body".to_owned(), is: words("it is said") },
        Matcher::Event { topic: Some(words(ROOM)), event: words("new:msg") },
    ];
    let matchers: Vec<CompiledMatcher> = matchers.iter().flat_map(CompiledMatcher::new).collect();
    let mut patterns = PatternCache::default();
    let found = counted(|| {
        let all = matchers.iter().cycle().take(3 * times as usize);
        let frame = black_box(Frame::Text(text));
        all.filter(|matcher| matcher.matches(frame, None, &mut patterns, &mut |_, _| {})).count()
    });
    assert_eq!(found, 3 * times as usize, "every matcher matches");
}

fn replies(times: u32) {
    let mut client = Client::new(Serializer::V2);
    let topic = Topic::from(ROOM);
    let mut out = Vec::with_capacity(256);
    let payload = Payload::from_json(r#"{"body":"it is said"}"#);
    let Ok(joined) = client.join(&mut out, &topic, &payload) else { return };
    assert_eq!(joined.msg_ref, 1, "the first ref");
    let answers: Vec<String> = (1..=times + 1)
        .map(|n| {
            format!(r#"["1","{n}","{ROOM}","phx_reply",{{"status":"ok","response":{{"n":{n}}}}}]"#)
        })
        .collect();
    let answered = counted(|| {
        let mut answered = 0;
        for answer in &answers {
            if let Ok(message) = Serializer::V2.decode_server(Frame::Text(answer)) {
                let incoming = client.handle(&message);
                answered += u32::from(!matches!(incoming, Incoming::Unrelated));
            }
            out.clear();
            let _ = black_box(client.push(&mut out, ROOM, "new:msg", &payload));
        }
        answered
    });
    assert_eq!(answered, times + 1, "every answer belongs to something");
}

/// Requests written, and the answers to them read: 2,400 bytes of a page.
fn requests(times: u32) {
    let request = Request {
        method: "GET",
        target: b"/hello?name=simurgh",
        host: "127.0.0.1",
        port: Some(4000),
        keep_alive: true,
        user_agent: Some("simurgh"),
        ..Request::default()
    };
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\n\
         cache-control: max-age=0, private, must-revalidate\r\nx-frame-options: SAMEORIGIN\r\n\
         x-content-type-options: nosniff\r\ncontent-length: 2400\r\n\
         date: Sat, 21 Nov 2026 22:00:00 GMT\r\n\r\n{}",
        "x".repeat(2400)
    );
    let mut out = Vec::with_capacity(256);
    let read = counted(|| {
        let mut read = 0;
        for _ in 0..times {
            out.clear();
            black_box(&request).write(&mut out);
            black_box(&out);
            let mut response = Response::new(false, AnswerLimits::default());
            let mut bytes = black_box(answer.as_bytes());
            // Head, body, end; anything else is an error and not counted.
            for _ in 0..3 {
                match response.next(&mut bytes) {
                    Ok(Answer::Done(done)) if done.body_bytes == 2400 => read += 1,
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
        read
    });
    assert_eq!(read, times, "every answer is read to its end");
}

/// Times from microseconds to seconds.
fn histogram(times: u32) {
    let mut hist: Hist = Hist::new();
    let mut recorder = Recorder::new(WorkerId::default(), &Names::default(), false);
    counted(|| {
        for number in 0..u64::from(times) {
            let us = number * 137 % 1_000_000;
            hist.record(us);
            recorder.time(Metric::Delivery, us);
        }
    });
    assert_eq!(hist.count(), u64::from(times), "every time is taken down");
}

fn read_tsung(times: u32) {
    let text = include_str!("../../../crates/load/simurgh-load/tests/tsung/phoenix.xml");
    let map = vec![("server_ip_address".to_owned(), "127.0.0.1".to_owned())];
    let overrides = Overrides { map, local: true, ..Overrides::default() };
    let read = counted(|| {
        let read = |_: &u32| tsung::read(black_box(text), Path::new("."), &overrides).is_ok();
        (0..times).filter(read).count()
    });
    assert_eq!(read, times as usize, "the file is a scenario");
}
