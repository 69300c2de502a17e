//! A generator that is stopped for a while: the run is marked, whatever its scenario does. The whole
//! process stands still, so this is the only test here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

mod outside;

use std::process::Command;

use outside::{Server, run};
use simurgh_load::record::{Metric, Warning};

#[test]
fn stopped_generator_of_a_closed_model_is_reported() {
    let server = Server::new(|mut peer| {
        while peer.head().is_some() {
            peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    let this = std::process::id();
    let stop = format!("sleep 0.7; kill -STOP {this}; sleep 0.6; kill -CONT {this}");
    let mut shell = Command::new("sh").args(["-c", &stop]).spawn().unwrap();
    let ran = run(&format!(
        "duration = \"2s\"\n[target]\nurl = \"http://{}\"\n[[phase]]\nduration = \"2s\"\nusers = 2\n[[session]]\n\
         name = \"one\"\nprotocol = \"raw\"\nsteps = [{{ loop = \"forever\", \
         steps = [{{ get = \"/\" }}] }}]",
        server.addr
    ));
    shell.wait().unwrap();
    let warning = ran.record.warnings().iter().find(|warning| warning.code() == "generator_late");
    assert!(warning.is_some_and(Warning::is_untrustworthy), "{}", ran.text());
    let max = ran.record.times(Metric::TickLag).unwrap().max();
    assert!((500_000..5_000_000).contains(&max), "{max} µs");
    assert!(!ran.record.live().trustworthy);
}
