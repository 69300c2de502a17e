//! Describes what a scenario would do, without running it.

mod plan;
mod steps;

use std::fmt::Write;

use simurgh_load_client::tun::Network;
use simurgh_text::format::{bytes, number, time};

use self::plan::Plan;
use self::steps::{count, dialect, of};
use crate::toml::{matcher, print_template, text};
use crate::{
    AnswerRule, Arrivals, Cut, Heartbeat, Scenario, Session, Spread, Target, Transport, placement,
};

/// The resources of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Workers of the run.
    pub workers: usize,
    /// Descriptors that one worker's table may hold.
    pub descriptors: u64,
    /// Free memory in bytes, if known.
    pub memory_bytes: Option<u64>,
}

impl Machine {
    /// This host, with these workers (or the engine's choice), and these descriptors for each.
    pub fn here(scenario: &Scenario, workers: Option<usize>, descriptors: u64) -> Self {
        Self {
            workers: workers.unwrap_or_else(|| placement::workers(scenario, descriptors)),
            descriptors,
            memory_bytes: memory_free(),
        }
    }
}

fn memory_free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Ports of one address for connections to one server.
const PORTS: u64 = 64_511;

/// Descriptors of a worker besides its connections: poll set, wakers, standard streams.
const DESCRIPTORS_OWN: u64 = 64;

/// Memory of the process, of a user, of one that polls, and of the kernel for one socket.
const BASE_BYTES: f64 = 20e6;
const USER_BYTES: f64 = 128.0;
const POLLER_BYTES: f64 = 1_500.0;
const KERNEL_BYTES: f64 = 3_500.0;
/// Of a connection over a TUN device, in the process.
const TUN_BYTES: f64 = 56.0;

/// Explains what the run would do: users and times, sockets, source addresses and workers, memory,
/// and the steps of each session with their lines. All numbers assume that the server answers
/// immediately.
pub fn explain(scenario: &Scenario, machine: &Machine) -> String {
    let plan = plan::plan(scenario);
    let mut out = String::new();
    let _ = writeln!(out, "{}, seed {}", scenario.name, scenario.seed);
    servers(&mut out, scenario);
    users(&mut out, scenario, &plan);
    needs(&mut out, scenario, &plan, machine);
    for session in &scenario.sessions {
        let stay = plan::stay(session);
        let stay = match (stay.is_finite(), plan::may_wait_forever(session)) {
            (true, false) => format!("stays {}", time(stay)),
            (true, true) => format!("stays {}, or until the run ends", time(stay)),
            (false, _) => "may stay until the run ends".to_owned(),
        };
        let (Session { name, weight, .. }, dialect) = (session, dialect(session.dialect));
        let _ = writeln!(out, "\nsession {name}: weight {weight}, {dialect}, a user {stay}");
        if session.transport == Transport::LongPoll {
            out.push_str("  by long polling, over two connections\n");
        }
        by_themselves(&mut out, scenario, session);
        if let Some(again) = session.reconnect {
            let (min, max) = (time(again.min.as_secs_f64()), time(again.max.as_secs_f64()));
            let rejoin = if again.rejoin { ", and joins again" } else { "" };
            let _ = writeln!(out, "  reconnects a lost connection after {min} to {max}{rejoin}");
        }
        drops(&mut out, scenario, session);
        steps::write(&mut out, scenario, &session.steps, 1);
    }
    if !scenario.pass.is_empty() {
        let conditions = scenario.pass.iter().map(|one| format!("{} {}", one.figure, one.text));
        let _ = writeln!(out, "\npasses if {}", conditions.collect::<Vec<_>>().join(", "));
    }
    out
}

/// Messages that users send without a step: heartbeats and answers.
fn by_themselves(out: &mut String, scenario: &Scenario, session: &Session) {
    let shown = |template| text(&print_template(template, scenario));
    if let Some(Heartbeat { every, send }) = &session.heartbeat {
        let every = time(every.as_secs_f64());
        let _ = match send {
            Some(send) => writeln!(out, "  sends {} every {every}", shown(&send.data)),
            None => writeln!(out, "  a heartbeat every {every}"),
        };
    }
    for AnswerRule { when, send } in &session.rules {
        let (when, send) = (matcher(when, scenario), shown(&send.data));
        let _ = writeln!(out, "  answers {when} with {send}");
    }
}

/// Cuts of connections, and joins that resume.
fn drops(out: &mut String, scenario: &Scenario, session: &Session) {
    if let Some(drop) = session.drop {
        let how = match drop.how {
            Cut::Reset => "by a reset",
            Cut::Silence => "in silence",
            Cut::Both => "by a reset or in silence, half of the users each",
        };
        let phase = drop.phase.and_then(|at| scenario.load.phases.get(at));
        let phase = phase.map(|phase| format!("in phase {}, ", phase.name)).unwrap_or_default();
        let seconds = |of: std::time::Duration| time(of.as_secs_f64());
        let _ = writeln!(
            out,
            "  {phase}loses its connection every {} for {}, {how}; reconnects {} to {} later",
            seconds(drop.every),
            seconds(drop.away),
            seconds(drop.reconnect.0),
            seconds(drop.reconnect.1),
        );
    }
    if session.resume {
        out.push_str("  joins request the messages since the last received one\n");
    }
}

fn servers(out: &mut String, scenario: &Scenario) {
    let sum: f64 = scenario.targets.iter().map(|target| target.weight).sum();
    for Target { host, address, tls, weight, .. } in &scenario.targets {
        let tls = if *tls { ", TLS" } else { "" };
        let share = match (scenario.targets.len(), *weight > 0.0) {
            (1, _) => String::new(),
            (_, true) => format!(", {:.0} % of the users", 100.0 * weight / sum),
            (_, false) => ", only after a switch".to_owned(),
        };
        let name =
            if host.parse() == Ok(address.ip()) { String::new() } else { format!("{host} at ") };
        let _ = writeln!(out, "server  {name}{address}{tls}{share}");
    }
    if scenario.targets.iter().filter(|target| target.weight > 0.0).count() > 1 {
        let _ = writeln!(out, "spread  {}", spread(scenario.spread));
    }
    for agent in &scenario.agents {
        let _ = writeln!(out, "agent   {}, weight {}", agent.address, agent.weight);
    }
}

fn spread(spread: Spread) -> &'static str {
    match spread {
        Spread::RoundRobin => "connections take servers in turn (round-robin)",
        Spread::Sticky => "users take servers in turn, and each keeps its own (sticky)",
        Spread::Elsewhere => {
            "users take servers in turn, and the next one when a connection broke (elsewhere)"
        }
        Spread::Random => "each user draws a server and keeps it (random)",
    }
}

fn users(out: &mut String, scenario: &Scenario, plan: &Plan<'_>) {
    out.push_str("\nusers\n");
    for planned in &plan.phases {
        let phase = planned.phase;
        let how = match phase.arrivals {
            Arrivals::Open { from: 0.0, to: 0.0, .. } => "no arrivals".to_owned(),
            Arrivals::Open { from, to, poisson } => {
                let poisson = if poisson { ", at random (Poisson)" } else { "" };
                format!("{} users per second{poisson}", range(from, to, number))
            }
            Arrivals::Closed { from, to } => {
                format!("{} concurrent", range(from as f64, to as f64, count))
            }
        };
        let most = phase.users_max.map(|most| format!(", {} at most", count(most as f64)));
        let most = most.unwrap_or_default();
        let wait = if phase.wait_for_users { "; then waits until all have ended" } else { "" };
        let hold = if phase.hold { "when resumed: " } else { "" };
        let _ = writeln!(
            out,
            "  phase {:<8} {:>8} to {:<10} {hold}{how}: about {}{most}{wait}",
            phase.name,
            time(planned.from),
            time(planned.to),
            of(planned.users, "user"),
        );
    }
    if plan.left_out > 0 {
        let phases = of(plan.left_out as f64, "phase");
        let _ = writeln!(out, "  and {phases} that this estimate omits");
    }
    let appointments = scenario.load.appointments.len() as f64;
    if appointments > 0.0 {
        let _ = writeln!(out, "  {} by appointment", of(appointments, "user"));
    }
    if let Some(most) = scenario.load.users_max {
        let _ = writeln!(out, "  {} in all at most", count(most as f64));
    }
    let (users, peak) = (of(plan.users, "user"), count(plan.peak));
    let _ = writeln!(out, "  about {users} in all, at most {peak} concurrently");
    let _ = match (plan.end.is_finite(), scenario.load.duration) {
        (true, Some(end)) if end.as_secs_f64() <= plan.end => {
            writeln!(out, "  the run ends after {}", time(plan.end))
        }
        (true, _) => {
            let waits = scenario.sessions.iter().any(plan::may_wait_forever);
            let waits = if waits { ", unless it waits without end" } else { "" };
            writeln!(out, "  the last user has ended after about {}{waits}", time(plan.end))
        }
        (false, _) => {
            writeln!(out, "  the run has no end; set `duration` or --duration")
        }
    };
}

fn range(from: f64, to: f64, text: fn(f64) -> String) -> String {
    if from == to { text(from) } else { format!("{} to {}", text(from), text(to)) }
}

fn needs(out: &mut String, scenario: &Scenario, plan: &Plan<'_>, machine: &Machine) {
    let sockets = (plan.peak * plan::sockets_per_user(scenario)).ceil();
    out.push_str("\nneeds at the peak\n");
    let is_tun = scenario.sources.tun.is_some();
    if is_tun {
        tun(out, scenario, sockets, machine.workers);
    } else {
        let _ = writeln!(out, "  sockets    {}", count(sockets));
        addresses(out, scenario, sockets);
    }
    let each = machine.descriptors.saturating_sub(DESCRIPTORS_OWN).max(1);
    let workers = machine.workers as f64;
    let descriptors = of(machine.descriptors as f64, "descriptor");
    let _ = writeln!(out, "  workers    {}, {descriptors} each", count(workers));
    if !is_tun && sockets > workers * each as f64 {
        let wanted = count((sockets / each as f64).ceil());
        let _ = writeln!(out, "  ! too few for that many sockets: --workers {wanted}");
    }
    let polls = scenario.sessions.iter().any(|it| it.transport == Transport::LongPoll);
    let user = if polls { POLLER_BYTES } else { USER_BYTES };
    let (user, kernel) = if is_tun { (user + TUN_BYTES, 0.0) } else { (user, KERNEL_BYTES) };
    let (own, kernel) = (BASE_BYTES + user * plan.peak, kernel * sockets);
    let (own_text, kernel_text) = (bytes(own), bytes(kernel));
    let _ =
        writeln!(out, "  memory     about {own_text}, and {kernel_text} in the kernel for sockets");
    if let Some(free) = machine.memory_bytes.map(|bytes| bytes as f64)
        && free < own + kernel
    {
        let free = bytes(free);
        let help = "use several hosts (agents), or fewer users";
        let _ = writeln!(out, "  ! only {free} of memory are free: {help}");
    }
    if !scenario.agents.is_empty() {
        out.push_str("  of which each agent takes its share\n");
    }
}

/// The connections over TUN devices, which need no sockets.
fn tun(out: &mut String, scenario: &Scenario, connections: f64, workers: usize) {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    let network = Network::of(&scenario.sources, 0, workers).unwrap_or_default();
    let each = network.map_or(0, |network| network.clients());
    let devices = of(f64::from(workers), "TUN device");
    let _ = writeln!(out, "  sockets    none: {} over {devices}", of(connections, "connection"));
    let have = each as f64 * f64::from(workers);
    if have < connections {
        let _ = writeln!(out, "  ! addresses and ports are enough for {} only", count(have));
    }
}

fn addresses(out: &mut String, scenario: &Scenario, sockets: f64) {
    let ports = match scenario.sources.ports {
        Some((first, last)) => u64::from(last.saturating_sub(first)) + 1,
        None => PORTS,
    };
    // Ports are reused for each server: the busiest one decides.
    let sum: f64 = scenario.targets.iter().map(|target| target.weight).sum();
    let share = |target: &Target| {
        let same = scenario.targets.iter().filter(|one| one.address == target.address);
        same.map(|one| one.weight).sum::<f64>() / sum.max(f64::MIN_POSITIVE)
    };
    let busiest = scenario.targets.iter().map(share).fold(0.0, f64::max);
    let wanted = (sockets * busiest / ports as f64).ceil().max(1.0);
    let given = &scenario.sources.addresses;
    let is_loopback = scenario.targets.iter().all(|target| target.address.ip().is_loopback());
    let whose = match (given.is_empty(), is_loopback) {
        (true, true) => "taken from 127.0.0.0/8",
        (true, false) if wanted > 1.0 => "! add as many addresses to this host, with --source",
        (true, false) => "the one of the route",
        (false, _) => "of those given",
    };
    let ports = of(ports as f64, "port");
    let _ = writeln!(out, "  addresses  {}: {ports} each, {whose}", count(wanted));
    let have: f64 = given.iter().map(|range| range.count() as f64).sum();
    if !given.is_empty() && have < wanted {
        let _ = writeln!(out, "  ! {} given, ports will run out", of(have, "source address"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Overrides, apply};

    const MACHINE: Machine = Machine { workers: 6, descriptors: 20_064, memory_bytes: None };

    fn scenario(phases: &str, steps: &str) -> Scenario {
        let text = format!(
            "[target]\nurl = \"ws://127.0.0.1:4000\"\n{phases}\n[[session]]\n\
             protocol = \"phoenix\"\nsteps = [{{ connect = \"/\" }},\n{steps}]\n"
        );
        crate::toml::read(&text, Path::new(""), &Overrides::default()).unwrap().scenario
    }

    /// Users and their maximum at a time.
    fn reckoned(phases: &str, steps: &str) -> (f64, f64, f64) {
        let scenario = scenario(phases, steps);
        let plan = plan::plan(&scenario);
        (plan.users.round(), plan.peak.round(), plan.end)
    }

    #[test]
    fn number_of_users_is_estimated_from_rates_and_session_times() {
        const TEN: &str = "[[phase]]\nduration = \"10s\"\n";
        let with = |rest: &str| format!("{TEN}{rest}");
        let inf = f64::INFINITY;
        for (phases, steps, expected) in [
            (with("rate = 100"), r#"{ think = "2s" }"#, (1000.0, 200.0, 12.0)),
            (with("rate = 100"), r#"{ receive = "end" }"#, (1000.0, 1000.0, inf)),
            (with("rate = [0, 100]"), r#"{ receive = "1h" }"#, (500.0, 500.0, 3610.0)),
            (with("rate = [0, 100]"), r#"{ think = "1s" }"#, (500.0, 95.0, 11.0)),
            (with("rate = 100\nmax_users = 50"), r#"{ think = "9s" }"#, (50.0, 50.0, 19.0)),
            (with("users = 20"), r#"{ think = "2s" }"#, (100.0, 20.0, 12.0)),
            (with("users = 20"), r#"{ receive = "end" }"#, (20.0, 20.0, inf)),
            (
                with("rate = 1"),
                r#"{ loop = 5, steps = [{ think = ["1s", "3s"] }] }"#,
                (10., 10., 20.),
            ),
            (with("rate = 1"), r#"{ loop = 5, every = "1s", steps = [] }"#, (10.0, 5.0, 15.0)),
            (with("rate = 1"), r#"{ abort = "user" }, { receive = "end" }"#, (10.0, 0.0, 10.0)),
            (
                with(&format!("rate = 10\nwait_for_users = true\n{TEN}rate = 10")),
                r#"{ think = "5s" }"#,
                (200.0, 50.0, 30.0),
            ),
        ] {
            assert_eq!(reckoned(&phases, steps), expected, "{phases} {steps}");
        }
    }

    #[test]
    fn unbounded_session_times_are_explained_as_without_end() {
        let loop_of = |steps: &str| format!(r#"{{ loop = "forever", steps = [{steps}] }}"#);
        for (steps, words) in [
            (r#"{ receive = "end" }"#.to_owned(), "a user may stay until the run ends"),
            (loop_of(r#"{ think = "1s" }"#), "a user may stay until the run ends"),
            // Each round takes as long as the server does.
            (loop_of(r#"{ send = "a", reply = true }"#), "a user may stay until the run ends"),
            (
                loop_of(r#"{ get = "/" }, { if = "a == 1", steps = [{ abort = "user" }] }"#),
                "a user may stay until the run ends",
            ),
            (r#"{ wait_server = true }"#.to_owned(), "a user stays 0 s, or until the run ends"),
            (
                r#"{ think = "1s" }, { gather = 2 }"#.to_owned(),
                "a user stays 1 s, or until the run ends",
            ),
            (r#"{ gather = 2, timeout = "1s" }"#.to_owned(), "a user stays 0 s\n"),
            (loop_of(r#"{ think = "1s" }, { abort = "user" }"#), "a user stays 1 s\n"),
            (r#"{ loop = { var = "a" }, steps = [{ think = "1s" }] }"#.to_owned(), "stays 1 s\n"),
            (r#"{ loop = 0, steps = [{ receive = "end" }] }"#.to_owned(), "a user stays 0 s\n"),
        ] {
            let steps = format!("{{ set = \"a\", value = \"1\" }}, {steps}");
            let text =
                explain(&scenario("[[phase]]\nduration = \"9s\"\nrate = 1", &steps), &MACHINE);
            assert!(text.contains(words), "{words:?} is not in\n{text}");
            let run = "the run has no end; set `duration` or --duration";
            assert_eq!(text.contains(run), words.contains("may stay"), "{text}");
            let waits = text.contains(", unless it waits without end\n");
            assert_eq!(waits, words.contains("or until the run ends"), "{text}");
        }
    }

    #[test]
    fn command_line_flags_change_the_explanation() {
        let mut scenario = scenario(
            "[[phase]]\nduration = \"100s\"\nrate = 1000\narrivals = \"poisson\"",
            "{ join = \"rooms:lobby\" },\n{ loop = 1000, steps = [{ think = \"30s\" }] }",
        );
        let text = explain(&scenario, &MACHINE);
        for expected in [
            "1,000 users per second, at random (Poisson): about 100,000 users",
            "about 100,000 users in all, at most 100,000 concurrently",
            "has ended after about 8 h 21 min",
            "sockets    100,000",
            "addresses  2: 64,511 ports each, taken from 127.0.0.0/8",
            "workers    6, 20,064 descriptors each",
            "memory     about 32.8 MB, and 350 MB in the kernel",
            "line 10  { join = \"rooms:lobby\" }",
            "line 11  { loop = 1000 }",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
        let overrides = Overrides {
            users_max: Some(500),
            duration: Some(std::time::Duration::from_secs(60)),
            rate: Some(5.0),
            seed: Some(9),
            sources: vec![crate::toml::address_range("127.0.0.5-9").unwrap()],
            insecure: true,
            ..Overrides::default()
        };
        apply(&mut scenario, &overrides);
        assert!(scenario.tls.insecure);
        let text = explain(&scenario, &Machine { workers: 1, memory_bytes: Some(1), ..MACHINE });
        for expected in [
            "seed 9",
            "5 users per second, at random (Poisson): about 300 users",
            "500 in all at most",
            "the run ends after 60 s",
            "addresses  1: 64,511 ports each, of those given",
            "! only 1 B of memory are free",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }
}
