//! Users without sockets, over TUN devices.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use crate::outside::{Server, TUN, of, scenario};
use simurgh_load::engine::{Options, Run, RunError};
use simurgh_load::fleet::Agent;
use simurgh_load::record::Count;
use simurgh_load::report::Outputs;
use simurgh_load::scenario::{Scenario, check};

/// Latencies of a stalled server, exact counts of what was delivered and missed, lost and cut
/// connections, held readers, large messages, HTTP, long polling.
const TESTS: [&str; 7] = [
    "stalled_server",
    "user_messages",
    "cut_connections",
    "lost_connections",
    "bad_servers",
    "http_answers",
    "long_polling",
];

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn accuracy_tests_pass_without_sockets() {
    let this = std::env::current_exe().unwrap();
    let ran = Command::new(this).args(TESTS).env(TUN, "1").output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    let failures = text.split_once("failures:").map_or(&*text, |(_, failures)| failures);
    assert!(ran.status.success(), "{failures}");
    assert!(!text.contains("running 0 tests"), "{text}");
}

fn echo_server() -> Server {
    Server::new(|mut peer| {
        if peer.upgrade() {
            peer.echo();
        }
    })
}

/// A scenario whose devices have this name, and addresses that no other test uses.
fn over(server: SocketAddr, name: &str, addresses: &str, more: &str) -> Scenario {
    let head = format!("{more}\n[sources]\ntun = \"{name}\"\naddresses = [\"{addresses}\"]");
    let steps =
        "steps = [{ connect = \"/\" }, { send = \"hello\", reply = true }, { close = true }]";
    scenario(&of(server, 40, "raw", &head, steps))
}

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn agents_of_one_host_have_their_own_devices() {
    let server = echo_server();
    let mut agents = String::new();
    for _ in 0..2 {
        let any = "127.0.0.1:0".parse().unwrap();
        let agent = Agent::bind(any, "secret".to_owned(), Arc::new(|_: &str| ())).unwrap();
        let address = agent.address().unwrap();
        agents += &format!("[[agent]]\naddress = \"{address}\"\ntoken = \"secret\"\n");
        thread::spawn(move || agent.run());
    }
    let scenario = over(server.addr, "agent", "10.203.0.0-10.203.0.255", &agents);
    let run = Run::prepare(scenario, &Options::default()).unwrap();
    let record = run.record();
    run.go(Outputs::new());
    let record = record.lock().unwrap();
    assert_eq!(record.meta().hosts.len(), 2);
    assert_eq!(record.counts()[Count::UsersFinished], 40, "{:?}", record.errors());
    assert_eq!(record.errors().total(), 0, "{:?}", record.errors());
}

#[test]
#[ignore = "needs root and /dev/net/tun"]
fn device_or_network_in_use_is_reported() {
    let server = echo_server();
    let one = Options { workers: Some(1), ..Options::default() };
    let prepare =
        |name: &str, addresses: &str| Run::prepare(over(server.addr, name, addresses, ""), &one);
    let refused = |name: &str, addresses: &str| match prepare(name, addresses) {
        Err(RunError::Worker(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was prepared"),
    };
    let first = prepare("busy", "10.203.1.0-10.203.1.255").unwrap();
    let why = refused("busy", "10.203.2.0-10.203.2.255");
    assert!(why.contains("busy0: ") && why.contains("choose another name"), "{why}");
    let why = refused("other", "10.203.1.0-10.203.1.255");
    assert!(why.contains("other0: ") && why.contains("has a route"), "{why}");
    drop(first);
    drop(prepare("busy", "10.203.1.0-10.203.1.255").unwrap());
}

#[test]
fn tls_and_ipv6_are_refused_without_sockets() {
    for url in ["wss://127.0.0.1:1", "ws://[::1]:1"] {
        let text = of("127.0.0.1:1".parse().unwrap(), 1, "raw", "", "steps = [{ think = \"1s\" }]");
        let mut scenario = scenario(&text.replace("ws://127.0.0.1:1", url));
        scenario.sources.tun = Some("name".to_owned());
        let faults = check(&scenario).unwrap_err().to_string();
        assert!(faults.contains("cannot be reached over TUN devices"), "{faults}");
        assert!(faults.contains("they have no TLS, and IPv4 only"), "{faults}");
    }
}
