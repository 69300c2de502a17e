//! Row `killed`: the broker is killed under 10,000 broadcasts a second, and back after 0.5 s.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::broker::Broker;
use super::client::{Client, Published, Received};
use super::nodes::{self, BODY, READY, is_up};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

const ROOM: &str = "rooms:talk";
/// Each millisecond.
const MESSAGES: u32 = 10;
const AWAY: Duration = Duration::from_millis(500);
/// The time before the kill and after it.
const CALM: Duration = Duration::from_secs(2);
/// Messages published this long before the kill were received by then, or are lost without the
/// nodes noticing. After the link is back waiting messages have as much time.
const UNDER_WAY: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const LOST: &str = "simurgh_cluster_lost_total";

/// The times of events after the kill.
struct Back {
    /// The receiving node reports that it may have lost messages.
    known: Instant,
    up: Instant,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut broker = Broker::start(bench)?;
    let [one, two] = nodes::pair(bench, &broker, "")?;
    let there = Client::join(two.address, ROOM)?.listen()?;
    let here = Client::join(one.address, ROOM)?;
    thread::sleep(CALM);
    let (publisher, here) = here.publish_steadily(MESSAGES, BODY)?;
    thread::sleep(CALM);
    let lost_before = two.metric(LOST)?;
    let killed = Instant::now();
    broker.kill();
    thread::sleep(AWAY);
    broker.start_again()?;
    let back = back(&one, &two, lost_before)?;
    thread::sleep(CALM);
    let published = publisher.end()?;
    thread::sleep(CALM);
    let (here, there) = (here.end()?, there.end()?);
    ensure!(here.len() == usize::try_from(published.count())?, "{} received here", here.len());
    let dropped = one.sum("simurgh_cluster_dropped_total")?;
    let lost = lost(&there, &published, killed - UNDER_WAY..back.up + UNDER_WAY);
    sample.put_count("killed_lost", lost.count);
    sample.put_count("killed_unknown", lost.unknown);
    sample.put_count("killed_twice", lost.twice);
    sample.put_count("killed_out_of_order", lost.out_of_order);
    sample.put("killed_dropped", dropped);
    sample.put("killed_unheard", stats::per(lost.count, 1) - dropped);
    let (known, up) = (back.known - killed, back.up - killed);
    sample.put("killed_known_s", known.as_secs_f64());
    sample.put("killed_up_s", up.as_secs_f64());
    Ok(())
}

/// Waits until the receiving node reports it, and both are up again.
fn back(one: &Server, two: &Server, lost_before: f64) -> Result<Back> {
    let (deadline, mut known) = (Instant::now() + READY, None);
    loop {
        if known.is_none() && two.metric(LOST)? > lost_before {
            known = Some(Instant::now());
        }
        if let (Some(known), true) = (known, is_up(one)? && is_up(two)?) {
            return Ok(Back { known, up: Instant::now() });
        }
        let state = if known.is_some() { "not up" } else { "nothing is known of the loss" };
        ensure!(Instant::now() < deadline, "{state} after {READY:?}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// The received messages, compared with the published ones.
struct Lost {
    count: usize,
    /// Of these the ones that were due outside of the time in which nodes report a possible loss.
    unknown: usize,
    twice: usize,
    out_of_order: usize,
}

fn lost(received: &[Received], published: &Published, known: std::ops::Range<Instant>) -> Lost {
    let mut found = HashSet::with_capacity(received.len());
    let twice = received.iter().filter(|it| !found.insert(it.number)).count();
    let pairs = received.iter().zip(received.iter().skip(1));
    let out_of_order = pairs.filter(|(one, next)| next.number < one.number).count();
    let missing: Vec<u32> =
        (0..published.count()).filter(|number| !found.contains(number)).collect();
    let is_unknown =
        |number: &&u32| published.due(**number).is_none_or(|due| !known.contains(&due));
    let unknown = missing.iter().filter(is_unknown).count();
    Lost { count: missing.len(), unknown, twice, out_of_order }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_and_reordered_messages_are_counted_separately() {
        let began = Instant::now();
        let published = Published::every_ms(began, 5, 2);
        let received = [0, 1, 4, 4, 7, 6].map(|number| Received { number, at: began });
        // Numbers 2 to 5 were due in these two milliseconds.
        let ms = Duration::from_millis(1);
        let lost = lost(&received, &published, began + ms..began + 3 * ms);
        assert_eq!((lost.count, lost.unknown), (5, 2), "2, 3, 5 and 8, 9");
        assert_eq!((lost.twice, lost.out_of_order), (1, 1));
    }
}
