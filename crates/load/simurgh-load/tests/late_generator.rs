//! A generator that is stopped for a while; a process of its own, because all of it stands still.
//!
//! The run is marked, whatever it does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod outside;

use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::Duration;

use outside::{Server, lock, run};
use simurgh_load::benchmark::{self, Job, Plan, Runner};
use simurgh_load::record::Warning;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Stops this process soon, for 0.6 s.
fn stop_soon() -> Child {
    let this = std::process::id();
    let stop = format!("sleep 0.7; kill -STOP {this}; sleep 0.6; kill -CONT {this}");
    Command::new("sh").args(["-c", &stop]).spawn().unwrap()
}

fn server() -> Server {
    Server::new(|mut peer| {
        while peer.head().is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    })
}

#[test]
fn stopped_generator_of_a_closed_model_is_reported() {
    let _one = lock(&ONE_AT_A_TIME);
    let (server, mut shell) = (server(), stop_soon());
    let ran = run(&format!(
        "duration = \"2s\"\n[target]\nurl = \"http://{}\"\n\
         [[phase]]\nduration = \"2s\"\nusers = 2\n[[session]]\n\
         name = \"one\"\nprotocol = \"raw\"\nsteps = [{{ loop = \"forever\", \
         steps = [{{ get = \"/\" }}] }}]",
        server.addr
    ));
    shell.wait().unwrap();
    let warning = ran.record.warnings().iter().find(|warning| warning.code() == "generator_late");
    assert!(warning.is_some_and(Warning::is_untrustworthy), "{}", ran.text());
    let Some(Warning::GeneratorLate { max_us, .. }) = warning else { panic!("{warning:?}") };
    assert!((500_000..5_000_000).contains(max_us), "{max_us} µs");
    assert!(!ran.record.live().trustworthy);
}

#[test]
fn stopped_generator_of_a_benchmark_is_reported() {
    let _one = lock(&ONE_AT_A_TIME);
    let (server, mut shell) = (server(), stop_soon());
    let plan = Plan {
        url: format!("http://{}/", server.addr),
        connections: 2,
        threads: Some(1),
        duration: Duration::from_secs(2),
        timeout: Duration::from_secs(5),
        ..Plan::default()
    };
    let run = Runner::default().run(&Job::new(plan).unwrap(), 2).unwrap();
    shell.wait().unwrap();
    let late_us = run.generator_late_us.max;
    assert!((500_000..5_000_000).contains(&late_us), "{run:#?}");
    let text = benchmark::text(&run);
    assert!(text.contains("The load generator stood still for "), "{text}");
}
