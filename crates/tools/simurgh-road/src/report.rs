//! The results as a Markdown table beside the 2015 Phoenix benchmark, and as a page.

use std::fmt::Write as _;

use simurgh_page::svg::{Chart, escaped};
use simurgh_text::format::grouped;

use super::results::{
    Comparison, HeartbeatResult, Host, InFlight, Medians, Milestone, ReconnectResult, Results,
};

/// The figures of the 2015 Phoenix benchmark: connections, memory of a connection, and the machine.
const PHOENIX_2015: [(u64, &str, &str); 2] = [
    (450_000, "35 kB", "4 cores, 15 GB, memory full"),
    (2_000_000, "41.9 kB", "40 cores, 128 GB, 45 client machines; broadcast to all in 1 to 2 s"),
];

/// A column of the table: its name and its text.
type Column = (&'static str, fn(&Milestone) -> String);

const COLUMNS: [Column; 14] = [
    ("connections", |it| grouped(it.members)),
    ("joined per s", |it| grouped(it.joins_per_s as u64)),
    ("join p50", |it| time(it.join.p50)),
    ("join p99", |it| time(it.join.p99)),
    ("server B each", |it| format!("{:.0}", it.server_bytes)),
    ("kernel B each socket", |it| format!("{:.0}", it.kernel_bytes)),
    ("load B each", |it| format!("{:.0}", it.client_bytes)),
    ("broadcast first", |it| time(it.broadcast.first_us)),
    ("median", |it| time(it.broadcast.delivery.p50)),
    ("last", |it| time(it.broadcast.last_us)),
    ("server CPU per delivery", |it| format!("{:.2} µs", it.broadcast.server_us)),
    ("in flight: server + TCP buffers", |it| {
        let InFlight { server, buffers } = it.broadcast.in_flight;
        format!("{:.1} + {:.1} MB", server as f64 / 1e6, buffers as f64 / 1e6)
    }),
    ("heartbeat p99 meanwhile", |it| time(it.broadcast.heartbeats.p99)),
    ("Phoenix 2015", phoenix_2015),
];

fn phoenix_2015(milestone: &Milestone) -> String {
    let found = PHOENIX_2015.iter().find(|(connections, ..)| *connections == milestone.members);
    found.map_or_else(|| "–".to_owned(), |(_, bytes, how)| format!("{bytes} each ({how})"))
}

impl Results {
    /// The table, with the machine and the end of the test.
    pub(super) fn markdown(&self) -> String {
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let mut text = format!("{}\n\n| {} |\n", self.place(), names.join(" | "));
        text += &format!("|{}\n", "---|".repeat(COLUMNS.len()));
        for milestone in &self.milestones {
            let cells: Vec<String> = COLUMNS.iter().map(|(_, cell)| cell(milestone)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        let _ = writeln!(text, "\n{}", self.ending);
        for words in self.words() {
            let _ = writeln!(text, "\n{words}");
        }
        text
    }

    /// The other results, a paragraph each.
    fn words(&self) -> impl Iterator<Item = String> {
        let several = (self.nodes > 1).then(|| nodes_words(self)).flatten();
        let comparison = self.comparison.as_ref().map(comparison_words);
        let reconnect = self.reconnect.as_ref().map(reconnect_words);
        let heartbeats = self.heartbeats.as_ref().map(heartbeat_words);
        [several, comparison, reconnect, heartbeats].into_iter().flatten()
    }

    fn place(&self) -> String {
        let Host { cores, processor, memory, kernel } = &self.machine;
        let gib = *memory as f64 / f64::from(1 << 30);
        format!(
            "simurgh {} on {cores} cores ({processor}), {gib:.0} GiB, Linux {kernel}: {} ({}) of \
             {} shards, and all clients on the same machine{}{}.",
            self.version,
            match &self.engine {
                None => "one server".to_owned(),
                Some(engine) => format!("{} nodes with {engine} between them", self.nodes),
            },
            self.server,
            self.shards,
            if self.tls { ", with TLS" } else { "" },
            if self.tun { ", without sockets" } else { "" }
        )
    }

    /// One page with the chart and the table; needs no other file.
    pub(super) fn page(&self) -> String {
        let head: String = COLUMNS.iter().map(|(name, _)| format!("<th>{name}</th>")).collect();
        let row = |milestone: &Milestone| {
            let cell = |cell: fn(&Milestone) -> String| escaped(&cell(milestone));
            let cells = COLUMNS.iter().map(|(_, text)| format!("<td>{}</td>", cell(*text)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = self.milestones.iter().map(row).collect();
        let words: String = self.words().map(|it| format!("<p>{}</p>\n", escaped(&it))).collect();
        include_str!("road.html")
            .replace("{{place}}", &escaped(&self.place()))
            .replace("{{ending}}", &escaped(&self.ending))
            .replace("{{words}}", &words)
            .replace("{{chart}}", &self.chart())
            .replace("{{head}}", &head)
            .replace("{{rows}}", &rows)
    }

    /// Simultaneous users over time.
    fn chart(&self) -> String {
        let end = self.users.last().map_or(1.0, |(at, _)| *at).max(1.0);
        let most = self.users.iter().map(|(_, users)| *users).max().unwrap_or(1).max(1) as f64;
        let ticks = |step: f64, end: f64| {
            (0..).map(move |n| f64::from(n) * step).take_while(move |tick| *tick <= end)
        };
        let mut chart = Chart::new("Simultaneous users over time", 360.0);
        for tick in ticks(round_step(most / 5.0), most) {
            chart.grid(tick / most, &grouped(tick as u64));
        }
        for tick in ticks(round_step(end / 8.0), end) {
            chart.tick(tick / end, &format!("{tick:.0} s"));
        }
        let points = self.users.iter().map(|(at, users)| (at / end, *users as f64 / most));
        chart.line("users", points, false);
        chart.finish()
    }
}

fn heartbeat_words(beats: &HeartbeatResult) -> String {
    format!(
        "Heartbeats, each client every {} s: {} per second, p50 {}, p99 {}, slowest {}, {} \
         errors; {:.2} µs of server CPU and {:.2} µs of client CPU each.",
        beats.every_s,
        grouped(beats.per_s as u64),
        time(beats.times.p50),
        time(beats.times.p99),
        time(beats.times.max),
        beats.failed,
        beats.server_us,
        beats.client_us,
    )
}

fn reconnect_words(seen: &ReconnectResult) -> String {
    format!(
        "Reconnect: {} clients disconnected at once; the server noticed the last after {:.1} s. \
         10 s later it still had {:.1} % of the memory it had grown by, {:.1} % of the kernel's \
         records and {} sockets. Slowest heartbeat of other clients: {} (probes late by up to \
         {}), {} failed. Then all reconnected at once: joined after {:.1} s, {} failed attempts, \
         slowest heartbeat {} (late by up to {}). A broadcast meanwhile reached {} of {} members.",
        grouped(seen.vanished),
        seen.noticed_s,
        seen.memory_left * 100.0,
        seen.slab_left * 100.0,
        seen.sockets_left,
        time(seen.heartbeat_max_us),
        time(seen.heartbeat_lag_max_us),
        seen.heartbeats_failed,
        seen.back_s,
        grouped(seen.tries_in_vain),
        time(seen.back_heartbeat_max_us),
        time(seen.back_heartbeat_lag_max_us),
        grouped(seen.receivers),
        grouped(seen.members_then),
    )
}

pub(super) fn comparison_words(comparison: &Comparison) -> String {
    let Comparison { nodes, one, server_us_ratio, .. } = comparison;
    format!(
        "One server with the same topic: {:.2} µs of server CPU per delivery (median of {}), last \
         after {}, {:.0} B each. Several nodes: {:.2} µs (of {}), {}, {:.0} B each: {:.3} times \
         the CPU per delivery.",
        one.server_us,
        one.broadcasts,
        time(one.last_us as u64),
        one.server_bytes,
        nodes.server_us,
        nodes.broadcasts,
        time(nodes.last_us as u64),
        nodes.server_bytes,
        server_us_ratio,
    )
}

fn nodes_words(results: &Results) -> Option<String> {
    let last = results.milestones.last()?;
    let broadcast = results.broadcasts.last().unwrap_or(&last.broadcast);
    let mut text = String::from("Nodes:");
    for (number, (node, count)) in (1..).zip(last.nodes.iter().zip(&broadcast.nodes)) {
        let _ = write!(
            text,
            " node-{number} {} connections, {:.0} B each, {} deliveries, {:.2} µs each;",
            grouped(node.sockets),
            node.bytes,
            grouped(count.delivered),
            count.server_us
        );
    }
    let medians = Medians::of(&results.broadcasts, last);
    let _ = write!(
        text,
        " all together {} deliveries of one broadcast to {} members, none twice; median of {}: \
         {:.2} µs of CPU each, last after {}. The broker has {:.1} MB and took {:.2} ms of CPU \
         for the last broadcast.",
        grouped(broadcast.delivered),
        grouped(last.members),
        medians.broadcasts,
        medians.server_us,
        time(medians.last_us as u64),
        last.engine_memory.unwrap_or(0) as f64 / 1e6,
        broadcast.engine_us.unwrap_or(0.0) / 1e3,
    );
    Some(text)
}

/// The next of 1, 2, 5, 10, 20 … that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1.0).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= least.max(1.0));
    factor.unwrap_or(10.0) * power
}

pub(super) fn time(us: u64) -> String {
    match us {
        0..10_000 => format!("{:.2} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let milestone = |members| Milestone { members, ..Milestone::default() };
        Results {
            version: "1".into(),
            machine: Host { cores: 2, processor: "<x>".into(), ..Host::default() },
            milestones: vec![milestone(450_000), milestone(2_000_000)],
            users: vec![(0.0, 0), (1.0, 450_000), (9.5, 2_000_000)],
            ending: "it & ended".into(),
            ..Results::default()
        }
    }

    #[test]
    fn table_has_one_line_per_milestone_and_the_2015_figures() {
        let text = results().markdown();
        assert!(text.contains("| 2,000,000 |") && text.contains("41.9 kB each"), "{text}");
        let widths: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(widths, [COLUMNS.len() + 1; 4]);
    }

    #[test]
    fn report_page_shows_all_figures_and_makes_no_requests() {
        let page = results().page();
        assert!(page.contains("&lt;x&gt;") && page.contains("it &amp; ended"));
        assert_eq!(page.matches("<tr>").count(), 3);
        assert!(page.contains("polyline") && !page.contains("{{") && !page.contains("<script"));
        assert!(!page.contains("http://") && !page.contains("https://"));
    }

    #[test]
    fn times_and_axis_steps_are_rounded_for_readers() {
        assert_eq!([900, 25_000, 2_500_000].map(time), ["0.90 ms", "25 ms", "2.50 s"]);
        assert_eq!([0.5, 1.5, 30.0, 400_000.0].map(round_step), [1.0, 2.0, 50.0, 500_000.0]);
    }
}
