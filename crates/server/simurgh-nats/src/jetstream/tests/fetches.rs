//! Fetches: their requests, and how answers are gathered.

use std::time::Duration;

use super::*;

#[test]
fn numbers_of_another_epoch_are_not_requested() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    fixture.unlink();
    let fetch = fixture.after(false);
    let purge = fixture.ticket();
    let Fixture { jetstream, events, now_ms, .. } = &mut fixture;
    jetstream.take(jetstream.purge(&subject("t"), 100, purge), None, *now_ms, events).unwrap();
    fixture.created = "anew".to_owned();
    fixture.link();
    fixture.fits();
    let why = Some(NotStored::Unconfirmed);
    let expected =
        [Event::Fetched { ticket: fetch, kept: None }, Event::Purged { ticket: purge, why }];
    assert_eq!(fixture.events(), expected);
    assert!(fixture.requests().is_empty());
}

#[test]
fn fetched_messages_are_limited_to_the_request() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    fixture.after(false);
    let sent = fixture.requests().remove(0);
    assert_eq!(sent.subject, "$JS.API.DIRECT.GET.P_H0");
    let body: Value = serde_json::from_str(&sent.body).unwrap();
    let next = subject("t");
    let expected = json!({ "next_by_subj": next.as_str(), "seq": 4, "batch": 5, "max_bytes": 9 });
    assert_eq!(body, expected);
    fixture.message(&sent, 4, 0, "four");
    fixture.message(&sent, 7, 4, "sevn");
    fixture.message(&sent, 9, 7, "nine");
    assert_eq!(fixture.events(), []);
    fixture.ends(&sent, 9, 0);
    let fetched = fixture.fetched();
    assert_eq!(texts(&fetched), [(4, 0, 4_000, "four"), (7, 4, 7_000, "sevn")]);
    assert_eq!((fetched.head, fetched.is_all), (7, false), "nine bytes at most");
}

#[test]
fn response_with_a_gap_is_requested_again() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    fixture.after(false);
    let first = fixture.requests().remove(0);
    fixture.message(&first, 4, 0, "a");
    fixture.message(&first, 9, 7, "c");
    fixture.ends(&first, 9, 0);
    assert_eq!(fixture.events(), []);
    fixture.pass(1_000);
    let second = fixture.requests().remove(0);
    // Late answers to the first change nothing.
    fixture.message(&first, 4, 0, "a");
    fixture.ends(&first, 4, 0);
    for (seq, prev) in [(4, 0), (7, 4), (9, 7)] {
        fixture.message(&second, seq, prev, "x");
    }
    fixture.ends(&second, 9, 0);
    let fetched = fixture.fetched();
    let seqs: Vec<u64> = texts(&fetched).iter().map(|it| it.0).collect();
    assert_eq!((seqs, fetched.is_all), (vec![4, 7, 9], true));
}

#[test]
fn response_is_complete_up_to_the_known_head() {
    for (streams, head) in [(StreamsConfig::default(), 50), (three(), 0)] {
        let mut fixture = Fixture::on(streams);
        fixture.jetstream.on_republished(b"p.b.0.1c.t", 50);
        fixture.after(false);
        let sent = fixture.requests().remove(0);
        fixture.jetstream.on_republished(b"p.b.0.1c.t", 60);
        fixture.status(&sent, 404, "");
        assert_eq!(fixture.fetched(), Fetched { messages: vec![], head, is_all: true });
        fixture.fetch(Fetch::LastOf { subjects: vec![subject("t")] });
        let sent = fixture.requests().remove(0);
        fixture.status(&sent, 404, "");
        let head = if head > 0 { 60 } else { 0 };
        assert_eq!(fixture.fetched(), Fetched { messages: vec![], head, is_all: true });
    }
}

#[test]
fn leader_is_queried_for_its_head_then_for_each_message() {
    let mut fixture = Fixture::on(three());
    fixture.after(true);
    fixture.last_seq = 12;
    let head = fixture.requests().remove(0);
    assert_eq!(head.subject, "$JS.API.STREAM.INFO.P_H0");
    fixture.answer_check(&head);
    for (seq, from) in [(5, 4), (8, 6)] {
        let next = fixture.requests().remove(0);
        assert_eq!(next.subject, "$JS.API.STREAM.MSG.GET.P_H0");
        assert!(next.body.contains(&format!("\"seq\":{from}")), "{next:?}");
        let time = format!("1970-01-01T00:00:0{seq}Z");
        let message = json!({ "seq": seq, "data": "aGk=", "time": time });
        fixture.answer(&next, &json!({ "message": message }).to_string());
    }
    let last = fixture.requests().remove(0);
    fixture.fail(&last, 404, 10_037);
    let fetched = fixture.fetched();
    assert_eq!(texts(&fetched), [(5, 0, 5_000, "hi"), (8, 5, 8_000, "hi")]);
    assert_eq!((fetched.head, fetched.is_all), (12, true));
}

#[test]
fn silent_leader_is_queried_again_and_earlier_responses_remain() {
    let mut fixture = Fixture::on(three());
    let ticket = fixture.after(true);
    fixture.last_seq = 12;
    let head = fixture.requests().remove(0);
    fixture.answer_check(&head);
    let next = fixture.requests().remove(0);
    fixture.answer(&next, r#"{"message":{"seq":5,"data":"aGk=","time":""}}"#);
    fixture.requests();
    fixture.pass(1_000);
    assert!(fixture.requests()[0].body.contains("\"seq\":6"));
    fixture.pass(8_000);
    let [Event::Fetched { ticket: of, kept: Some(kept) }] = &fixture.events()[..] else {
        panic!("nothing is told");
    };
    assert_eq!((*of, kept.messages.len(), kept.head, kept.is_all), (ticket, 1, 5, false));
}

fn since(fixture: &mut Fixture, age: Duration) -> Ticket {
    fixture.fetch(Fetch::Since { subject: subject("t"), age })
}

#[test]
fn minimum_age_uses_the_leaders_clock() {
    for (first, behind) in [(Some(8), 7), (Some(13), 12), (Some(15), 12), (None, 12)] {
        let mut fixture = Fixture::on(three());
        let ticket = since(&mut fixture, Duration::from_secs(240));
        (fixture.last_seq, fixture.ts) = (12, "2026-11-23T20:04:00.5Z".to_owned());
        let head = fixture.requests().remove(0);
        assert_eq!(head.subject, "$JS.API.STREAM.INFO.P_H0");
        fixture.answer_check(&head);
        let next = fixture.requests().remove(0);
        assert_eq!(next.subject, "$JS.API.STREAM.MSG.GET.P_H0");
        let body: Value = serde_json::from_str(&next.body).unwrap();
        let time = "2026-11-23T20:00:00.500Z";
        assert_eq!(body, json!({ "next_by_subj": ">", "start_time": time, "no_hdr": true }));
        match first {
            Some(seq) => {
                let message = json!({ "seq": seq, "data": "", "time": time });
                fixture.answer(&next, &json!({ "message": message }).to_string());
            }
            None => drop(fixture.fail(&next, 404, 10_037)),
        }
        assert_eq!(fixture.events(), [Event::Since { ticket, behind: Some(behind) }], "{first:?}");
    }
}

#[test]
fn stream_that_removes_younger_messages_gives_no_age_bound() {
    let hour_ns = 3_600_000_000_000_u64;
    for (key, value, age_s, is_said) in [
        ("max_bytes", json!(1 << 20), 60, false),
        ("max_msgs", json!(1_000), 60, false),
        ("max_age", json!(hour_ns), 3_600, true),
        ("max_age", json!(hour_ns), 3_601, false),
        ("max_age", json!(0), 1_000_000, true),
    ] {
        let mut fixture = Fixture::on(StreamsConfig::default());
        let ticket = since(&mut fixture, Duration::from_secs(age_s));
        fixture.config[key] = value;
        fixture.ts = "2026-11-23T20:04:00Z".to_owned();
        let head = fixture.requests().remove(0);
        fixture.answer_check(&head);
        assert_eq!(fixture.requests().len(), usize::from(is_said), "{key}, {age_s} s");
        let refused = [Event::Since { ticket, behind: None }];
        assert_eq!(fixture.events(), if is_said { &[][..] } else { &refused }, "{key}, {age_s} s");
    }
}

#[test]
fn leader_without_a_time_gives_no_age_bound() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let ticket = since(&mut fixture, Duration::from_secs(60));
    let head = fixture.requests().remove(0);
    fixture.answer_check(&head);
    assert_eq!(fixture.events(), [Event::Since { ticket, behind: None }]);
    // A stream that does not answer gives no number either.
    let ticket = since(&mut fixture, Duration::from_secs(60));
    fixture.pass(9_000);
    assert_eq!(fixture.events(), [Event::Since { ticket, behind: None }]);
}

#[test]
fn last_messages_are_fetched_in_pages_up_to_the_first_head() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let subjects: Vec<Subject> = (0..4).map(|it| subject(&format!("t:{it}"))).collect();
    fixture.fetch(Fetch::LastOf { subjects });
    let first = fixture.requests().remove(0);
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!(body["multi_last"].as_array().map(Vec::len), Some(4));
    assert_eq!((&body["seq"], &body["up_to_seq"]), (&Value::Null, &Value::Null));
    let ends = |fixture: &mut Fixture, sent: &Sent, last, pending| {
        let headers = format!(
            "Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n\
             Nats-UpTo-Sequence: 20\r\n"
        );
        fixture.status(sent, 204, &headers);
    };
    fixture.message(&first, 5, 0, "five");
    fixture.message(&first, 9, 5, "nine");
    ends(&mut fixture, &first, 9, 1);
    let second = fixture.requests().remove(0);
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!((&body["seq"], &body["up_to_seq"]), (&json!(10), &json!(20)));
    fixture.message(&second, 14, 0, "fourteen");
    ends(&mut fixture, &second, 14, 0);
    let fetched = fixture.fetched();
    let expected = [(5, 0, 5_000, "five"), (9, 0, 9_000, "nine"), (14, 0, 4_000, "fourteen")];
    assert_eq!(texts(&fetched), expected);
    assert_eq!((fetched.head, fetched.is_all), (20, true));
}
