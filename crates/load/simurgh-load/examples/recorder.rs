//! The cost of recording: nanoseconds a call, printed. `cargo run --release --example recorder`.

use std::hint::black_box;
use std::time::Instant;

use simurgh_load::record::{Count, Metric, Names, Recorder, Seen, WorkerId};

const CALLS: u64 = 4_000_000;

fn main() {
    let mut recorder = Recorder::new(WorkerId::default(), &Names::default(), false);
    measure("time", &mut recorder, |recorder, n| {
        recorder.time(Metric::Join, black_box(n.wrapping_mul(2_654_435_761) % 20_000));
    });
    measure("count", &mut recorder, |recorder, n| {
        recorder.count(Count::BytesIn, black_box(n));
    });
    let mut seen = Seen::default();
    measure("delivery, one broadcast to 1,000", &mut recorder, |recorder, n| {
        let now = n * 1000 + black_box(n) % 5_000_000;
        recorder.delivery(1, (n / 1000) as u32, n * 1000, now, Some(&mut seen));
    });
    measure("delivery, 100 broadcasts at a time", &mut recorder, |recorder, n| {
        let broadcast = (n / 100_000 * 100 + n % 100) as u32;
        let now = n * 1000 + black_box(n) % 5_000_000;
        recorder.delivery(1 + broadcast % 50, broadcast, n * 1000, now, Some(&mut seen));
    });
}

/// Prints the best of five rounds; the delta is taken once a round, as an engine does.
fn measure(name: &str, recorder: &mut Recorder, mut call: impl FnMut(&mut Recorder, u64)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for n in 0..CALLS {
            call(recorder, n);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / CALLS as f64);
        black_box(recorder.take(0));
    }
    println!("{name:<40} {best:6.1} ns");
}
