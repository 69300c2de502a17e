//! Streams as they are found, and what is said of them.

use super::*;

#[test]
fn an_engine_that_is_too_old_is_named_with_the_version_it_needs() {
    let mut stage = Stage::new(StreamsConfig::default());
    stage.jetstream.link(0, "2.10.29", &mut stage.out);
    assert_eq!(stage.up(), None);
    assert!(stage.asked().is_empty());
    let words = stage.jetstream.describe().unwrap();
    assert!(words.contains("NATS 2.10.29") && words.contains("needs 2.11"), "{words}");
    stage.store("a");
    let [Event::NotStored { why: NotStored::Refused(why), .. }] = &stage.events()[..] else {
        panic!("it is stored");
    };
    assert!(why.contains("2.10.29"), "{why}");
    assert!(!is_too_old("2.11.0") && !is_too_old("3.0") && !is_too_old("dev"));
    assert!(is_too_old("2.9.10") && is_too_old("1.99"));
}

#[test]
fn a_node_that_keeps_nothing_says_so_and_asks_nothing() {
    let mut stage = Stage::new(StreamsConfig::default());
    stage.jetstream = JetStream::new(&prefix(), None);
    stage.link();
    assert_eq!(stage.up(), None);
    assert!(stage.out.is_empty());
    stage.store("a");
    let ticket = stage.after(false);
    let [Event::NotStored { why: NotStored::Refused(_), .. }, none] = &stage.events()[..] else {
        panic!("it is stored");
    };
    assert_eq!(*none, Event::Fetched { ticket, kept: None });
}

#[test]
fn nodes_agree_on_the_epoch_and_another_stream_has_another() {
    let epoch = |created: &str, last_seq: u64| {
        let mut stage = Stage::new(StreamsConfig::default());
        (stage.created, stage.last_seq) = (created.to_owned(), last_seq);
        stage.link();
        stage.fits();
        stage.jetstream.decided().unwrap().unwrap()
    };
    assert_eq!(epoch("a", 0), epoch("a", 1_000));
    assert_ne!(epoch("a", 0), epoch("b", 0));
}

#[test]
fn all_of_sixteen_streams_are_looked_at_before_anything_is_kept() {
    let streams = StreamsConfig { streams: StreamCount::Sixteen, ..StreamsConfig::default() };
    let mut stage = Stage::new(streams.clone());
    stage.link();
    for round in 0..2 {
        let asked = stage.asked();
        assert_eq!(asked.len(), [16, 48][round]);
        for it in asked {
            assert_eq!(stage.jetstream.decided(), None);
            let digit = it.subject.chars().last().unwrap();
            let at = digit.to_digit(16).filter(|_| it.subject.starts_with("$JS"));
            stage.config = streams.stream(&prefix(), at.unwrap_or(0) as usize);
            stage.answer_check(&it);
        }
    }
    assert!(stage.up().is_some());
}

#[test]
fn a_stream_that_is_set_back_is_marked_and_has_another_epoch() {
    let mut stage = Stage::on(StreamsConfig::default());
    let epoch = stage.jetstream.decided();
    stage.store("id");
    let asked = stage.asked().remove(0);
    stage.answer(&asked, r#"{"seq":50}"#);
    stage.unlink();
    stage.last_seq = 49;
    stage.link();
    let info = stage.asked().remove(0);
    stage.answer_check(&info);
    let update = stage.asked().remove(0);
    assert!(update.subject.contains("STREAM.UPDATE"), "{update:?}");
    assert!(update.words.contains(r#""simurgh.epoch":"1""#), "{update:?}");
    stage.answer_check(&update);
    stage.fits();
    assert_ne!(stage.jetstream.decided(), epoch);
    // From then on it is that stream.
    let epoch = stage.jetstream.decided();
    stage.unlink();
    stage.link();
    stage.fits();
    assert_eq!(stage.jetstream.decided(), epoch);
}

#[test]
fn who_may_not_mark_a_stream_that_is_set_back_has_another_epoch_alone() {
    let streams = StreamsConfig { create_streams: false, ..StreamsConfig::default() };
    let mut stage = Stage::on(streams);
    let epoch = stage.jetstream.decided();
    stage.jetstream.heard(b"p.b.0.1c.t", 50);
    for _ in 0..2 {
        stage.unlink();
        stage.last_seq = 49;
        stage.link();
        stage.fits();
        assert_ne!(stage.jetstream.decided(), epoch);
    }
}

#[test]
fn a_leader_that_has_not_caught_up_with_itself_is_asked_again() {
    let mut stage = Stage::on(three());
    let epoch = stage.jetstream.decided();
    stage.jetstream.heard(b"p.b.0.1c.t", 50);
    stage.unlink();
    stage.last_seq = 49;
    stage.link();
    let info = stage.asked().remove(0);
    stage.answer_check(&info);
    assert!(stage.asked().is_empty());
    stage.pass(500);
    stage.last_seq = 50;
    stage.fits();
    assert_eq!(stage.jetstream.decided(), epoch);
}

#[test]
fn who_does_not_lead_says_nothing_of_a_stream() {
    let mut stage = Stage::new(three());
    stage.link();
    let asked = stage.asked().remove(0);
    let mut info = stage.info();
    info["cluster"]["leader"] = "".into();
    stage.answer(&asked, &info.to_string());
    assert!(stage.asked().is_empty());
    assert_eq!(stage.jetstream.decided(), None);
    stage.pass(1_000);
    assert!(stage.asked()[0].subject.contains("INFO"), "it is asked again");
}

#[test]
fn where_nobody_answers_it_is_up_without_and_then_another_link_is_made() {
    let mut stage = Stage::new(StreamsConfig::default());
    stage.link();
    stage.pass(2_900);
    assert_eq!(stage.jetstream.decided(), None);
    stage.pass(200);
    assert_eq!(stage.up(), None);
    let words = stage.jetstream.describe().unwrap();
    assert!(words.contains("P_H0: JetStream does not answer"), "{words}");
    let mut then = Action::Continue;
    for _ in 0..1_000 {
        stage.pass(10);
        for asked in stage.asked() {
            let next = stage.answer_check(&asked);
            then = if next == Action::Continue { then } else { next };
        }
    }
    assert_eq!(then, Action::Reconnect("the engine can keep topics now".into()));
}

#[test]
fn what_was_known_is_hoped_for_and_nothing_is_asked_until_it_is_known() {
    for is_anew in [false, true] {
        let mut stage = Stage::on(StreamsConfig::default());
        let epoch = stage.jetstream.decided().unwrap();
        stage.unlink();
        stage.link();
        stage.asked();
        stage.pass(1_100);
        assert_eq!(stage.up(), epoch);
        let ticket = stage.store("id");
        assert!(stage.asked().iter().all(|it| it.subject.contains("INFO")));
        stage.pass(3_000);
        if is_anew {
            stage.created = "anew".to_owned();
        }
        let mut then = Action::Continue;
        for _ in 0..3 {
            for asked in stage.asked() {
                let is_store = asked.words.contains("id") && asked.subject.contains(".h.");
                let next = match is_store {
                    true => stage.answer(&asked, r#"{"seq":1}"#),
                    false => stage.answer_check(&asked),
                };
                then = if next == Action::Continue { then } else { next };
            }
        }
        if is_anew {
            assert_eq!(then, Action::Reconnect("the engine keeps something else now".into()));
            assert_eq!(stage.events(), []);
        } else {
            assert_eq!(then, Action::Continue);
            assert_eq!(stage.events(), [Event::Stored { ticket, seq: 1, is_duplicate: false }]);
        }
    }
}

/// What it sends would be taken for what was there before.
#[test]
fn a_stream_that_begins_again_while_the_link_stands_is_looked_at_at_once() {
    let mut stage = Stage::on(StreamsConfig::default());
    stage.pass(2_000);
    for seq in [5, 6, 9] {
        stage.jetstream.heard(b"p.b.0.1c.t", seq);
    }
    stage.last_seq = 9;
    stage.pass(2_000);
    assert!(stage.asked().is_empty(), "that is its order");
    // Two interests overlap: so it is looked at now and then, and is what it was.
    for _ in 0..200 {
        stage.jetstream.heard(b"p.b.0.1c.t", 9);
        assert_eq!(stage.pass(10), Action::Continue);
    }
    let asked = stage.asked();
    assert!((1..=2).contains(&asked.len()), "{} times in two seconds", asked.len());
    for it in &asked {
        assert_eq!(stage.answer_check(it), Action::Continue);
    }
    stage.pass(2_000);
    assert!(stage.asked().is_empty());
    (stage.created, stage.last_seq) = ("anew".to_owned(), 3);
    stage.jetstream.heard(b"p.b.0.1c.u", 3);
    stage.pass(10);
    let asked = stage.asked().remove(0);
    assert!(asked.subject.contains("STREAM.INFO"), "{asked:?}");
    let why = "the stream P_H0 is not what it was";
    assert_eq!(stage.answer_check(&asked), Action::Reconnect(why.into()));
}

#[test]
fn streams_are_looked_at_again_and_one_that_changed_ends_the_link() {
    for change in 0..3 {
        let mut stage = Stage::on(StreamsConfig::default());
        stage.jetstream.heard(b"p.b.0.1c.t", 5);
        stage.last_seq = 5;
        let mut looks = 0;
        let mut then = Action::Continue;
        while then == Action::Continue && stage.now_ms < 200_000 {
            stage.pass(10);
            for asked in stage.asked() {
                looks += 1;
                if looks == 2 {
                    match change {
                        0 => stage.created = "anew".to_owned(),
                        1 => stage.last_seq = 4,
                        _ => {}
                    }
                }
                let next = match change {
                    2 if looks == 2 => stage.fail(&asked, 404, 10_059),
                    _ => stage.answer_check(&asked),
                };
                then = if next == Action::Continue { then } else { next };
            }
        }
        assert_eq!(looks, 2);
        assert!((50_000..100_000).contains(&stage.now_ms), "{}", stage.now_ms);
        let Action::Reconnect(why) = then else { panic!("{change}: it goes on") };
        assert!(why.contains("P_H0"), "{why}");
    }
}

#[test]
fn hope_ends_and_then_it_is_said_why_nothing_is_kept() {
    let mut stage = Stage::on(StreamsConfig::default());
    let epoch = stage.jetstream.decided().unwrap();
    for round in 0..2 {
        stage.unlink();
        stage.link();
        stage.asked();
        stage.pass(3_100);
        let kept = stage.up();
        stage.store("id");
        if round == 0 {
            assert_eq!(kept, epoch);
            let then = stage.pass(20_000);
            let Action::Reconnect(why) = then else { panic!("it may_be_presumed for ever") };
            assert!(why.contains("P_H0: JetStream does not answer"), "{why}");
        } else {
            assert_eq!(kept, None);
            let words = stage.jetstream.describe().unwrap();
            assert!(words.contains("P_H0: JetStream does not answer"), "{words}");
        }
    }
    let is_refused = |it: &Event| matches!(it, Event::NotStored { why: NotStored::Refused(_), .. });
    assert_eq!(stage.events().iter().map(is_refused).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_stream_for_which_nobody_answers_any_more_ends_the_link_but_not_soon() {
    for status in [None, Some(503)] {
        let mut stage = Stage::on(StreamsConfig::default());
        let begun = stage.now_ms;
        let (mut looks, mut since) = (vec![], None);
        let why = loop {
            if let Action::Reconnect(why) = stage.pass(10) {
                break why;
            }
            for asked in stage.asked() {
                looks.push(stage.now_ms - begun);
                // The first is answered.
                if looks.len() == 1 {
                    assert_eq!(stage.answer_check(&asked), Action::Continue);
                    continue;
                }
                since.get_or_insert(stage.now_ms);
                if let Some(status) = status {
                    assert_eq!(stage.status(&asked, status, ""), Action::Continue);
                }
            }
            assert!(stage.now_ms < begun + 100_000);
        };
        assert_eq!(&*why, "nobody answers for the stream P_H0");
        let silent_ms = stage.now_ms - since.unwrap();
        assert!((10_000..13_000).contains(&silent_ms), "{silent_ms}");
        assert!((5..9).contains(&looks.len()), "{looks:?}");
    }
}
