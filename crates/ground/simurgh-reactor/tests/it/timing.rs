//! Waking at a precise time, and when the kernel received what is read.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::support::WAIT_MAX;
use simurgh_reactor::{
    Accepted, Closed, Config, ConnectOptions, Handler, Io, Key, Next, ShardHandle, ShardSet, Slow,
};

/// Asks to be woken some time after each wake, and reports the wanted and the actual time.
struct Sleeper {
    wakes: Sender<(u64, u64)>,
    wanted_ns: u64,
    /// Until the next wake; by its number.
    gap_ns: fn(u64) -> Option<u64>,
    count: u64,
}

impl Handler for Sleeper {
    type Conn = ();
    type Mail = ();

    fn readable(&mut self, _: &mut Io<()>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, _: &mut Io<()>, (): ()) {}

    fn turn_end(&mut self, io: &mut Io<()>) -> Next {
        assert_eq!(io.received_at(), None);
        let now_ns = io.clock_ns();
        assert!(now_ns >= io.now().ns, "a turn begins before its end");
        if self.count > 0 {
            let _ = self.wakes.send((self.wanted_ns, io.now().ns));
        }
        self.count += 1;
        let Some(gap_ns) = (self.gap_ns)(self.count) else { return Next::Idle };
        self.wanted_ns = now_ns + gap_ns;
        Next::At(self.wanted_ns)
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

/// A shard with a sleeper, its reports, and the set, whose end would be an event, too.
fn sleeper(gap_ns: fn(u64) -> Option<u64>) -> (ShardHandle, Receiver<(u64, u64)>, ShardSet<()>) {
    let (wakes, woken) = channel();
    let mut set = ShardSet::prepare(1, 1024).unwrap();
    let shard = set.spawn("sleeper", Config::default(), move |_| Sleeper {
        wakes,
        wanted_ns: 0,
        gap_ns,
        count: 0,
    });
    (shard.unwrap(), woken, set)
}

#[test]
fn wake_is_never_early_and_rarely_late() {
    // Fractions of a millisecond of all sizes, and at times several.
    let (shard, woken, _set) = sleeper(|count| Some(150_000 + count * 611_953 % 3_000_000));
    let late = || {
        let (wanted_ns, got_ns) = woken.recv_timeout(WAIT_MAX).unwrap();
        got_ns.checked_sub(wanted_ns).expect("woken before its time")
    };
    // While other programs need the cores all wakes are late: the calmest round counts.
    let mut medians = (0..30).map(|_| {
        let mut late: Vec<u64> = (0..100).map(|_| late()).collect();
        late.sort_unstable();
        late[50]
    });
    assert!(medians.any(|median| median < 300_000), "always late");
    shard.stop();
    shard.join().unwrap();
}

#[test]
fn wake_time_in_the_past_runs_at_once() {
    let (shard, woken, _set) = sleeper(|count| (count <= 1000).then_some(0));
    let all: Vec<_> = (0..1000).map(|_| woken.recv_timeout(WAIT_MAX).unwrap()).collect();
    // If each wait took even a millisecond, a hundred would take a tenth of a second.
    assert!(all.chunks(100).any(|part| part[99].1 - part[0].1 < 50_000_000));
    assert!(woken.recv_timeout(Duration::from_millis(50)).is_err());
    shard.stop();
    shard.join().unwrap();
}

/// Sleeps until the time of its last mail, and reports when it wakes.
struct RecordingHandler {
    until_ns: Option<u64>,
    woken: Sender<()>,
    /// Descriptors that no other thread can have.
    files: Vec<std::fs::File>,
}

impl RecordingHandler {
    fn new(woken: Sender<()>) -> Self {
        Self { until_ns: None, woken, files: Vec::new() }
    }
}

impl Handler for RecordingHandler {
    type Conn = ();
    /// From now, nanoseconds.
    type Mail = u64;

    fn readable(&mut self, _: &mut Io<()>, _: Key, _: &mut [u8]) {}

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, io: &mut Io<()>, ns: u64) {
        self.until_ns = Some(io.clock_ns() + ns);
    }

    fn turn_end(&mut self, io: &mut Io<()>) -> Next {
        assert!(self.files.is_empty() || std::fs::File::open("/dev/null").is_err());
        if self.until_ns.is_some_and(|ns| ns <= io.now().ns) {
            self.until_ns = None;
            let _ = self.woken.send(());
        }
        self.until_ns.map_or(Next::Idle, Next::At)
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

#[test]
fn earlier_wake_time_replaces_a_later_one() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let mut set = ShardSet::prepare(1, 1024).unwrap();
    let mailbox = set.mailboxes()[0].clone();
    let (sender, woken) = channel();
    let make = move |_: &_| RecordingHandler::new(sender);
    let shard = set.spawn("told", Config::default(), make).unwrap();
    for _ in 0..20 {
        for ns in [HOUR_NS, 2_500_000, 400_000] {
            assert!(mailbox.post_anyway(ns));
        }
        woken.recv_timeout(WAIT_MAX).expect("woken within the hour");
    }
    // It already sleeps when the nearer one comes.
    assert!(mailbox.post_anyway(HOUR_NS));
    assert!(woken.recv_timeout(Duration::from_millis(20)).is_err());
    assert!(mailbox.post_anyway(400_000));
    woken.recv_timeout(WAIT_MAX).expect("woken within the hour");
    shard.stop();
    shard.join().unwrap();
}

#[test]
fn full_descriptor_table_makes_wakes_coarse_but_correct() {
    let mut set = ShardSet::prepare(1, 1024).unwrap();
    let mailbox = set.mailboxes()[0].clone();
    let (sender, woken) = channel();
    let make = move |_: &_| {
        let files = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        RecordingHandler { files, ..RecordingHandler::new(sender) }
    };
    let shard = set.spawn("full", Config::default(), make).unwrap();
    for _ in 0..10 {
        assert!(mailbox.post_anyway(1_300_000));
        woken.recv_timeout(WAIT_MAX).expect("woken all the same");
    }
    shard.stop();
    shard.join().unwrap();
}

/// Both sides send their clock's time to and fro, and compare it with their own time on arrival and
/// with the kernel's.
struct Stamped {
    to: Option<SocketAddr>,
    exchanged: u64,
    has_slept: bool,
    last_ns: u64,
    stamped: Sender<Stamp>,
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    sent_ns: u64,
    received_ns: Option<u64>,
    read_ns: u64,
    /// The shard was busy when the message may have been received.
    has_slept: bool,
}

const BUSY: Duration = Duration::from_millis(2);

impl Handler for Stamped {
    type Conn = ();
    type Mail = ();

    fn accepted(&mut self, _: &mut Io<()>, _: Accepted) -> Option<()> {
        Some(())
    }

    fn connected(&mut self, io: &mut Io<()>, key: Key) {
        io.send(key, &io.clock_ns().to_le_bytes());
    }

    fn readable(&mut self, io: &mut Io<()>, key: Key, data: &mut [u8]) {
        let sent_ns = u64::from_le_bytes(data.try_into().expect("eight bytes at a time"));
        let (received_ns, read_ns) = (io.received_at(), io.clock_ns());
        if let Some(ns) = received_ns {
            assert!(ns >= self.last_ns, "{ns} after {}", self.last_ns);
            self.last_ns = ns;
        }
        let has_slept = self.has_slept;
        let _ = self.stamped.send(Stamp { sent_ns, received_ns, read_ns, has_slept });
        let now_ns = io.clock_ns();
        io.send(key, &now_ns.to_le_bytes());
        self.exchanged += 1;
        self.has_slept = self.exchanged.is_multiple_of(100);
        if self.has_slept {
            io.flush();
            std::thread::sleep(BUSY);
        }
    }

    fn closed(&mut self, _: &mut Io<()>, _: Key, (): (), _: Closed) {}

    fn mail(&mut self, _: &mut Io<()>, (): ()) {}

    fn turn_end(&mut self, io: &mut Io<()>) -> Next {
        assert_eq!(io.received_at(), None);
        if let Some(to) = self.to.take() {
            io.connect(to, &ConnectOptions::default(), ()).unwrap();
        }
        Next::Idle
    }

    fn slow(&mut self, _: &mut Io<()>, _: Key) -> Slow {
        Slow::Abort
    }
}

/// The first `count` messages, of those that are `wanted`, that two shards of one set, and so of
/// one clock, received. Both listen, and either may accept.
fn exchange(receive_stamps: bool, count: usize, wanted: fn(&Stamp) -> bool) -> Vec<Stamp> {
    let config = Config { receive_stamps, ..Config::default() };
    let mut set = ShardSet::prepare(2, 1024).unwrap();
    let address = set.bind(&["127.0.0.1:0".parse().unwrap()]).unwrap()[0];
    let (stamped, stamps) = channel();
    let shards = [None, Some(address)].map(|to| {
        let stamped = stamped.clone();
        let make = move |_: &_| Stamped { to, exchanged: 0, has_slept: false, last_ns: 0, stamped };
        set.spawn("stamped", config.clone(), make).unwrap()
    });
    let until = Instant::now() + WAIT_MAX;
    let seen = std::iter::repeat_with(|| stamps.recv_timeout(WAIT_MAX).unwrap())
        .take_while(|_| Instant::now() < until)
        .filter(wanted)
        .take(count)
        .collect();
    for shard in &shards {
        shard.stop();
    }
    for shard in shards {
        shard.join().unwrap();
    }
    seen
}

#[test]
fn kernel_timestamp_lies_between_sending_and_reading() {
    // The tolerance of the stamp: that of the comparison of the two clocks.
    const TOLERANCE_NS: u64 = 20_000;
    // The kernel enables stamps with a delay, so the first messages have none.
    let seen = exchange(true, 5000, |stamp| stamp.received_ns.is_some());
    assert_eq!(seen.len(), 5000, "not enough are stamped");
    let mut waited_ns = 0;
    for stamp in seen {
        let received_ns = stamp.received_ns.unwrap();
        assert!(received_ns + TOLERANCE_NS > stamp.sent_ns, "{stamp:?}");
        assert!(received_ns < stamp.read_ns + TOLERANCE_NS, "{stamp:?}");
        if stamp.has_slept {
            waited_ns = waited_ns.max(stamp.read_ns.saturating_sub(received_ns));
        }
    }
    // The stamp of a message that waits for a busy shard is its arrival, not the wake of the shard.
    assert!(waited_ns > BUSY.as_nanos() as u64 / 2, "{waited_ns} ns at most");
}

#[test]
fn no_timestamps_are_taken_unless_requested() {
    let seen = exchange(false, 200, |_| true);
    assert!(seen.iter().all(|stamp| stamp.received_ns.is_none()));
}
