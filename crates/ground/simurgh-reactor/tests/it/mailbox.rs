//! The mailbox: no posted mail is lost, and posting does not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Script, Server, WAIT_MAX};
use simurgh_reactor::{Config, Full, Next};

#[test]
fn posts_from_many_threads_arrive_in_order() {
    const THREADS: usize = 4;
    const POSTS: usize = 25_000;
    let server = Server::start(1, false, &Config::default());
    let last: Arc<[AtomicUsize; THREADS]> = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mailbox, last) = (server.mailboxes[0].clone(), Arc::clone(&last));
            scope.spawn(move || {
                for post in 1..=POSTS {
                    let last = Arc::clone(&last);
                    let script: Script = Box::new(move |_, _| {
                        let before = last[thread].swap(post, Ordering::Relaxed);
                        assert_eq!(before + 1, post);
                    });
                    assert!(mailbox.post_anyway(script));
                    if post % 1000 == 0 {
                        // Lets the shard fall asleep now and then.
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
        }
    });
    // The last mail was posted: without another wake-up all of them are handled.
    let until = Instant::now() + WAIT_MAX;
    while !last.iter().all(|last| last.load(Ordering::Relaxed) == POSTS) {
        assert!(Instant::now() < until, "{last:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_sleeping_shard_is_woken_each_time() {
    let server = Server::start(1, false, &Config::default());
    for _ in 0..2000 {
        server.ask(|_, _| ());
    }
}

#[test]
fn mailbox_bytes_are_counted_until_they_are_discharged() {
    let server = Server::start(1, false, &Config::default());
    let mailbox = &server.mailboxes[0];
    assert_eq!(mailbox.bytes_max(), 1 << 20);
    mailbox.post(Box::new(|_, _| {}), 700_000).unwrap();
    server.ask(|_, _| ());
    assert_eq!(mailbox.bytes(), 700_000, "handled, but its effect may go on");
    let Err(Full(script)) = mailbox.post(Box::new(|_, _| {}), 400_000) else {
        panic!("the limit was not kept")
    };
    assert_eq!(mailbox.bytes(), 700_000);
    mailbox.discharge(700_000);
    mailbox.post(script, 2 << 20).expect("a large mail passes an empty mailbox");
    assert!(mailbox.post(Box::new(|_, _| {}), 1).is_err());
    mailbox.discharge(2 << 20);
}

#[test]
fn turn_end_runs_again_at_its_requested_time() {
    let server = Server::start(1, false, &Config::default());
    let turns = |server: &Server| server.shards[0].stats().read().turns;
    server.ask(|probe, _| probe.next = Next::After(Duration::from_millis(5)));
    let (before, since) = (turns(&server), std::time::Instant::now());
    std::thread::sleep(Duration::from_millis(300));
    let passed = turns(&server) - before;
    let most = since.elapsed().as_millis() as u64 / 4;
    assert!((1..=most).contains(&passed), "{passed} turns of 5 ms, at most {most}");
    server.ask(|probe, _| probe.next = Next::Idle);
    std::thread::sleep(Duration::from_millis(250));
    let before = turns(&server);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(turns(&server) - before, 0, "an idle shard does not turn");
    let counts = server.shards[0].stats().read();
    assert!(counts.cpu_ns > 0, "the CPU time was brought up to date before it slept");
    assert_eq!(counts.turns_by_duration.iter().sum::<u64>(), counts.turns);
}

#[test]
fn shard_of_another_set_can_post_to_a_mailbox() {
    let first = Server::start(1, false, &Config::default());
    let second = Server::start(1, false, &Config::default());
    for _ in 0..50 {
        for (from, to) in [(&first, &second), (&second, &first)] {
            let (answer, answered) = std::sync::mpsc::channel();
            let mailbox = to.mailboxes[0].clone();
            from.ask(move |_, _| {
                mailbox.post_anyway(Box::new(move |_, _| answer.send(()).unwrap()))
            });
            answered.recv_timeout(WAIT_MAX).expect("it was woken");
        }
    }
}
