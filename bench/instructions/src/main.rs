//! Real paths with fixed inputs and fixed counts, for instructions to be counted: callgrind runs
//! `simurgh-instructions NAME`, one item a process, and collects only inside the functions that
//! `simurgh-instructions --list` names for it. `cargo xtask bench --instructions` does both.
//!
//! What is on the caller's own thread is done inside [`counted`]. What a shard does is counted in
//! functions of the shard that are called once for each message or member: a slice of a fan-out
//! ends by the clock, so the number of turns depends on how fast callgrind is.

mod driven;
mod load;
mod proto;

use std::hint::black_box;
use std::process::ExitCode;

/// One thing whose instructions are counted.
struct Item {
    name: &'static str,
    /// How often it is done; what is shown is the count ÷ this.
    times: u32,
    /// The functions inside which instructions are collected, as callgrind's `--toggle-collect`
    /// takes them. None of them may be called by another.
    inside: &'static [&'static str],
    run: fn(u32),
}

/// The pattern of [`counted`].
const HERE: &[&str] = &["simurgh_instructions::counted*"];

fn main() -> ExitCode {
    let items = || proto::ITEMS.iter().chain(driven::ITEMS).chain(load::ITEMS);
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "--list" {
        for Item { name, times, inside, .. } in items() {
            println!("{name}\t{times}\t{}", inside.join("\t"));
        }
        return ExitCode::SUCCESS;
    }
    let Some(item) = items().find(|item| item.name == wanted) else {
        eprintln!("usage: simurgh-instructions --list | NAME");
        return ExitCode::from(2);
    };
    (item.run)(item.times);
    ExitCode::SUCCESS
}

/// Does `work`, whose instructions count. A function of its own in every build, by whose name
/// callgrind knows when to collect.
#[inline(never)]
fn counted<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}
