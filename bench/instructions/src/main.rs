//! Real paths with fixed inputs and fixed counts, so that instructions can be counted: callgrind
//! runs `simurgh-instructions NAME`, one item a process, and collects only inside the functions
//! that `simurgh-instructions --list` names for it. `cargo xtask bench --instructions` does both.
//! The page is a separate program (`page.rs`), since it has another allocator.
//!
//! Work on the caller's own thread is done inside [`counted`]. A shard's work is counted in
//! functions of the shard that are called once for each message or member: a slice of a fan-out
//! ends by the clock, so the number of turns depends on how fast callgrind is.

mod driven;
mod item;
mod load;
mod proto;

use std::hint::black_box;
use std::process::ExitCode;

const HERE: &[&str] = &["simurgh_instructions::counted*"];

fn main() -> ExitCode {
    item::run(proto::ITEMS.iter().chain(driven::ITEMS).chain(load::ITEMS))
}

/// Does `work`, whose instructions count. Never inlined: callgrind finds it by its name.
#[inline(never)]
fn counted<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}
