//! No operation takes longer in a larger topic: the same work in a topic of ten times the size
//! takes ten times as many comparisons and hashes of members, not a hundred times.

use std::cell::Cell;
use std::hash::{Hash, Hasher};

use simurgh_presence::{Meta, Owner, PhxRefs, Table};

thread_local! {
    static WORK: Cell<u64> = const { Cell::new(0) };
}

fn work() -> u64 {
    WORK.get()
}

/// A member that counts how often it is compared or hashed.
#[derive(Clone, Copy, Debug)]
struct Counted(u64);

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        WORK.set(work() + 1);
        self.0 == other.0
    }
}

impl Eq for Counted {}

impl Hash for Counted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        WORK.set(work() + 1);
        self.0.hash(state);
    }
}

/// The member and the key of an entry.
type Shape = fn(u64) -> (u64, u64);

/// Who tracks what: each member its own key, all members the same key, one member all keys.
const SHAPES: [(&str, Shape); 3] = [
    ("a key each", |n| (n, n)),
    ("one key for all", |n| (n, 0)),
    ("one member for all", |n| (0, n)),
];

/// All entries come, are updated and leave, with a diff and a delta after each `batch`.
fn comings_and_goings(shape: Shape, entries: u64, batch: u64) -> u64 {
    let before = work();
    let mut table: Table<Counted> = Table::new(Owner(1), 1);
    let mut refs = PhxRefs::new(Owner(1));
    let meta = Meta::parse("{}").unwrap();
    let told = |table: &mut Table<Counted>, n: u64, changes: usize| {
        if n % batch == batch - 1 {
            let (diff, delta) = (table.take_diff().unwrap(), table.take_delta().unwrap());
            assert_eq!(delta.joins.len() + delta.leaves.len(), batch as usize * changes);
            let metas = diff.joins.iter().chain(&diff.leaves).map(|change| change.metas.len());
            assert_eq!(metas.sum::<usize>(), batch as usize * changes);
        }
    };
    for n in 0..entries {
        let (member, key) = shape(n);
        table.track(Counted(member), &key.to_string(), meta.clone(), refs.next(n)).unwrap();
        told(&mut table, n, 1);
    }
    for n in 0..entries {
        let (member, key) = shape(n);
        table.update(Counted(member), &key.to_string(), meta.clone(), refs.next(n)).unwrap();
        told(&mut table, n, 2);
    }
    for n in 0..entries {
        let (member, key) = shape(n);
        assert!(table.untrack(Counted(member), &key.to_string()));
        told(&mut table, n, 1);
    }
    assert!(table.is_empty() && !table.has_changes());
    work() - before
}

#[test]
fn work_grows_linearly_with_entries() {
    for (name, shape) in SHAPES {
        let few = comings_and_goings(shape, 2_000, 1);
        let many = comings_and_goings(shape, 20_000, 1);
        println!("{name}: {few} looks at a member for 2,000 entries, {many} for 20,000");
        assert!(many < few * 13, "{name}: {many} for ten times {few}");
        assert!(many < 20_000 * 60, "{name}: {many}");
    }
}

/// CPU nanoseconds that this thread has used. Unlike the time that passes, they do not grow when
/// other programs need the machine.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn cpu_of_comings_and_goings(entries: u64) -> u64 {
    let before = cpu_ns();
    comings_and_goings(|n| (n, n), entries, 100);
    cpu_ns() - before
}

/// Costs other than comparisons show in CPU time: 200,000 entries, with debug assertions, take ten
/// times as much as a tenth of them, and in a quadratic table a hundred times.
#[test]
fn two_hundred_thousand_entries_join_and_leave_in_linear_time() {
    let few = (0..3).map(|_| cpu_of_comings_and_goings(20_000)).min().unwrap();
    let many = cpu_of_comings_and_goings(200_000);
    println!("CPU time: {few} ns for 20,000 entries, {many} ns for 200,000");
    assert!(many < few * 40, "{few} ns for 20,000 entries, {many} ns for 200,000");
}
