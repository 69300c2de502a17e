//! What is asked for, and how it is gathered.

use std::time::Duration;

use super::*;

#[test]
fn questions_about_numbers_of_another_epoch_are_not_asked() {
    let mut stage = Stage::on(StreamsConfig::default());
    stage.unlink();
    let fetch = stage.after(false);
    let purge = stage.ticket();
    let Stage { jetstream, events, now_ms, .. } = &mut stage;
    jetstream.purge(&subject("t"), 100, purge, None, *now_ms, events).unwrap();
    stage.created = "anew".to_owned();
    stage.link();
    stage.fits();
    let why = Some(NotStored::Unconfirmed);
    let expected =
        [Event::Fetched { ticket: fetch, kept: None }, Event::Purged { ticket: purge, why }];
    assert_eq!(stage.events(), expected);
    assert!(stage.asked().is_empty());
}

#[test]
fn what_follows_is_gathered_and_cut_to_what_was_asked_for() {
    let mut stage = Stage::on(StreamsConfig::default());
    stage.after(false);
    let asked = stage.asked().remove(0);
    assert_eq!(asked.subject, "$JS.API.DIRECT.GET.P_H0");
    let words: Value = serde_json::from_str(&asked.words).unwrap();
    let next = subject("t");
    let expected = json!({ "next_by_subj": next.as_str(), "seq": 4, "batch": 5, "max_bytes": 9 });
    assert_eq!(words, expected);
    stage.message(&asked, 4, 0, "four");
    stage.message(&asked, 7, 4, "sevn");
    stage.message(&asked, 9, 7, "nine");
    assert_eq!(stage.events(), []);
    stage.ends(&asked, 9, 0);
    let fetched = stage.fetched();
    assert_eq!(texts(&fetched), [(4, 0, 4_000, "four"), (7, 4, 7_000, "sevn")]);
    assert_eq!((fetched.head, fetched.is_all), (7, false), "nine bytes at most");
}

#[test]
fn an_answer_with_a_hole_is_asked_for_again() {
    let mut stage = Stage::on(StreamsConfig::default());
    stage.after(false);
    let first = stage.asked().remove(0);
    stage.message(&first, 4, 0, "a");
    stage.message(&first, 9, 7, "c");
    stage.ends(&first, 9, 0);
    assert_eq!(stage.events(), []);
    stage.pass(1_000);
    let second = stage.asked().remove(0);
    // What comes late of the first changes nothing.
    stage.message(&first, 4, 0, "a");
    stage.ends(&first, 4, 0);
    for (seq, prev) in [(4, 0), (7, 4), (9, 7)] {
        stage.message(&second, seq, prev, "x");
    }
    stage.ends(&second, 9, 0);
    let fetched = stage.fetched();
    let seqs: Vec<u64> = texts(&fetched).iter().map(|it| it.0).collect();
    assert_eq!((seqs, fetched.is_all), (vec![4, 7, 9], true));
}

#[test]
fn an_answer_is_complete_up_to_what_its_only_server_was_known_to_have() {
    for (streams, head) in [(StreamsConfig::default(), 50), (three(), 0)] {
        let mut stage = Stage::on(streams);
        stage.jetstream.heard(b"p.b.0.1c.t", 50);
        stage.after(false);
        let asked = stage.asked().remove(0);
        stage.jetstream.heard(b"p.b.0.1c.t", 60);
        stage.status(&asked, 404, "");
        assert_eq!(stage.fetched(), Fetched { messages: vec![], head, is_all: true });
        stage.fetch(Fetch::LastOf { subjects: vec![subject("t")] });
        let asked = stage.asked().remove(0);
        stage.status(&asked, 404, "");
        let head = if head > 0 { 60 } else { 0 };
        assert_eq!(stage.fetched(), Fetched { messages: vec![], head, is_all: true });
    }
}

#[test]
fn the_leader_is_asked_for_its_head_and_then_for_one_after_the_other() {
    let mut stage = Stage::on(three());
    stage.after(true);
    stage.last_seq = 12;
    let head = stage.asked().remove(0);
    assert_eq!(head.subject, "$JS.API.STREAM.INFO.P_H0");
    stage.answer_check(&head);
    for (seq, from) in [(5, 4), (8, 6)] {
        let next = stage.asked().remove(0);
        assert_eq!(next.subject, "$JS.API.STREAM.MSG.GET.P_H0");
        assert!(next.words.contains(&format!("\"seq\":{from}")), "{next:?}");
        let time = format!("1970-01-01T00:00:0{seq}Z");
        let message = json!({ "seq": seq, "data": "aGk=", "time": time });
        stage.answer(&next, &json!({ "message": message }).to_string());
    }
    let last = stage.asked().remove(0);
    stage.fail(&last, 404, 10_037);
    let fetched = stage.fetched();
    assert_eq!(texts(&fetched), [(5, 0, 5_000, "hi"), (8, 5, 8_000, "hi")]);
    assert_eq!((fetched.head, fetched.is_all), (12, true));
}

#[test]
fn a_leader_that_falls_silent_is_asked_again_and_what_it_said_is_not_lost() {
    let mut stage = Stage::on(three());
    let ticket = stage.after(true);
    stage.last_seq = 12;
    let head = stage.asked().remove(0);
    stage.answer_check(&head);
    let next = stage.asked().remove(0);
    stage.answer(&next, r#"{"message":{"seq":5,"data":"aGk=","time":""}}"#);
    stage.asked();
    stage.pass(1_000);
    assert!(stage.asked()[0].words.contains("\"seq\":6"));
    stage.pass(8_000);
    let [Event::Fetched { ticket: of, kept: Some(kept) }] = &stage.events()[..] else {
        panic!("nothing is told");
    };
    assert_eq!((*of, kept.messages.len(), kept.head, kept.is_all), (ticket, 1, 5, false));
}

fn since(stage: &mut Stage, age: Duration) -> Ticket {
    stage.fetch(Fetch::Since { subject: subject("t"), age })
}

#[test]
fn what_is_young_begins_by_the_leaders_clock() {
    for (first, behind) in [(Some(8), 7), (Some(13), 12), (Some(15), 12), (None, 12)] {
        let mut stage = Stage::on(three());
        let ticket = since(&mut stage, Duration::from_secs(240));
        (stage.last_seq, stage.ts) = (12, "2026-11-23T20:04:00.5Z".to_owned());
        let head = stage.asked().remove(0);
        assert_eq!(head.subject, "$JS.API.STREAM.INFO.P_H0");
        stage.answer_check(&head);
        let next = stage.asked().remove(0);
        assert_eq!(next.subject, "$JS.API.STREAM.MSG.GET.P_H0");
        let words: Value = serde_json::from_str(&next.words).unwrap();
        let time = "2026-11-23T20:00:00.500Z";
        assert_eq!(words, json!({ "next_by_subj": ">", "start_time": time, "no_hdr": true }));
        match first {
            Some(seq) => {
                let message = json!({ "seq": seq, "data": "", "time": time });
                stage.answer(&next, &json!({ "message": message }).to_string());
            }
            None => drop(stage.fail(&next, 404, 10_037)),
        }
        assert_eq!(stage.events(), [Event::Since { ticket, behind: Some(behind) }], "{first:?}");
    }
}

#[test]
fn a_stream_that_removes_what_is_younger_does_not_say_what_is_young() {
    let hour_ns = 3_600_000_000_000_u64;
    for (key, value, age_s, is_said) in [
        ("max_bytes", json!(1 << 20), 60, false),
        ("max_msgs", json!(1_000), 60, false),
        ("max_age", json!(hour_ns), 3_600, true),
        ("max_age", json!(hour_ns), 3_601, false),
        ("max_age", json!(0), 1_000_000, true),
    ] {
        let mut stage = Stage::on(StreamsConfig::default());
        let ticket = since(&mut stage, Duration::from_secs(age_s));
        stage.config[key] = value;
        stage.ts = "2026-11-23T20:04:00Z".to_owned();
        let head = stage.asked().remove(0);
        stage.answer_check(&head);
        assert_eq!(stage.asked().len(), usize::from(is_said), "{key}, {age_s} s");
        let refused = [Event::Since { ticket, behind: None }];
        assert_eq!(stage.events(), if is_said { &[][..] } else { &refused }, "{key}, {age_s} s");
    }
}

#[test]
fn a_leader_that_does_not_say_what_time_it_is_does_not_say_what_is_young() {
    let mut stage = Stage::on(StreamsConfig::default());
    let ticket = since(&mut stage, Duration::from_secs(60));
    let head = stage.asked().remove(0);
    stage.answer_check(&head);
    assert_eq!(stage.events(), [Event::Since { ticket, behind: None }]);
    // Nor does one that does not answer.
    let ticket = since(&mut stage, Duration::from_secs(60));
    stage.pass(9_000);
    assert_eq!(stage.events(), [Event::Since { ticket, behind: None }]);
}

#[test]
fn the_last_of_many_come_page_by_page_up_to_where_the_first_page_was_asked() {
    let mut stage = Stage::on(StreamsConfig::default());
    let subjects: Vec<Subject> = (0..4).map(|it| subject(&format!("t:{it}"))).collect();
    stage.fetch(Fetch::LastOf { subjects });
    let first = stage.asked().remove(0);
    let words: Value = serde_json::from_str(&first.words).unwrap();
    assert_eq!(words["multi_last"].as_array().map(Vec::len), Some(4));
    assert_eq!((&words["seq"], &words["up_to_seq"]), (&Value::Null, &Value::Null));
    let ends = |stage: &mut Stage, asked: &Asked, last, pending| {
        let headers = format!(
            "Nats-Num-Pending: {pending}\r\nNats-Last-Sequence: {last}\r\n\
             Nats-UpTo-Sequence: 20\r\n"
        );
        stage.status(asked, 204, &headers);
    };
    stage.message(&first, 5, 0, "five");
    stage.message(&first, 9, 5, "nine");
    ends(&mut stage, &first, 9, 1);
    let second = stage.asked().remove(0);
    let words: Value = serde_json::from_str(&second.words).unwrap();
    assert_eq!((&words["seq"], &words["up_to_seq"]), (&json!(10), &json!(20)));
    stage.message(&second, 14, 0, "fourteen");
    ends(&mut stage, &second, 14, 0);
    let fetched = stage.fetched();
    let expected = [(5, 0, 5_000, "five"), (9, 0, 9_000, "nine"), (14, 0, 4_000, "fourteen")];
    assert_eq!(texts(&fetched), expected);
    assert_eq!((fetched.head, fetched.is_all), (20, true));
}
