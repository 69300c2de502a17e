//! Receiving bytes and answering them allocates nothing.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::support::{Event, Server, read_exactly, write};
use simurgh_reactor::{Config, Key, Shared};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the contract is the trait's own; it is passed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as above.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn allocations(server: &Server) -> u64 {
    server.ask(|_, _| ALLOCATIONS.with(Cell::get))
}

#[test]
fn reading_and_answering_allocates_nothing() {
    let server = Server::start(1, true, &Config::default());
    let mut streams: Vec<_> = (0..10).map(|_| server.connect()).collect();
    let mut exchange = |rounds: usize| {
        for _ in 0..rounds {
            for stream in &mut streams {
                write(stream, b"heartbeat");
            }
            for stream in &mut streams {
                assert_eq!(read_exactly(stream, 9), b"heartbeat");
            }
        }
    };
    // The first rounds allocate the loop's own buffers.
    exchange(20);
    let begin = allocations(&server);
    let asking = allocations(&server) - begin;
    let begin = allocations(&server);
    exchange(200);
    let spent = allocations(&server) - begin;
    assert!(asking > 0, "what the test itself posts is counted");
    // A busy machine may deliver more at once than at first, and the loop's buffers grow.
    assert!(spent <= asking + 20, "{spent} allocations for 2000 answers, {asking} for none");
}

#[test]
fn sending_a_shared_frame_to_many_allocates_nothing() {
    let server = Server::start(1, false, &Config::default());
    let streams: Vec<_> = (0..50).map(|_| server.connect()).collect();
    let keys: Vec<Key> = (0..50)
        .map(|_| match server.event() {
            Event::Accepted { key, .. } => key,
            other => panic!("{other:?}"),
        })
        .collect();
    let spent = server.ask(move |_, io| {
        let frame = Shared::from(vec![1; 64]);
        let before = ALLOCATIONS.with(Cell::get);
        for key in keys {
            io.send_shared(key, &frame);
        }
        ALLOCATIONS.with(Cell::get) - before
    });
    assert_eq!(spent, 0);
    drop(streams);
}
