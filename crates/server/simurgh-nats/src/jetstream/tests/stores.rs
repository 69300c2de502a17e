//! Stores: when they are confirmed, refused, and sent again.

use super::*;

#[test]
fn unconfirmed_store_is_repeated_until_its_timeout() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let begun = fixture.now_ms;
    let ticket = fixture.store("id");
    let mut sent = vec![];
    for _ in 0..1_000 {
        let now_ms = fixture.now_ms;
        let stores = fixture.requests();
        sent.extend(stores.iter().filter(|it| it.subject.contains(".h.")).map(|_| now_ms - begun));
        assert!(stores.iter().all(|it| !it.subject.contains(".h.") || it.body.contains("id")));
        fixture.pass(10);
    }
    assert_eq!(sent, [0, 1_000, 3_000, 7_000]);
    assert_eq!(fixture.events(), [Event::NotStored { ticket, why: NotStored::Unconfirmed }]);
    assert_eq!(fixture.jetstream.tickets.repeats, 3);
}

#[test]
fn only_messages_with_a_shorter_age_have_their_own_ttl() {
    let day = Duration::from_secs(86_400);
    let mut fixture = Fixture::on(StreamsConfig { age_max: day, ..StreamsConfig::default() });
    let mut ttl = |age: Option<Duration>| {
        fixture.store_for("id", age);
        let body = fixture.requests().remove(0).body;
        body.lines().find_map(|it| it.strip_prefix("Nats-TTL: ").map(str::to_owned))
    };
    assert_eq!(ttl(None), None);
    assert_eq!(ttl(Some(day)), None);
    assert_eq!(ttl(Some(day * 2)), None);
    assert_eq!(ttl(Some(day - Duration::from_millis(1))).as_deref(), Some("86399"));
    assert_eq!(ttl(Some(Duration::from_millis(5))).as_deref(), Some("1"));
}

#[test]
fn response_to_any_attempt_counts() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let ticket = fixture.store("id");
    let first = fixture.requests().remove(0);
    fixture.pass(1_000);
    let second = fixture.requests().remove(0);
    assert_ne!(first.reply, second.reply);
    fixture.answer(&first, r#"{"stream":"P_H0","seq":7,"duplicate":true}"#);
    fixture.answer(&second, r#"{"stream":"P_H0","seq":7,"duplicate":true}"#);
    assert_eq!(fixture.events(), [Event::Stored { ticket, seq: 7, is_duplicate: true }]);
}

#[test]
fn final_refusal_is_reported_at_once_in_the_brokers_words() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let ticket = fixture.store("id");
    let request = fixture.requests().remove(0);
    fixture.fail(&request, 400, 10_054);
    let why = NotStored::Refused("no (10054)".into());
    assert_eq!(fixture.events(), [Event::NotStored { ticket, why }]);
}

#[test]
fn store_that_an_earlier_attempt_may_have_done_is_never_refused() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let ticket = fixture.store("id");
    fixture.requests();
    fixture.pass(1_000);
    let second = fixture.requests().remove(0);
    fixture.fail(&second, 400, 10_054);
    assert_eq!(fixture.events(), []);
    fixture.pass(8_000);
    assert_eq!(fixture.events(), [Event::NotStored { ticket, why: NotStored::Unconfirmed }]);
}

#[test]
fn temporary_broker_error_is_retried_and_then_refused() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let ticket = fixture.store("id");
    for _ in 0..1_000 {
        for request in fixture.requests() {
            if request.subject.contains(".h.") {
                fixture.status(&request, 503, "");
            }
        }
        fixture.pass(10);
    }
    let [Event::NotStored { ticket: of, why: NotStored::Refused(why) }] = &fixture.events()[..]
    else {
        panic!("it is not refused");
    };
    assert_eq!(*of, ticket);
    assert!(why.contains("no response"), "{why}");
}

#[test]
fn store_that_other_servers_may_have_written_is_not_refused() {
    for (streams, is_refused) in [(StreamsConfig::default(), true), (three(), false)] {
        let mut fixture = Fixture::on(streams);
        fixture.store("id");
        let request = fixture.requests().remove(0);
        fixture.fail(&request, 503, 10_077);
        assert_eq!(fixture.events().len(), usize::from(is_refused));
    }
}

#[test]
fn waiting_stores_are_sent_in_order_once_the_next_link_is_up() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    fixture.unlink();
    let tickets = [fixture.store("a"), fixture.store("b"), fixture.store("c")];
    fixture.link();
    for request in fixture.requests() {
        fixture.answer_check(&request);
    }
    for request in fixture.requests() {
        assert_ne!(request.subject, subject("t").as_str(), "not before it is up");
        fixture.answer_check(&request);
    }
    let last = fixture.store("d");
    assert!(fixture.requests().is_empty(), "it is decided, and not said");
    fixture.up();
    let stores = fixture.requests();
    assert_eq!(stores.len(), 4);
    for (n, request) in stores.iter().enumerate() {
        assert!(request.body.ends_with(["a", "b", "c", "d"][n]), "{request:?}");
        fixture.answer(request, &format!(r#"{{"seq":{}}}"#, n + 1));
    }
    let expected: Vec<Event> = tickets
        .into_iter()
        .chain([last])
        .zip(1..)
        .map(|(ticket, seq)| Event::Stored { ticket, seq, is_duplicate: false })
        .collect();
    assert_eq!(fixture.events(), expected);
}

#[test]
fn tickets_are_bounded_and_accepted_again_at_half() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let max = simurgh_cluster::adapter::TICKETS_MAX;
    for n in 0..max {
        fixture.store(&format!("{n}"));
    }
    let Fixture { jetstream, events, now_ms, .. } = &mut fixture;
    let what = (&subject("t"), "x", None);
    let more =
        jetstream.take(jetstream.store(what, Bytes::new(), Ticket(0)), None, *now_ms, events);
    assert_eq!(more, Err(QueueFull));
    assert!(!fixture.jetstream.tickets.has_room());
    for request in fixture.requests() {
        fixture.answer(&request, r#"{"seq":1}"#);
    }
    assert!(!fixture.jetstream.tickets.has_room(), "their answers were not taken");
    assert_eq!(fixture.events().len(), max);
    assert!(fixture.jetstream.tickets.has_room());
}

#[test]
fn stored_bytes_are_bounded_but_one_envelope_is_always_accepted() {
    let mut fixture = Fixture::new(StreamsConfig::default());
    let large = Bytes::from(vec![0; 1_000_000]);
    let mut taken = 0;
    let what = (&subject("t"), "x", None);
    let Fixture { jetstream, events, now_ms, .. } = &mut fixture;
    while jetstream
        .take(jetstream.store(what, large.clone(), Ticket(taken)), None, *now_ms, events)
        .is_ok()
    {
        taken += 1;
        assert!(taken < 100);
    }
    assert_eq!(taken, 16);
}

#[test]
fn message_that_no_broker_can_store_is_refused_with_the_reason() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let topic = subject("t");
    let broadcast = prefix().topic(Space::Broadcast, "t");
    let long = "x".repeat(257);
    let large = Bytes::from(vec![0; (1 << 20) - 100]);
    let cases = [
        (&topic, "a\r\nb", Bytes::new(), "line breaks"),
        (&topic, "", Bytes::new(), "1 to 256"),
        (&topic, &*long, Bytes::new(), "1 to 256"),
        (&broadcast, "a", Bytes::new(), "does not belong to a stream"),
        (&topic, "a", large, "larger than"),
    ];
    for (to, id, envelope, body) in cases {
        let Fixture { jetstream, out, events, now_ms, .. } = &mut fixture;
        let what = (to, id, None);
        jetstream
            .take(jetstream.store(what, envelope, Ticket(9)), Some(out), *now_ms, events)
            .unwrap();
        let [Event::NotStored { why: NotStored::Refused(why), .. }] = &fixture.events()[..] else {
            panic!("{id}: it is stored");
        };
        assert!(why.contains(body), "{why}");
    }
    assert!(fixture.requests().is_empty());
}

#[test]
fn failed_request_is_retried_soon_and_then_at_the_usual_interval() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let begun = fixture.now_ms;
    fixture.store("id");
    let mut sent = vec![];
    for _ in 0..800 {
        for request in fixture.requests() {
            if request.subject.contains(".h.") {
                sent.push(fixture.now_ms - begun);
                if sent.len() <= 4 {
                    fixture.status(&request, 503, "");
                }
            }
        }
        fixture.pass(10);
    }
    // Counted from the last request without any answer: after 1, 2 and 4 seconds.
    assert_eq!(sent, [0, 250, 500, 750, 1_000, 2_000, 4_000]);
}
