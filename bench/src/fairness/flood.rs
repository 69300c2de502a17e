//! One member publishes more than the room can take, as fast as the server lets it.
//!
//! A hundred members read, and two probes are not involved. In the first flood the members read as
//! fast as their core can, in the second each as fast as a line of 40 Mbit/s, since a publisher on
//! the server's own machine is faster than that. The third crosses from one shard to another: both
//! share the server's core, and the probes wait for the scheduler as well, so that is shown and not
//! judged. The last are bursts, to members with lines of 8 Mbit/s.

use std::time::Duration;

use anyhow::Result;

use super::clients::Pace;
use super::field::{Field, Setup, USUAL, attack};
use super::messages::{Event, Serializer};
use super::probe::{Activity, Probe};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

pub(super) const READERS: usize = 100;
/// The longest wait without progress.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A line of 40 Mbit/s, in bytes a second.
const LINE: Pace = Pace::Steady(5_000_000);
/// A line of 8 Mbit/s, on which a burst arrives as a burst.
const SLOW_LINE: Pace = Pace::Steady(1_000_000);
const CALM: Duration = Duration::from_secs(2);

struct Flood {
    name: &'static str,
    shards: u32,
    readers: Pace,
    event: Event,
    messages: u32,
    body: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let many = bench.options.size(100_000, 10_000);
    // A flood's answers are empty: otherwise the publisher would have the most unsent bytes and be
    // cut first, which would end the flood. Bursts are answered as in the chat.
    let flood = |name, shards, readers| {
        let (event, messages, body) = (Event::Say, many, 1_000);
        Flood { name, shards, readers, event, messages, body }
    };
    let burst = |name, messages, body| {
        let (shards, readers, event) = (1, SLOW_LINE, Event::Chat);
        Flood { name, shards, readers, event, messages, body }
    };
    let floods = [
        flood("flood", 1, Pace::Reads),
        flood("lines", 1, LINE),
        flood("two-shards", 2, Pace::Reads),
        burst("burst", 6_000, 1_000),
        burst("two", 2, 9_900_000),
    ];
    floods.iter().try_for_each(|it| {
        let setup = Setup { shards: it.shards, ..USUAL };
        attack(bench, sample, it.name, setup, |field| it.run(field))
    })
}

impl Flood {
    fn run(&self, field: &mut Field<'_>) -> Result<()> {
        let body = self.body;
        field.clients.bodies = Box::new(move |_| body);
        let room = field.room(Serializer::V2, "flood", self.event);
        field.clients.join_many(&room, self.readers, READERS)?;
        let publisher = field.clients.join(&room, Pace::Reads)?;
        if self.event == Event::Chat {
            field.clients.expect_answers_of(publisher, body);
        }
        let probe = |activity| Probe::start(field.server.address, activity);
        let probes = [("heartbeat", Activity::Heartbeat), ("publish", Activity::Publish)];
        let [beats, publishes] = probes.map(|(who, activity)| (who, probe(activity)));
        let begun = field.begin(CALM)?;
        field.clients.publish(publisher, 0, self.messages);
        let all = u64::from(self.messages);
        field.until(WAIT_MAX, |clients| {
            let mut members = clients.clients().iter();
            let has_its_answers = clients
                .client(publisher)
                .is_none_or(|it| it.is_over() || it.received.answered + it.received.refused == all);
            has_its_answers && members.all(|it| it.is_over() || it.received.broadcasts == all)
        })?;
        let ended = field.clients.moved_at();
        field.clients.rest(Duration::from_millis(500))?;
        for (who, probe) in [beats, publishes] {
            let waits = probe?.end()?;
            let who = format!("{}_{who}", self.name);
            let (_, [before]) = waits.between(begun - CALM / 2, begun, [0.99]);
            field.sample.put_some(format!("{who}_calm_p99_ms"), before);
            waits.put(field.sample, &who, begun, ended);
        }
        self.put_members(field, (ended - begun).as_secs_f64());
        Ok(())
    }

    /// The members' figures; the publisher is the last member.
    fn put_members(&self, field: &mut Field<'_>, took: f64) {
        let (members, all) = (field.clients.clients(), u64::from(self.messages));
        let missing: u64 =
            members.iter().map(|it| all.saturating_sub(it.received.broadcasts)).sum();
        let received: u64 = members.iter().map(|it| it.received.broadcasts).sum();
        let cut = members.iter().filter(|it| it.is_over()).count();
        let refused = members.last().map_or(0, |publisher| publisher.received.refused);
        field.put("seconds", took);
        field.put("cut", stats::per(cut, 1));
        field.put("missing", stats::per(missing, 1));
        field.put("mb_per_s", stats::per(received, 1_000_000) * stats::per(self.body, 1) / took);
        if refused > 0 {
            field.note(&format!("{refused} messages were refused"));
        }
    }
}
