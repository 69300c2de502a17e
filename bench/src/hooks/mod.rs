//! What questions to a back end cost: CPU, memory, other clients' waits, and the return of an
//! application that was away. README.md says how each figure comes about.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::rounds::table::read;
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::{Server, Target};
use simurgh_bench_kit::wait;

use crate::fairness::probe::{Activity, Probe};
use back_end::{BackEnd, Pace};
use crowd::Crowd;

mod back_end;
mod crowd;

pub(crate) const SUITE: Suite = Suite {
    name: "hooks",
    about: "The cost of back ends that decide about connects and joins",
    jobs: || vec![Job::new("cost", cost), Job::new("waiting", waiting), Job::new("away", away)],
    runs: 5,
    recipes: |_| read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// The header line of the only cookie that reaches the application.
const COOKIE: &str = "cookie: sessionid=";
const COOKIE_LEN: usize = 200;
/// Bytes of the user, with which the cookie begins.
const USER_LEN: usize = 12;
/// Time for a server to finish its work.
const QUIET: Duration = Duration::from_millis(500);
/// Time for an allocator to give back unused memory, and for gauges to be current.
const CALM: Duration = Duration::from_secs(4);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The rate of the application that was away.
const RATE: u32 = 200;
/// Keys of a hook that never times out.
const PATIENT: &str = "timeout = { answer = \"90s\", total = \"180s\" }";

/// Signs every question.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn cookie(index: usize) -> String {
    let pad = "x".repeat(COOKIE_LEN - USER_LEN);
    format!("{COOKIE}{index:0width$}{pad}\r\n", width = USER_LEN)
}

/// Any free port of this machine.
fn any_port() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)
}

/// A server that asks this application about connects and joins; without an address it asks nobody.
fn serve(bench: &Bench<'_>, hook: Option<SocketAddrV4>, keys: &str) -> Result<Server> {
    let secret = bench.scratch.join("hook.secret");
    fs::write(&secret, SECRET)?;
    let (hook, join) = match hook {
        Some(address) => (
            format!(
                "[[hook]]\nname = \"app\"\nurl = \"http://{address}\"\nquestions = [\"connect\"]\n\
                 forward = {{ cookies = [\"sessionid\"] }}\nsecret_file = \"{}\"\n{keys}\n",
                secret.display()
            ),
            "join_hook = \"app\"\n",
        ),
        None => (String::new(), ""),
    };
    let file = bench.scratch.join("hooks.toml");
    let settings = format!("decision_timeout = \"200s\"\n{hook}[[channel]]\ntopic = \"rooms:*\"\n");
    fs::write(&file, settings + join)?;
    let target = Target::simurgh(&bench.program, 1)?.with_settings(&file).for_origins("conn");
    target.start(&bench.scratch.join("server-log"))
}

/// All connect and join twice: first every question is asked, then every answer is cached.
fn cost(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.many_clients();
    let back_end = BackEnd::start(any_port(), Pace::AtOnce)?;
    let mut measured = [[0.0; 2]; 2];
    for with in [sample.round.is_multiple_of(2), !sample.round.is_multiple_of(2)] {
        let server = serve(bench, with.then_some(back_end.address), "")?;
        let first = came(&server, count)?;
        if with {
            sample.put("missing_questions", 2.0 * stats::per(count, 1) - asked(&back_end));
        }
        let before = asked(&back_end);
        let second = came(&server, count)?;
        if with {
            sample.put("repeated_questions", asked(&back_end) - before);
        }
        measured[usize::from(with)] = [first, second];
    }
    let [[without, without_again], [with, with_cached]] = measured;
    sample.put("without_us", without);
    sample.put("with_us", with);
    sample.put("with_cached_us", with_cached);
    sample.put("question_us", (with - without) / 2.0);
    sample.put("cached_us", (with_cached - without_again) / 2.0);
    Ok(())
}

fn asked(back_end: &BackEnd) -> f64 {
    stats::per(back_end.questions(), 1)
}

/// CPU of the server per client that connects and joins, µs.
fn came(server: &Server, count: usize) -> Result<f64> {
    let mut clients = Clients::with_headers(server.address, cookie)?;
    clients.rest(QUIET)?;
    let before = server.cpu()?;
    clients.open_and_join(count, |index| format!("rooms:{}", index / 100))?;
    clients.rest(QUIET)?;
    let spent = server.spent(&before)?;
    drop(clients);
    sleep(CALM);
    Ok(stats::per(spent, 1_000) / stats::per(count, 1))
}

/// Memory of questions that are never answered, and the heartbeat of another client meanwhile.
fn waiting(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(10_000, 1_000);
    let idle = idle_bytes(bench, count)?;
    // The other client's own connect is the only question with an answer.
    let back_end = BackEnd::start(any_port(), Pace::Only(1))?;
    let server = serve(bench, Some(back_end.address), PATIENT)?;
    let probe = Probe::start(server.address, Activity::Heartbeat)?;
    let is_asked = || Ok(asked(&back_end) > 0.0);
    wait::until("the question about the probe", WAIT_MAX, QUIET, is_asked)?;
    sleep(CALM);
    let before = server.resident()?;
    let mut crowd = Crowd::new(server.address, count, cookie)?;
    let deadline = Instant::now() + WAIT_MAX;
    while outstanding(&server)? < stats::per(count, 1) {
        ensure!(Instant::now() < deadline, "{} questions are outstanding", outstanding(&server)?);
        crowd.run(Instant::now() + QUIET)?;
    }
    crowd.run(Instant::now() + CALM)?;
    let bytes = stats::difference(server.resident()?, before) / stats::per(count, 1);
    sample.put("waiting_bytes", bytes - idle);
    sample.put("idle_bytes", idle);
    let begun = Instant::now();
    let seconds = bench.options.seconds.unwrap_or(bench.options.size(10, 2));
    crowd.run(begun + Duration::from_secs(seconds))?;
    probe.end()?.put(sample, "heartbeat", begun, Instant::now());
    ensure!(crowd.refused() == 0, "{} connects were refused", crowd.refused());
    Ok(())
}

/// Memory of a client that waits for nothing.
fn idle_bytes(bench: &Bench<'_>, count: usize) -> Result<f64> {
    let server = serve(bench, None, "")?;
    sleep(CALM);
    let before = server.resident()?;
    let mut clients = Clients::with_headers(server.address, cookie)?;
    clients.open(count)?;
    clients.rest(CALM)?;
    Ok(stats::difference(server.resident()?, before) / stats::per(count, 1))
}

/// Questions that wait or are in flight.
fn outstanding(server: &Server) -> Result<f64> {
    Ok(server.sum("simurgh_hook_waiting")? + server.sum("simurgh_hook_in_flight")?)
}

/// The application is away under clients that keep connecting, and returns with a low rate.
fn away(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(9_000, 1_000);
    // Its port, on which nobody listens then.
    let address = BackEnd::start(any_port(), Pace::AtOnce)?.address;
    let server = serve(bench, Some(address), "")?;
    let mut crowd = Crowd::new(server.address, count, cookie)?;
    crowd.run(Instant::now() + Duration::from_secs(bench.options.size(20, 5)))?;
    ensure!(crowd.connected() == 0, "{} connected without an answer", crowd.connected());
    let back_end = BackEnd::start(address, Pace::Every(Duration::from_secs(1) / RATE))?;
    let back = Instant::now();
    let least_s = stats::per(count, RATE);
    crowd.run(back + Duration::from_secs_f64(least_s) + WAIT_MAX)?;
    let took_s = back.elapsed().as_secs_f64();
    let connected = crowd.connected();
    ensure!(connected == count, "{connected} of {count} connected within {took_s:.0} s");
    sample.put("away_last_s", took_s);
    sample.put("away_beyond_s", took_s - least_s);
    sample.put_count("away_in_flight", back_end.counts.in_flight_max.load(Relaxed));
    sample.put("away_questions", asked(&back_end));
    sample.put_count("away_refused", crowd.refused());
    Ok(())
}
