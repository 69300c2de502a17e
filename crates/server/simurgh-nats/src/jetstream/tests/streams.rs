//! Checks of streams, and their reports.

use super::*;

#[test]
fn old_broker_is_reported_with_the_required_version() {
    let mut fixture = Fixture::new(StreamsConfig::default());
    fixture.jetstream.link(0, "2.10.29", &mut fixture.out);
    assert_eq!(fixture.up(), None);
    assert!(fixture.requests().is_empty());
    let body = fixture.jetstream.describe().unwrap();
    assert!(body.contains("NATS 2.10.29") && body.contains("need 2.11"), "{body}");
    fixture.store("a");
    let [Event::NotStored { why: NotStored::Refused(why), .. }] = &fixture.events()[..] else {
        panic!("it is stored");
    };
    assert!(why.contains("2.10.29"), "{why}");
    assert!(!is_too_old("2.11.0") && !is_too_old("3.0") && !is_too_old("dev"));
    assert!(is_too_old("2.9.10") && is_too_old("1.99"));
}

#[test]
fn a_node_without_histories_reports_it_and_sends_no_requests() {
    let mut fixture = Fixture::new(StreamsConfig::default());
    fixture.jetstream = JetStream::new(&prefix(), None);
    fixture.link();
    assert_eq!(fixture.up(), None);
    assert!(fixture.out.is_empty());
    fixture.store("a");
    let ticket = fixture.after(false);
    let [Event::NotStored { why: NotStored::Refused(_), .. }, none] = &fixture.events()[..] else {
        panic!("it is stored");
    };
    assert_eq!(*none, Event::Fetched { ticket, kept: None });
}

#[test]
fn broker_without_jetstream_ends_the_check_at_once() {
    let mut fixture = Fixture::new(StreamsConfig::default());
    fixture.link();
    let info = fixture.requests().remove(0);
    assert_eq!(fixture.status(&info, 503, ""), Action::Continue);
    assert_eq!(fixture.up(), None);
    let words = fixture.jetstream.describe().unwrap();
    assert!(words.contains("JetStream is not enabled"), "{words}");
    // The node looks for JetStream again, once in a while.
    assert_eq!(fixture.pass(3_000), Action::Continue);
    assert!(fixture.requests().is_empty());
    assert_eq!(fixture.pass(4_000), Action::Continue);
    let again = fixture.requests().remove(0);
    assert_eq!(fixture.status(&again, 503, ""), Action::Continue);
    fixture.pass(7_000);
    for _ in 0..3 {
        for sent in fixture.requests() {
            if let Action::Reconnect(why) = fixture.answer_check(&sent) {
                assert_eq!(&*why, "the broker can store histories now");
                return;
            }
        }
    }
    panic!("it does not use JetStream");
}

#[test]
fn known_stream_without_responder_is_presumed_for_a_while() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let epoch = fixture.jetstream.decided();
    fixture.unlink();
    fixture.link();
    let info = fixture.requests().remove(0);
    fixture.status(&info, 503, "");
    assert_eq!(fixture.jetstream.decided(), None);
    fixture.pass(1_100);
    assert_eq!(fixture.jetstream.decided(), epoch);
}

#[test]
fn nodes_agree_on_the_epoch_and_each_stream_has_its_own() {
    let epoch = |created: &str, last_seq: u64| {
        let mut fixture = Fixture::new(StreamsConfig::default());
        (fixture.created, fixture.last_seq) = (created.to_owned(), last_seq);
        fixture.link();
        fixture.fits();
        fixture.jetstream.decided().unwrap().kept.unwrap()
    };
    assert_eq!(epoch("a", 0), epoch("a", 1_000));
    assert_ne!(epoch("a", 0), epoch("b", 0));
}

#[test]
fn all_sixteen_streams_are_checked_before_the_first_store() {
    let streams = StreamsConfig { streams: StreamCount::Sixteen, ..StreamsConfig::default() };
    let mut fixture = Fixture::new(streams.clone());
    fixture.link();
    for round in 0..2 {
        let sent = fixture.requests();
        assert_eq!(sent.len(), [16, 48][round]);
        for it in sent {
            assert_eq!(fixture.jetstream.decided(), None);
            let digit = it.subject.chars().last().unwrap();
            let at = digit.to_digit(16).filter(|_| it.subject.starts_with("$JS"));
            fixture.config = streams.stream(&prefix(), at.unwrap_or(0) as usize);
            fixture.answer_check(&it);
        }
    }
    assert!(fixture.up().is_some());
}

#[test]
fn restored_stream_is_marked_and_gets_another_epoch() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let epoch = fixture.jetstream.decided();
    fixture.store("id");
    let sent = fixture.requests().remove(0);
    fixture.answer(&sent, r#"{"seq":50}"#);
    fixture.unlink();
    fixture.last_seq = 49;
    fixture.link();
    let info = fixture.requests().remove(0);
    fixture.answer_check(&info);
    let update = fixture.requests().remove(0);
    assert!(update.subject.contains("STREAM.UPDATE"), "{update:?}");
    assert!(update.body.contains(r#""simurgh.epoch":"1""#), "{update:?}");
    fixture.answer_check(&update);
    fixture.fits();
    assert_ne!(fixture.jetstream.decided(), epoch);
    // From then on the stream is known.
    let epoch = fixture.jetstream.decided();
    fixture.unlink();
    fixture.link();
    fixture.fits();
    assert_eq!(fixture.jetstream.decided(), epoch);
}

#[test]
fn without_permission_to_mark_a_restored_stream_a_node_has_its_own_epoch() {
    let streams = StreamsConfig { create_streams: false, ..StreamsConfig::default() };
    let mut fixture = Fixture::on(streams);
    let epoch = fixture.jetstream.decided();
    fixture.jetstream.on_republished(b"p.b.0.1c.t", 50);
    for _ in 0..2 {
        fixture.unlink();
        fixture.last_seq = 49;
        fixture.link();
        fixture.fits();
        assert_ne!(fixture.jetstream.decided(), epoch);
    }
}

#[test]
fn leader_that_has_not_caught_up_is_queried_again() {
    let mut fixture = Fixture::on(three());
    let epoch = fixture.jetstream.decided();
    fixture.jetstream.on_republished(b"p.b.0.1c.t", 50);
    fixture.unlink();
    fixture.last_seq = 49;
    fixture.link();
    let info = fixture.requests().remove(0);
    fixture.answer_check(&info);
    assert!(fixture.requests().is_empty());
    fixture.pass(500);
    fixture.last_seq = 50;
    fixture.fits();
    assert_eq!(fixture.jetstream.decided(), epoch);
}

#[test]
fn only_the_leader_counts_for_a_stream() {
    let mut fixture = Fixture::new(three());
    fixture.link();
    let sent = fixture.requests().remove(0);
    let mut info = fixture.info();
    info["cluster"]["leader"] = "".into();
    fixture.answer(&sent, &info.to_string());
    assert!(fixture.requests().is_empty());
    assert_eq!(fixture.jetstream.decided(), None);
    fixture.pass(1_000);
    assert!(fixture.requests()[0].subject.contains("INFO"), "it is sent again");
}

#[test]
fn without_an_answer_it_is_up_without_histories_and_links_again() {
    let mut fixture = Fixture::new(StreamsConfig::default());
    fixture.link();
    fixture.pass(2_900);
    assert_eq!(fixture.jetstream.decided(), None);
    fixture.pass(200);
    assert_eq!(fixture.up(), None);
    let body = fixture.jetstream.describe().unwrap();
    assert!(body.contains("P_H0: JetStream does not respond"), "{body}");
    let mut then = Action::Continue;
    for _ in 0..1_000 {
        fixture.pass(10);
        for sent in fixture.requests() {
            let next = fixture.answer_check(&sent);
            then = if next == Action::Continue { then } else { next };
        }
    }
    assert_eq!(then, Action::Reconnect("the broker can store histories now".into()));
}

#[test]
fn known_streams_are_presumed_until_they_are_checked() {
    for is_anew in [false, true] {
        let mut fixture = Fixture::on(StreamsConfig::default());
        let epoch = fixture.jetstream.decided().unwrap().kept;
        fixture.unlink();
        fixture.link();
        fixture.requests();
        fixture.pass(1_100);
        assert_eq!(fixture.up(), epoch);
        let ticket = fixture.store("id");
        assert!(fixture.requests().iter().all(|it| it.subject.contains("INFO")));
        fixture.pass(3_000);
        if is_anew {
            fixture.created = "anew".to_owned();
        }
        let mut then = Action::Continue;
        for _ in 0..3 {
            for sent in fixture.requests() {
                let is_store = sent.body.contains("id") && sent.subject.contains(".h.");
                let next = match is_store {
                    true => fixture.answer(&sent, r#"{"seq":1}"#),
                    false => fixture.answer_check(&sent),
                };
                then = if next == Action::Continue { then } else { next };
            }
        }
        if is_anew {
            assert_eq!(then, Action::Reconnect("the broker's streams have changed".into()));
            assert_eq!(fixture.events(), []);
        } else {
            assert_eq!(then, Action::Continue);
            assert_eq!(fixture.events(), [Event::Stored { ticket, seq: 1, is_duplicate: false }]);
        }
    }
}

/// Otherwise its messages would be taken for those of the previous stream.
#[test]
fn stream_created_anew_on_a_live_link_is_checked_at_once() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    fixture.pass(2_000);
    for seq in [5, 6, 9] {
        fixture.jetstream.on_republished(b"p.b.0.1c.t", seq);
    }
    fixture.last_seq = 9;
    fixture.pass(2_000);
    assert!(fixture.requests().is_empty(), "that is its order");
    // Two interests overlap: the stream is checked from time to time, and is unchanged.
    for _ in 0..200 {
        fixture.jetstream.on_republished(b"p.b.0.1c.t", 9);
        assert_eq!(fixture.pass(10), Action::Continue);
    }
    let sent = fixture.requests();
    assert!((1..=2).contains(&sent.len()), "{} times in two seconds", sent.len());
    for it in &sent {
        assert_eq!(fixture.answer_check(it), Action::Continue);
    }
    fixture.pass(2_000);
    assert!(fixture.requests().is_empty());
    (fixture.created, fixture.last_seq) = ("anew".to_owned(), 3);
    fixture.jetstream.on_republished(b"p.b.0.1c.u", 3);
    fixture.pass(10);
    let sent = fixture.requests().remove(0);
    assert!(sent.subject.contains("STREAM.INFO"), "{sent:?}");
    let why = "the stream P_H0 has changed";
    assert_eq!(fixture.answer_check(&sent), Action::Reconnect(why.into()));
}

#[test]
fn streams_are_checked_again_and_a_changed_one_ends_the_link() {
    for change in 0..3 {
        let mut fixture = Fixture::on(StreamsConfig::default());
        fixture.jetstream.on_republished(b"p.b.0.1c.t", 5);
        fixture.last_seq = 5;
        let mut looks = 0;
        let mut then = Action::Continue;
        while then == Action::Continue && fixture.now_ms < 200_000 {
            fixture.pass(10);
            for sent in fixture.requests() {
                looks += 1;
                if looks == 2 {
                    match change {
                        0 => fixture.created = "anew".to_owned(),
                        1 => fixture.last_seq = 4,
                        _ => {}
                    }
                }
                let next = match change {
                    2 if looks == 2 => fixture.fail(&sent, 404, 10_059),
                    _ => fixture.answer_check(&sent),
                };
                then = if next == Action::Continue { then } else { next };
            }
        }
        assert_eq!(looks, 2);
        assert!((50_000..100_000).contains(&fixture.now_ms), "{}", fixture.now_ms);
        let Action::Reconnect(why) = then else { panic!("{change}: it goes on") };
        assert!(why.contains("P_H0"), "{why}");
    }
}

#[test]
fn after_the_last_retry_the_reason_is_reported() {
    let mut fixture = Fixture::on(StreamsConfig::default());
    let epoch = fixture.jetstream.decided().unwrap().kept;
    for round in 0..2 {
        fixture.unlink();
        fixture.link();
        fixture.requests();
        fixture.pass(3_100);
        let kept = fixture.up();
        fixture.store("id");
        if round == 0 {
            assert_eq!(kept, epoch);
            let then = fixture.pass(20_000);
            let Action::Reconnect(why) = then else { panic!("it is presumed for ever") };
            assert!(why.contains("P_H0: JetStream does not respond"), "{why}");
        } else {
            assert_eq!(kept, None);
            let body = fixture.jetstream.describe().unwrap();
            assert!(body.contains("P_H0: JetStream does not respond"), "{body}");
        }
    }
    let is_refused = |it: &Event| matches!(it, Event::NotStored { why: NotStored::Refused(_), .. });
    assert_eq!(fixture.events().iter().map(is_refused).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn stream_without_responder_ends_the_link_after_a_while() {
    for status in [None, Some(503)] {
        let mut fixture = Fixture::on(StreamsConfig::default());
        let begun = fixture.now_ms;
        let (mut looks, mut since) = (vec![], None);
        let why = loop {
            if let Action::Reconnect(why) = fixture.pass(10) {
                break why;
            }
            for sent in fixture.requests() {
                looks.push(fixture.now_ms - begun);
                // Only the first check is answered.
                if looks.len() == 1 {
                    assert_eq!(fixture.answer_check(&sent), Action::Continue);
                    continue;
                }
                since.get_or_insert(fixture.now_ms);
                if let Some(status) = status {
                    assert_eq!(fixture.status(&sent, status, ""), Action::Continue);
                }
            }
            assert!(fixture.now_ms < begun + 100_000);
        };
        assert_eq!(&*why, "no response for the stream P_H0");
        let silent_ms = fixture.now_ms - since.unwrap();
        assert!((10_000..13_000).contains(&silent_ms), "{silent_ms}");
        assert!((5..9).contains(&looks.len()), "{looks:?}");
    }
}
