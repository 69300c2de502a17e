//! The memory of a user that only waits; a process of its own, because it counts the heap.
//!
//! Clients of the capacity test, which reconnect and wait for messages, took 860 to 1,040 bytes
//! each, others 127: each had a record for the place of its only join, and kept all received frames
//! for later waits that did not exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod outside;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use outside::{Server, frame, of, steered};
use serde_json::{Value, json};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const USERS: usize = 200;
/// Broadcasts that each of them receives.
const HEARD: usize = 20;
/// Additional bytes of a user with a longer session than others: 0, except for the workers' own
/// figures at the time, some histograms. It was 2,863.
const MORE_BYTES_MAX: usize = 400;

/// A V2 server that answers a join, sends many messages, and counts when they were received.
fn talkative(told: &Arc<AtomicUsize>) -> Server {
    let told = Arc::clone(told);
    Server::new(move |mut peer| {
        peer.messages(|peer, got| {
            if got.opcode == 10 {
                // The answer to a ping that was sent after all messages.
                told.fetch_add(1, SeqCst);
                return true;
            }
            let message: Value = serde_json::from_slice(&got.payload).unwrap();
            let answer = json!({"status": "ok", "response": {}});
            let reply = json!([message[0], message[1], message[2], "phx_reply", answer]);
            peer.text(&reply.to_string());
            let news = json!([null, null, message[2], "news", {"body": "x".repeat(60)}]);
            for _ in 0..HEARD {
                peer.text(&news.to_string());
            }
            peer.send(frame(9, "heard?"))
        });
    })
}

/// Heap in use while all users of a session stay, and have received everything.
fn heap_of(session: &str) -> usize {
    let told = Arc::new(AtomicUsize::new(0));
    let server = talkative(&told);
    let text = of(server.addr, USERS as u32, "phoenix", "duration = \"60s\"", session);
    let mut looking = None;
    let ran = steered(&text, 1, |run| {
        let control = run.control();
        looking = Some(thread::spawn(move || {
            let began = Instant::now();
            while told.load(SeqCst) < USERS {
                assert!(began.elapsed() < Duration::from_secs(30), "{told:?} have heard all");
                thread::sleep(Duration::from_millis(10));
            }
            // Measurements are handed over each second, and dropped then.
            let looks = (0..60).map(|_| {
                thread::sleep(Duration::from_millis(100));
                dhat::HeapStats::get().curr_bytes
            });
            let least = looks.min().unwrap();
            control.stop();
            least
        }));
    });
    ran.errors_are(&[]);
    looking.unwrap().join().unwrap()
}

#[test]
fn reconnecting_waiting_user_needs_no_more_memory_than_an_idle_one() {
    let _profiler = dhat::Profiler::builder().testing().build();
    let stay = "steps = [{ connect = \"/\" }, { join = \"a\" }, { receive = \"end\" }]";
    let wait = "reconnect = { min = \"20ms\", max = \"200ms\" }\n\
                steps = [{ connect = \"/\" }, { join = \"a\" }, \
                { wait = { contains = \"go\" }, timeout = \"1h\" }, { think = \"1h\" }]";
    // The first run allocates what is allocated once.
    heap_of(stay);
    let (stays, waits) = (heap_of(stay), heap_of(wait));
    let each = waits.saturating_sub(stays) / USERS;
    assert!(each <= MORE_BYTES_MAX, "{each} bytes more for each ({stays}, {waits})");
}
