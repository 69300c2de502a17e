//! When steps begin, and what is measured.

use proptest::prelude::*;

use super::*;

#[test]
fn late_timer_does_not_lengthen_the_reply_time() {
    for rest in ["{ think = \"10ms\" }", "{ receive = \"10ms\" }"] {
        let steps = format!(
            "steps = [{{ connect = \"/\" }}, {rest}, \
             {{ send = \"a\", reply = {{ contains = \"b\" }} }}, {{ receive = \"end\" }}]"
        );
        let mut user = Driven::new(RAW, "", &steps);
        user.upgrade();
        user.wait_ms(50);
        user.timer();
        user.wait_ms(2);
        user.text("b");
        assert_eq!(user.times_of(Metric::Message), [2000], "{rest}");
    }
}

/// A server that is late in one round of a paced loop is late in the rounds behind it, too.
#[test]
fn late_server_adds_its_delay_to_the_following_paced_rounds() {
    let steps = "steps = [{ connect = \"/\" }, { loop = 3, every = \"10ms\", steps = [\
                 { send = \"a\", reply = { contains = \"b\" } }] }, { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    for took_ms in [25, 1, 1] {
        user.wait_ms(took_ms);
        user.text("b");
    }
    assert_eq!(user.times_of(Metric::Message), [25_000, 16_000, 7_000]);
}

/// The same if a round begins with a think time: that is over already.
#[test]
fn late_server_does_not_make_think_times_late() {
    let steps = "steps = [{ connect = \"/\" }, { loop = 2, every = \"10ms\", steps = [\
                 { think = \"2ms\" }, { send = \"a\", reply = { contains = \"b\" } }] }, \
                 { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    user.timer();
    user.wait_ms(30);
    user.text("b");
    assert_eq!(user.frames().len(), 2, "the second think time is over");
    user.wait_ms(1);
    user.text("b");
    assert_eq!(user.times_of(Metric::Message), [30_000, 21_000]);
}

/// Rounds whose think times alone take longer than `every` follow each other: nobody is late.
#[test]
fn think_times_longer_than_the_pace_do_not_count_as_server_delay() {
    let steps = "steps = [{ connect = \"/\" }, { loop = 3, every = \"10ms\", steps = [\
                 { think = \"8ms\" }, { send = \"a\", reply = { contains = \"b\" } }, \
                 { think = \"8ms\" }, { send = \"a\", reply = { contains = \"b\" } }] }, \
                 { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    for _ in 0..6 {
        user.timer();
        assert_eq!(user.frames().len(), 1);
        user.text("b");
    }
    assert_eq!(user.times_of(Metric::Message), [0; 6]);
}

/// Otherwise a server that has gone silent would not be in the figures at all.
#[test]
fn time_waited_for_a_reply_counts_at_the_end_of_a_run() {
    let steps = "steps = [{ connect = \"/\" }, { send = \"a\", reply = { contains = \"b\" } }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    user.wait_ms(700);
    user.step(Input::Stop);
    assert_eq!(user.times_of(Metric::Message), [700_000]);
}

/// This tool did not run for a while: rounds are put off, and no server was late.
#[test]
fn late_generator_adds_no_delay_to_the_following_paced_rounds() {
    let steps = "steps = [{ connect = \"/\" }, { loop = 4, every = \"10ms\", steps = [\
                 { send = \"a\", reply = { contains = \"b\" } }] }, { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    user.text("b");
    user.wait_ms(1_000);
    for _ in 0..3 {
        user.timer();
        user.wait_ms(1);
        user.text("b");
    }
    assert_eq!(user.times_of(Metric::Message), [0, 1_000, 1_000, 1_000]);
}

/// This tool cut the connection itself: its time away is in no time of the server.
#[test]
fn planned_disconnection_is_in_no_latency() {
    for (think, before) in [("", 1), ("{ think = \"2ms\" }, ", 0)] {
        let session = format!(
            "drop = {{ every = \"10s\", for = \"1s\", how = \"rst\" }}\n\
             steps = [{{ connect = \"/\" }}, {{ transaction = \"t\", steps = [\
             {{ loop = 4, every = \"10ms\", steps = [{think}\
             {{ send = \"a\", reply = {{ contains = \"b\" }} }}] }}] }}, {{ receive = \"end\" }}]"
        );
        let mut user = Driven::new(RAW, "", &session);
        user.upgrade();
        (0..before).for_each(|_| user.text("b"));
        let drop = user.program.session_at(user.user.at).and_then(|session| session.drop).unwrap();
        user.step(Input::Cut(&drop));
        user.timer();
        user.upgrade();
        while user.times_of(Metric::Message).len() < 4 {
            if user.frames().is_empty() {
                user.timer();
            }
            user.wait_ms(1);
            user.text("b");
        }
        let times = user.times_of(Metric::Message);
        assert!(times.iter().all(|us| *us <= 1_000), "{think}{times:?}");
        let mut transactions = user.log.times.iter().filter(|(id, _)| id.metric().is_none());
        assert!(transactions.next().is_some_and(|(_, us)| *us < 100_000), "{think}");
    }
}

/// As those of think times: they were rounded up, and so up to a millisecond late.
#[test]
fn paced_rounds_start_at_the_nearest_tick() {
    let steps = "steps = [{ connect = \"/\" }, { loop = 4, every = \"10300us\", steps = [\
                 { send = \"a\" }] }, { receive = \"end\" }]";
    let mut user = Driven::new(RAW, "", steps);
    user.upgrade();
    let mut rounds = Vec::new();
    while user.log.timer_tick.is_some() {
        user.timer();
        rounds.push(user.log.now_ns / 1_000 - 1_000_000);
    }
    assert_eq!(rounds, [10_250, 20_500, 31_000]);
}

proptest! {
    /// However late timers are, and however many think times follow each other: the lateness of one
    /// is not in the next, and nothing is rounded twice.
    #[test]
    fn think_times_are_exact(
        thinks in prop::collection::vec((1..30_000_u64, 0..16_u32), 1..40),
        rounds in 1..4_usize,
        start_us in 0..5_000_u64,
    ) {
        let steps: String =
            thinks.iter().map(|(us, _)| format!("{{ think = \"{us}us\" }}, ")).collect();
        let steps = format!(
            "steps = [{{ connect = \"/\" }}, {{ loop = {rounds}, steps = [{steps}\
             {{ send = \"x\" }}] }}, {{ receive = \"end\" }}]"
        );
        let mut user = Driven::new(RAW, "", &steps);
        user.log.now_ns += start_us * 1_000;
        user.upgrade();
        let (mut due_us, mut now) = (user.log.now_ns / 1_000, 0);
        for round in 0..rounds {
            for (at, (think_us, late)) in thinks.iter().enumerate() {
                due_us += think_us;
                now = tick_nearest(due_us * 1_000).max(now) + late;
                prop_assert_eq!(user.frames(), Vec::<String>::new());
                user.log.now_ns = tick_ns(now);
                user.timer();
                prop_assert!(user.log.now_ns <= tick_ns(now), "{} of {}", at, round);
            }
            prop_assert_eq!(user.frames(), ["x"]);
        }
        prop_assert_eq!(user.user.state, UserState::Receiving);
    }
}
