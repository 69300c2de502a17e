//! Random runs, with every fault, and what they find.

use std::collections::BTreeSet;

use super::world::{GONE_MS, Plant, World};
use super::*;

/// The longest time from the repair of all faults to rest: a node is gone, grace, pauses of hooks.
const REST_MS: u64 = 420_000;

fn run(seed: u64, plant: Plant, has_faults: bool) -> World {
    let mut world = World::new(seed, 1 + seed % 4, plant);
    for _ in 0..150 {
        let (changes, ms) = (world.rng.u64(..6), world.rng.u64(..3_000));
        (0..changes).for_each(|_| world.change());
        if has_faults && world.rng.u8(..8) == 0 {
            world.break_something();
        }
        world.run(ms);
        if world.failure.is_some() {
            return world;
        }
    }
    world.mend();
    world.run(REST_MS);
    world.check_at_rest();
    world
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok()?.parse().ok();
    let first = read("NOTICES_SEED").unwrap_or(0);
    first..first + read("NOTICES_SEEDS").unwrap_or(default)
}

#[test]
fn b44_without_faults_no_stay_ends_early_and_all_are_right_at_rest() {
    for seed in seeds(20) {
        let world = run(seed, Plant::Nothing, false);
        assert_eq!(world.failure, None, "seed {seed}");
    }
}

#[test]
fn b42_with_all_faults_starts_and_ends_alternate_and_all_are_right_at_rest() {
    let mut met = std::collections::BTreeMap::<&str, u64>::new();
    let mut events = 0;
    for seed in seeds(40) {
        let world = run(seed, Plant::Nothing, true);
        assert_eq!(world.failure, None, "seed {seed}");
        world.met.iter().for_each(|(what, count)| *met.entry(what).or_default() += count);
        events += world.events;
    }
    std::println!("{events} events, met {met:?}");
}

#[test]
fn planted_faults_are_found() {
    for (plant, has_faults) in [
        (Plant::LostEnd, false),
        (Plant::DoubleStart, false),
        (Plant::NoGrace, false),
        (Plant::NoFence, true),
    ] {
        let found = (0..400).find(|seed| run(*seed, plant, has_faults).failure.is_some());
        assert!(found.is_some(), "{plant:?}");
        std::println!("{plant:?} is found with seed {found:?}");
    }
}

/// Whichever node is killed, it coordinates about a third of the partitions.
#[test]
fn b49_killed_node_ends_the_stays_that_do_not_resume_within_presence_down_and_5_s() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, Plant::Nothing);
        world.run(10_000);
        let topics = (0..600_u64).map(|n| (1 + n % 3, format!("rooms:{}", n / 20), n));
        for (node, topic, user) in topics {
            world.join(node, &Key::member(&topic, &user.to_string()));
        }
        world.run(3_000);
        let killed = 1 + seed % 3;
        let here = world.kill(killed);
        world.run(2_000);
        let resumed: BTreeSet<Key> = here.iter().step_by(3).cloned().collect();
        resumed.iter().for_each(|key| world.join(1 + killed % 3, key));
        world.run(GONE_MS + 5_000 - 2_000);
        assert_eq!(world.failure, None, "seed {seed}");
        let ended = world.backs[0].seen.values().filter(|notice| notice.end.is_some());
        let ended: BTreeSet<Key> = ended.map(|notice| notice.stay.key.clone()).collect();
        assert_eq!(ended, here.difference(&resumed).cloned().collect(), "seed {seed}");
        world.check_at_rest();
        assert_eq!(world.failure, None, "seed {seed}");
    }
}
