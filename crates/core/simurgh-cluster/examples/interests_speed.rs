//! What interests take, in nanoseconds; with optimisation, or it says little.

use std::hint::black_box;
use std::time::Instant;

use simurgh_cluster::{Interests, InterestsConfig};

const TOPICS: usize = 100_000;
/// As many are looked up again and again where it is meant that they are in the caches.
const HOT: usize = 1000;
const ROUNDS: usize = 9;

fn main() {
    let names: Vec<String> = (0..TOPICS).map(|it| format!("room:lobby:{it:09}")).collect();
    let mut rounds: Vec<[f64; 6]> = (0..ROUNDS).map(|_| round(&names)).collect();
    println!("median of {ROUNDS} rounds, {TOPICS} topics at once");
    let what = ["begin", "take_changes", "shards, cold", "shards, hot", "end", "tick"];
    for (at, name) in what.into_iter().enumerate() {
        rounds.sort_by(|a, b| a[at].total_cmp(&b[at]));
        println!("{name:>14}: {:.0} ns a topic", rounds[ROUNDS / 2][at]);
    }
}

fn each(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn look_up(interests: &Interests, names: &[String]) {
    for name in names {
        let shards = interests.shards(name);
        black_box(shards.map(Iterator::sum::<u16>));
    }
}

fn round(names: &[String]) -> [f64; 6] {
    let mut interests = Interests::new(&InterestsConfig::default(), 1);
    let begin = each(TOPICS, || names.iter().for_each(|it| interests.begin(it, 0, 0)));
    let mut steps = Vec::new();
    let take = each(TOPICS, || steps = interests.take_changes());
    black_box(steps);
    let cold = each(TOPICS, || look_up(&interests, names));
    let hot = each(HOT * 100, || (0..100).for_each(|_| look_up(&interests, &names[..HOT])));
    let end = each(TOPICS, || names.iter().for_each(|it| interests.end(it, 0, 0)));
    let tick = each(TOPICS, || {
        while let Some(at) = interests.next_ns() {
            interests.tick(at);
        }
        interests.take_changes();
    });
    [begin, take, cold, hot, end, tick]
}
