//! A fixed piece of work without Simurgh code: it measures the machine's current speed. The figures
//! of driven sockets, which use no kernel and so have no other floor, are divided by it.
//!
//! It is similar work: many records of a socket's size are made one by one, put into a table,
//! looked up in another order, traversed, and freed.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use simurgh_bench_kit::stats;

/// Words of a record; with the allocator's own it comes to the 160 bytes of a joined socket.
const WORDS: usize = 19;
const WALKS: u32 = 5;

/// Does the work with this many records and prints its cost, as a line of JSON.
pub(crate) fn run(records: usize) -> Result<()> {
    let records = u32::try_from(records)?;
    ensure!(records > 0, "--records is at least 1");
    let before = cpu();
    let sum = work(records);
    let spent = cpu().saturating_sub(before);
    ensure!(black_box(sum) > 0, "every record counts");
    let each = stats::per(u64::try_from(spent.as_nanos())?, records);
    println!("{}", json!({"records": records, "record_ns": each}));
    Ok(())
}

fn work(records: u32) -> u64 {
    let mut made: Vec<Box<[u64; WORDS]>> = Vec::new();
    let mut by_key = HashMap::new();
    for number in 0..u64::from(records) {
        by_key.insert(key(number), made.len());
        made.push(Box::new([number + 1; WORDS]));
    }
    let mut sum = 0;
    // Backwards, so that neither order is the order in memory.
    for number in (0..u64::from(records)).rev() {
        let found = by_key.get(&key(number)).and_then(|at| made.get_mut(*at));
        sum += found.map_or(0, |record| {
            record[WORDS - 1] += 1;
            record[0]
        });
    }
    for _ in 0..WALKS {
        sum += black_box(&made).iter().map(|record| record[WORDS / 2]).sum::<u64>();
    }
    sum
}

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_made_found_and_walked_over() {
        // Numbers 1 to 100 once when found, and once in each walk.
        assert_eq!(work(100), 5050 * (1 + u64::from(WALKS)));
        assert!(run(0).is_err());
    }
}
