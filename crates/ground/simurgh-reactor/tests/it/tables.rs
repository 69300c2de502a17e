//! Private descriptor tables: what Linux provides, and how many connections that allows.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::Command;

use crate::support::{Event, Script, Server, read_exactly, write};
use rustix::process::{Resource, Rlimit, setrlimit};
use simurgh_reactor::{Config, ShardSet, Tables, raise_descriptor_limit};

fn open_descriptors() -> BTreeSet<String> {
    let listed = std::fs::read_dir("/proc/thread-self/fd").unwrap();
    listed
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            // The descriptor of the listing itself is gone.
            let target = std::fs::read_link(&path).ok()?;
            Some(format!("{} {}", path.file_name()?.display(), target.display()))
        })
        .filter(|entry| !entry.contains("/proc/"))
        .collect()
}

#[test]
fn shard_and_process_do_not_see_each_others_descriptors() {
    let file = std::fs::File::open("/etc/hostname").or_else(|_| std::fs::File::open("/dev/null"));
    let file = file.unwrap();
    let server = Server::start(2, false, &Config::default());
    assert!(server.shards.iter().all(|shard| shard.tables() == Tables::Private));
    let (_client, _) = server.connect_with_key();
    let shards: Vec<BTreeSet<String>> = server
        .mailboxes
        .iter()
        .map(|mailbox| {
            let (answer, answered) = std::sync::mpsc::channel();
            let script: Script = Box::new(move |_, _| answer.send(open_descriptors()).unwrap());
            mailbox.post_anyway(script);
            answered.recv_timeout(crate::support::WAIT_MAX).unwrap()
        })
        .collect();
    // 0, 1, 2; one hand-off end; poll set; listener; the connection in one of them. Besides these
    // two wakers, and those of servers that other tests run meanwhile.
    let wakers = |shard: &BTreeSet<String>| {
        shard.iter().filter(|entry| entry.ends_with("anon_inode:[eventfd]")).count()
    };
    let sizes: BTreeSet<usize> = shards.iter().map(|shard| shard.len() - wakers(shard)).collect();
    assert_eq!(sizes, BTreeSet::from([6, 7]), "{shards:?}");
    assert!(shards.iter().all(|shard| wakers(shard) >= 2), "{shards:?}");
    let sockets = |entries: &BTreeSet<String>| -> BTreeSet<String> {
        let socket = |entry: &String| entry.split_once(' ').unwrap().1.to_owned();
        entries.iter().map(socket).filter(|target| target.starts_with("socket")).collect()
    };
    let process = sockets(&open_descriptors());
    assert!(!process.is_empty());
    for shard in &shards {
        for standard in ["0 ", "1 ", "2 "] {
            assert!(shard.iter().any(|entry| entry.starts_with(standard)), "{shard:?}");
        }
        assert_eq!(sockets(shard).intersection(&process).count(), 0);
    }
    assert_eq!(sockets(&shards[0]).intersection(&sockets(&shards[1])).count(), 0);
    drop(file);
}

#[test]
fn event_counter_created_earlier_works_on_a_shard() {
    use rustix::event::{EventfdFlags, eventfd};
    let counter = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&counter);
    let server = Server::start(1, false, &Config::default());
    server.ask(move |_, _| {
        // SAFETY: shards keep event counters open, which is what this test is about.
        #[allow(unsafe_code)]
        let counter = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        rustix::io::write(counter, &7_u64.to_ne_bytes()).unwrap();
    });
    let mut count = [0; 8];
    rustix::io::read(&counter, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 7);
}

#[test]
fn shard_thread_cannot_prepare_shards() {
    let server = Server::start(1, false, &Config::default());
    assert!(server.ask(|_, _| ShardSet::<Script>::prepare(1, 1024).is_err()));
}

#[test]
fn servers_may_start_while_others_run() {
    let first = Server::start(1, true, &Config::default());
    let mut early = first.connect();
    let second = Server::start(2, true, &Config::default());
    drop(Server::start(1, true, &Config::default()));
    let third = Server::start(1, true, &Config::default());
    for server in [&first, &second, &third] {
        let mut stream = server.connect();
        write(&mut stream, b"ping");
        assert_eq!(read_exactly(&mut stream, 4), b"ping");
    }
    write(&mut early, b"still");
    assert_eq!(read_exactly(&mut early, 5), b"still");
}

/// Set in a child that runs with few descriptors.
const CHILD: &str = "SIMURGH_FEW_DESCRIPTORS";
const LIMIT: u64 = 200;

fn rerun(test: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn lower_the_limit() {
    let limit = Rlimit { current: Some(LIMIT / 2), maximum: Some(LIMIT) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn two_shards_hold_more_connections_than_one_descriptor_table() {
    if std::env::var_os(CHILD).is_none() {
        return rerun("tables::two_shards_hold_more_connections_than_one_descriptor_table");
    }
    lower_the_limit();
    let server = Server::start(2, true, &Config::default());
    assert_eq!(raise_descriptor_limit(), (LIMIT, LIMIT));
    // 0..=2, two wakers, hand-off, poll set, listener, timer; a sixteenth in reserve.
    assert_eq!(server.shards[0].capacity(), 200 - 9 - 12);
    // The clients need a table as well: a third one, of a thread that only connects.
    let address = server.address;
    let clients = connect_from_tables(address, 260);
    let mut per_shard = [0; 2];
    while per_shard.iter().sum::<u64>() < 260 {
        match server.event() {
            Event::Accepted { shard, .. } => per_shard[shard] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(per_shard.iter().all(|count| *count > LIMIT / 2), "{per_shard:?}");
    drop(clients);
}

/// Connects from two threads with private tables, and echoes a word over each connection; they keep
/// their connections until the returned sender is dropped.
fn connect_from_tables(
    address: std::net::SocketAddr,
    connections: usize,
) -> Vec<std::sync::mpsc::Sender<()>> {
    let (ready, readies) = std::sync::mpsc::channel();
    let holders = (0..2)
        .map(|_| {
            let (hold, held) = std::sync::mpsc::channel::<()>();
            let ready = ready.clone();
            std::thread::spawn(move || {
                separate_table();
                let mut streams: Vec<_> =
                    (0..connections / 2).map(|_| TcpStream::connect(address).unwrap()).collect();
                for stream in &mut streams {
                    stream.set_read_timeout(Some(crate::support::WAIT_MAX)).unwrap();
                    write(stream, b"word");
                    assert_eq!(read_exactly(stream, 4), b"word");
                }
                ready.send(()).unwrap();
                let _ = held.recv();
            });
            hold
        })
        .collect();
    for _ in 0..2 {
        readies.recv_timeout(crate::support::WAIT_MAX).expect("all connected");
    }
    holders
}

#[allow(unsafe_code)]
fn separate_table() {
    // SAFETY: this thread uses no descriptor but those it opens from here on.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
}

#[test]
fn full_shard_uses_its_descriptor_reserve_and_then_waits() {
    if std::env::var_os(CHILD).is_none() {
        return rerun("tables::full_shard_uses_its_descriptor_reserve_and_then_waits");
    }
    lower_the_limit();
    let server = Server::start(1, false, &Config::default());
    let capacity = server.shards[0].capacity();
    let mut streams: Vec<_> =
        (0..capacity + 20).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
    // The clients' own table is as small, but has room for enough to use up the reserve.
    let connected = streams.len();
    assert!(connected >= capacity + 9, "{connected} connected");
    let mut over = 0;
    for index in 0..capacity + 9 {
        match server.event() {
            Event::Accepted { over_capacity, .. } => {
                assert_eq!(over_capacity, index >= capacity);
                over += usize::from(over_capacity);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(over, 9, "three quarters of the reserve of twelve");
    server.assert_quiet();
    if connected > capacity + 9 {
        // If one closes, another is accepted.
        drop(streams.remove(0));
        assert!(matches!(server.event(), Event::Closed(..)));
        assert!(matches!(server.event(), Event::Accepted { over_capacity: true, .. }));
    }
}
