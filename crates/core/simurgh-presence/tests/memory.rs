//! What an entry costs besides the texts of its key and meta, and that a crowd's memory is freed.
#![allow(clippy::unwrap_used, reason = "tests")]

use libtest_mimic::{Arguments, Trial};
use simurgh_presence::{Meta, Owner, PhxRefs, Table};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const META: &str = r#"{"online_at":1700000000}"#;

fn heap() -> usize {
    dhat::HeapStats::get().curr_bytes
}

struct Topic {
    table: Table<u64>,
    refs: PhxRefs,
}

impl Topic {
    fn new() -> Self {
        Topic { table: Table::new(Owner(7), 7), refs: PhxRefs::new(Owner(7)) }
    }

    fn fill(&mut self, members: u64) {
        for member in 0..members {
            let phx_ref = self.refs.next(member);
            let meta = Meta::parse(META).unwrap();
            self.table.track(member, &key(member), meta, phx_ref).unwrap();
        }
        self.told();
    }

    fn told(&mut self) {
        self.table.take_delta();
        self.table.take_diff();
    }
}

fn key(member: u64) -> String {
    format!("user:{member}")
}

/// Bytes per entry of a topic with this many, the table included.
fn bytes_an_entry(members: u64) -> usize {
    let before = heap();
    let mut topic = Topic::new();
    topic.fill(members);
    let keys: usize = (0..members).map(|member| key(member).len()).sum();
    let all = heap() - before + size_of::<Table<u64>>();
    let texts = keys + META.len() * members as usize;
    (all - texts).div_ceil(members as usize)
}

fn an_entry_costs_what_is_promised_and_nothing_stays() {
    let _profiler = dhat::Profiler::builder().testing().build();
    for (members, bytes_max) in
        [(1, 250), (2, 250), (16, 150), (17, 220), (100, 150), (18_000, 150)]
    {
        let bytes = bytes_an_entry(members);
        println!("{members}: {bytes} B an entry");
        assert!(bytes <= bytes_max, "{bytes} B an entry in a topic of {members}");
    }

    let before = heap();
    let mut topic = Topic::new();
    topic.fill(18_000);
    let full = heap() - before;
    // A few stay, and the memory of the others is freed.
    for member in 100..18_000 {
        assert_eq!(topic.table.untrack_all(member), 1);
    }
    topic.told();
    assert_eq!((topic.table.len(), topic.table.keys()), (100, 100));
    for member in 0..100 {
        assert_eq!(topic.table.get(&key(member)).unwrap().metas().count(), 1);
    }
    let few = heap() - before;
    assert!(few <= 100 * (150 + 40), "{few} B for a hundred");
    for member in 0..100 {
        assert!(topic.table.untrack(member, &key(member)));
    }
    topic.told();
    assert_eq!(heap() - before, 0);
    println!("{full} B with 18,000, {few} B with 100 of them left");
}

/// One test, on the main thread: the allocator counts for all threads, the harness's included.
fn main() {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let test = Trial::test("an_entry_costs_what_is_promised_and_nothing_stays", || {
        an_entry_costs_what_is_promised_and_nothing_stays();
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![test]).exit()
}
