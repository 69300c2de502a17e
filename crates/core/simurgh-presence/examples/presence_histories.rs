//! Histories for the official client: `presence_histories COUNT SEED` prints a line of JSON each:
//! what a client receives (`{"state":…}` and `{"diff":…}`), and the list that it must have then.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a part of tests")]

#[path = "../tests/it/support/mod.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod support;

use support::{Step, TestCluster};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<u64>().unwrap());
    let (count, seed) = (arguments.next().unwrap_or(1000), arguments.next().unwrap_or(1));
    let mut random = seed;
    for history in 0..count {
        let mut cluster = TestCluster::new(1 + history as usize % 3);
        for _ in 0..random_below(&mut random, 200) {
            cluster.step(step(&mut random));
        }
        cluster.heal();
        cluster.check_union();
        let ordered = !cluster.is_reordered();
        let node = &mut cluster.nodes[0];
        let (events, list) = (node.events.join(","), node.list_text());
        println!(r#"{{"events":[{events}],"list":{list},"ordered":{ordered}}}"#);
    }
}

fn step(random: &mut u64) -> Step {
    (
        random_below(random, 256) as u8,
        random_below(random, 1 << 16) as u16,
        random_below(random, 1 << 16) as u16,
    )
}

/// Of SplitMix64.
fn random_below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}
