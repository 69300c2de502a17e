//! Row `delay`: how much later a member of another node receives messages published a thousand
//! times a second, compared with two connections of a bare client.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::broker::Broker;
use super::client::{Client, Received};
use super::helper::Helper;
use super::nodes::{self, BODY, CALM, QUIET};
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;

const ROOM: &str = "rooms:talk";
/// Messages of the first half second, in which everything happens for the first time.
const WARM_UP: u32 = 500;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let broker = Broker::start(bench)?;
    let nodes = nodes::pair(bench, &broker, "")?;
    let seconds = bench.options.size(10, 2);
    let [one, two] = &nodes;
    let there = Client::join(two.address, ROOM)?.listen()?;
    let here = Client::join(one.address, ROOM)?;
    thread::sleep(CALM);
    let (publisher, here) = here.publish_steadily(1, BODY)?;
    thread::sleep(Duration::from_secs(seconds));
    let published = publisher.end()?;
    thread::sleep(QUIET);
    let (here, there) = (here.end()?, there.end()?);
    let count = usize::try_from(published.count())?;
    let (on_one, on_two) = (here.len(), there.len());
    ensure!(on_one == count && on_two == count, "{on_one} and {on_two} of {count} were received");
    let added = later(&there, &here)?;
    drop(nodes);
    let bytes = nodes::envelope_bytes(ROOM);
    let mut peer = Helper::bare_client(&broker)?;
    thread::sleep(QUIET);
    let bare = peer.ask(&format!("delay simurgh.b.0.00.{ROOM} {bytes} {count} 1000"))?;
    let bare = bare.get("micros").and_then(Value::as_array).context("no delays")?;
    let warm = bare.iter().skip(usize::try_from(WARM_UP)?);
    let bare: Vec<f64> = warm.filter_map(Value::as_f64).map(|micros| micros / 1e3).collect();
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let quantiles = stats::quantile(&added, share).zip(stats::quantile(&bare, share));
        let (added, bare) = quantiles.context("nothing measured")?;
        sample.put(format!("delay_{name}_ms"), added);
        sample.put(format!("delay_bare_{name}_ms"), bare);
        sample.put(format!("delay_above_{name}_ms"), added - bare);
    }
    Ok(())
}

/// How much later each message came there than here, ms.
fn later(there: &[Received], here: &[Received]) -> Result<Vec<f64>> {
    let at: HashMap<u32, _> = here.iter().map(|it| (it.number, it.at)).collect();
    let warm = there.iter().filter(|it| it.number >= WARM_UP);
    let of = |it: &Received| {
        let here = at.get(&it.number).with_context(|| format!("{} is unknown here", it.number))?;
        Ok(match it.at.checked_duration_since(*here) {
            Some(later) => later.as_secs_f64() * 1e3,
            None => -(here.duration_since(it.at).as_secs_f64() * 1e3),
        })
    };
    warm.map(of).collect()
}
