//! Writing: one write per turn, order, and peers that read too slowly.

use std::time::{Duration, Instant};

use crate::support::{Event, Server, read_exactly, read_to_end, write};
use simurgh_reactor::{Closed, Config, Key, Run, Shared, Slow};

#[test]
fn output_of_one_turn_leaves_in_one_write_in_order() {
    let server = Server::start(1, false, &Config::default());
    let (mut first, one) = server.connect_with_key();
    let (mut second, two) = server.connect_with_key();
    let writes = |server: &Server| server.ask(|_, io| io.stats().read().writes);
    let before = writes(&server);
    server.ask(move |_, io| {
        let shared = Shared::from(b"<shared>".to_vec());
        for round in 0..3_u8 {
            io.send(one, &[b'a' + round]);
            io.send(two, &[b'x' + round]);
        }
        io.send_shared(one, &shared);
        assert!(io.send_with(one, |out| out.extend(b"end")));
        assert_eq!(io.write_with(two, |conn, out| (out.extend(b"end"), conn.bytes).1), Some(0));
        io.send_run_later(two, Run::of(&shared));
    });
    assert_eq!(read_exactly(&mut first, 14), b"abc<shared>end");
    assert_eq!(read_exactly(&mut second, 14), b"xyzend<shared>");
    // The counters are published at the end of a turn, so the next one sees them.
    assert_eq!(writes(&server) - before, 2);
}

#[test]
fn shared_frame_with_no_earlier_output_is_written_at_once() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    server.ask(move |_, io| {
        io.send_shared(key, &Shared::new("now"));
        // The peer has it although the turn continues.
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {}
    });
    assert_eq!(read_exactly(&mut stream, 3), b"now");
}

#[test]
fn output_of_more_spans_than_one_call_accepts_arrives_complete() {
    let server = Server::start(1, false, &Config::default());
    let (mut stream, key) = server.connect_with_key();
    let expected: Vec<u8> = (0..500_u32).flat_map(|n| format!("{n},").into_bytes()).collect();
    server.ask(move |_, io| {
        for n in 0..500_u32 {
            io.send_run_later(key, Run::of(&Shared::from(format!("{n},").into_bytes())));
        }
    });
    assert_eq!(read_exactly(&mut stream, expected.len()), expected);
}

#[test]
fn output_read_late_arrives_complete_and_in_order() {
    let config = Config { outbound_bytes_max: 64 << 20, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut stream, key) = server.connect_with_key();
    let block = |n: u8| vec![n; 1 << 20];
    server.ask(move |_, io| {
        for n in 0..10 {
            io.send_with(key, |out| out.extend(block(n)));
            io.send_shared(key, &Shared::from(block(n + 100)));
        }
        assert!(!io.is_empty());
    });
    // A later turn queues behind what waits.
    server.ask(move |_, io| {
        assert!(io.queued(key) > 10 << 20, "{} queued", io.queued(key));
        io.send(key, b"tail");
        io.close(key);
    });
    let (all, orderly) = read_to_end(&mut stream);
    assert!(orderly);
    let expected: Vec<u8> =
        (0..10).flat_map(|n| [block(n), block(n + 100)].concat()).chain(*b"tail").collect();
    assert!(all == expected, "{} bytes of {}", all.len(), expected.len());
    assert_eq!(server.event(), Event::Closed(key, Closed::Local));
    server.await_counts(|counts| counts.queued_bytes == 0);
}

fn overfill(server: &Server, key: Key) -> usize {
    let frame = vec![0x55; 64 << 10];
    for round in 1..1000 {
        let frame = frame.clone();
        server.ask(move |_, io| io.send_shared(key, &Shared::from(frame)));
        if let Ok(event) = server.events.try_recv() {
            assert_eq!(event, Event::Slow(key));
            return round * (64 << 10);
        }
    }
    panic!("no limit was kept");
}

#[test]
fn slow_reader_over_the_limit_gets_a_close_frame_and_is_closed() {
    let config = Config { outbound_bytes_max: 256 << 10, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut stream, key) = server.connect_with_key();
    let sent = overfill(&server, key);
    server.ask(move |_, io| {
        assert!(io.queued(key) <= (64 << 10) + 3, "the queue is dropped at once");
        io.send(key, b"ignored");
    });
    let (all, orderly) = read_to_end(&mut stream);
    assert!(orderly);
    assert!(all.ends_with(b"\x55bye"));
    assert_eq!((all.len() - 3) % (64 << 10), 0, "the frame that had begun is whole");
    assert!(all.len() < sent);
    assert_eq!(server.event(), Event::Closed(key, Closed::Slow));
    server.await_counts(|counts| counts.slow_cut == 1 && counts.queued_bytes == 0);
}

#[test]
fn slow_reader_that_never_reads_is_reset_after_the_linger() {
    let linger = Duration::from_millis(200);
    let config = Config { outbound_bytes_max: 256 << 10, linger, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut stream, key) = server.connect_with_key();
    overfill(&server, key);
    let begun = Instant::now();
    assert_eq!(server.event(), Event::Closed(key, Closed::Slow));
    assert!(begun.elapsed() > linger / 2, "{:?}", begun.elapsed());
    assert!(!read_to_end(&mut stream).1);
}

#[test]
fn slow_reader_can_be_aborted() {
    let config = Config { outbound_bytes_max: 256 << 10, ..Config::default() };
    let server = Server::start(1, false, &config);
    server.ask(|probe, _| probe.slow = Slow::Abort);
    let (mut stream, key) = server.connect_with_key();
    overfill(&server, key);
    assert_eq!(server.event(), Event::Closed(key, Closed::Slow));
    assert!(!read_to_end(&mut stream).1);
}

#[test]
fn message_above_the_output_limit_closes_only_that_connection() {
    let config = Config { outbound_bytes_max: 1024, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut stream, key) = server.connect_with_key();
    let (mut other, other_key) = server.connect_with_key();
    server.ask(move |_, io| io.send_with(key, |out| out.resize(out.len() + (64 << 20), 9)));
    assert_eq!(server.event(), Event::Slow(key));
    assert!(!read_to_end(&mut stream).1, "what has begun is too long to be finished");
    assert_eq!(server.event(), Event::Closed(key, Closed::Slow));
    server.await_counts(|counts| counts.slow_cut == 1 && counts.queued_bytes == 0);
    write(&mut other, b"alive");
    assert_eq!(server.read(other_key), b"alive");
}

#[test]
fn stalled_reader_is_closed_and_a_reading_one_stays_open() {
    let slow_after = Some(Duration::from_secs(3));
    let linger = Duration::from_millis(100);
    let config = Config { slow_after, linger, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut reader, reads) = server.connect_with_key();
    let (mut sleeper, sleeps) = server.connect_with_key();
    const BYTES: usize = 12 << 20;
    let frame = || Shared::from(vec![7; BYTES]);
    server.ask(move |_, io| {
        io.send_shared(reads, &frame());
        io.send_shared(sleeps, &frame());
    });
    let begun = Instant::now();
    let mut got = 0;
    while got < BYTES {
        // It needs more time for all of it than the limit, but never pauses for as long.
        got += read_exactly(&mut reader, (BYTES / 16).min(BYTES - got)).len();
        std::thread::sleep(Duration::from_millis(250));
    }
    assert!(begun.elapsed() > Duration::from_secs(3));
    assert_eq!(server.event(), Event::Slow(sleeps));
    assert_eq!(server.event(), Event::Closed(sleeps, Closed::Slow));
    assert!(!read_to_end(&mut sleeper).1);
    server.await_counts(|counts| {
        (counts.stalled_cut, counts.slow_cut, counts.queued_bytes, counts.waiting_bytes)
            == (1, 1, 0, 0)
    });
    write(&mut reader, b"alive");
    assert_eq!(server.read(reads), b"alive");
}

#[test]
fn connection_with_the_most_queued_bytes_is_closed_first() {
    let config = Config {
        outbound_bytes_max: 64 << 20,
        outbound_budget_bytes: 100 << 20,
        ..Config::default()
    };
    let server = Server::start(1, false, &config);
    let (_least, least) = server.connect_with_key();
    let (_most, most) = server.connect_with_key();
    let (mut other, other_key) = server.connect_with_key();
    let fill = |key, bytes: usize| {
        server.ask(move |_, io| io.send_with(key, |out| out.resize(out.len() + bytes, 9)));
    };
    fill(least, 20 << 20);
    fill(most, 60 << 20);
    // Frames that two connections share count once.
    let (_a, a) = server.connect_with_key();
    let (_b, b) = server.connect_with_key();
    let share = |bytes: usize| {
        server.ask(move |_, io| {
            let frame = io.share(vec![8; bytes]);
            io.send_shared(a, &frame);
            io.send_shared(b, &frame);
        });
    };
    share(20 << 20);
    server.assert_quiet();
    share(20 << 20);
    assert_eq!(server.event(), Event::Slow(most));
    server.await_counts(|counts| counts.outbound_shed == 1 && counts.waiting_bytes <= 100 << 20);
    write(&mut other, b"alive");
    loop {
        match server.event() {
            Event::Read(key, data) if key == other_key => break assert_eq!(data, b"alive"),
            Event::Slow(key) | Event::Closed(key, _) => assert_ne!(key, other_key),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn half_closed_client_still_receives_all_output() {
    let config = Config { half_close: true, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (mut stream, key) = server.connect_with_key();
    const BYTES: usize = 12 << 20;
    server.ask(move |_, io| io.send_shared(key, &Shared::from(vec![7; BYTES])));
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let (all, orderly) = read_to_end(&mut stream);
    assert_eq!((all.len(), orderly), (BYTES, true));
    assert_eq!(server.event(), Event::Closed(key, Closed::PeerEof));
}

#[test]
fn write_to_a_vanished_peer_ends_the_connection_once() {
    let server = Server::start(1, false, &Config::default());
    let (stream, key) = server.connect_with_key();
    server.ask(move |_, io| io.hold(key));
    drop(stream);
    for _ in 0..20 {
        server.ask(move |_, io| {
            io.send_shared(key, &Shared::from(vec![1; 100]));
            io.send(key, b"more");
        });
        std::thread::sleep(Duration::from_millis(2));
    }
    match server.event() {
        Event::Closed(closed, Closed::Reset(_) | Closed::PeerEof) => assert_eq!(closed, key),
        other => panic!("{other:?}"),
    }
    server.assert_quiet();
}

/// A flush takes time in proportion to the bytes, after all stages of the turn have looked at the
/// clock.
#[test]
fn turn_with_much_to_write_is_late() {
    let config = Config { outbound_bytes_max: 64 << 20, ..Config::default() };
    let server = Server::start(1, false, &config);
    let (_stream, key) = server.connect_with_key();
    let is_late = server.ask(move |_, io| {
        io.send_with(key, |out| out.extend(vec![0x55; 512 << 10]));
        io.is_late()
    });
    assert!(is_late);
    // A turn may be late for want of time, but not each.
    assert!((0..100).any(|_| !server.ask(|_, io| io.is_late())), "the next turn is another");
}
