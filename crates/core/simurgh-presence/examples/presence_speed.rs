//! What the table's operations take, in nanoseconds; with optimisation, or it says little.
#![allow(clippy::unwrap_used, reason = "a measure")]

use std::hint::black_box;
use std::time::Instant;

use simurgh_presence::{Meta, Owner, PhxRefs, Table};

const MEMBERS: u64 = 18_000;
const ROUNDS: usize = 21;

fn main() {
    let mut all: Vec<[f64; 8]> = (0..ROUNDS).map(|_| round()).collect();
    println!("median of {ROUNDS} rounds, {MEMBERS} members");
    let names = [
        "track",
        "take_delta, a join",
        "take_diff, a join",
        "update",
        "take_diff, an update",
        "encode_state, an entry",
        "Diff::encode, an update",
        "untrack",
    ];
    for (at, name) in names.into_iter().enumerate() {
        all.sort_by(|a, b| a[at].total_cmp(&b[at]));
        println!("{name:>24}: {:.0} ns", all[ROUNDS / 2][at]);
    }
}

fn round() -> [f64; 8] {
    let (mut table, mut refs) = (Table::new(Owner(1), 1), PhxRefs::new(Owner(1)));
    let meta = Meta::parse(r#"{"online_at":1700000000}"#).unwrap();
    let keys: Vec<String> = (0..MEMBERS).map(|n| format!("user:{n}")).collect();
    let each = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64 / MEMBERS as f64
    };
    let track = each(&mut || {
        for (n, key) in (0..).zip(&keys) {
            table.track(n, key, meta.clone(), refs.next(n)).unwrap();
        }
    });
    let delta = each(&mut || drop(black_box(table.take_delta())));
    let join = each(&mut || drop(black_box(table.take_diff())));
    let update = each(&mut || {
        for (n, key) in (0..).zip(&keys) {
            table.update(n, key, meta.clone(), refs.next(n)).unwrap();
        }
    });
    table.take_delta();
    let mut diff = None;
    let updated = each(&mut || diff = table.take_diff());
    let mut out = Vec::new();
    let state = each(&mut || table.encode_state(&mut out));
    out.clear();
    let encode = each(&mut || diff.iter().for_each(|diff| diff.encode(&mut out)));
    let untrack = each(&mut || {
        for (n, key) in (0..).zip(&keys) {
            assert!(table.untrack(n, key));
        }
    });
    [track, delta, join, update, updated, state, encode, untrack]
}
