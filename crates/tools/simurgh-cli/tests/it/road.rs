//! A short test of `simurgh road`: clients and server count all clients at each milestone and after
//! the storm.

use std::time::Duration;

use crate::support::{directory, run, run_long};
use crate::tls::write_certificate;
use serde_json::Value;

/// About forty seconds on an idle machine.
const WITHIN: Duration = Duration::from_secs(600);

/// They need four tables of 20,000 descriptors on each side.
#[test]
fn capacity_test_counts_all_of_sixty_thousand_clients() {
    const TO: u64 = 60_000;
    let dir = directory(&[]);
    let words = ["road", "--connections", "60000", "--rate", "6000", "--out", "out"];
    let words = [&words[..], &["--dashboard", "off", "--no-tune"]].concat();
    let ran = run_long(dir.path(), &words, WITHIN);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    let road: Value = serde_json::from_str(&read("road.json")).unwrap();
    let milestones = road["milestones"].as_array().unwrap();
    let members: Vec<u64> = milestones.iter().map(|it| it["members"].as_u64().unwrap()).collect();
    assert_eq!(members, [10_000, TO]);
    for milestone in milestones {
        let broadcast = &milestone["broadcast"];
        // The counts of the clients, without duplicates, and of the server.
        assert_eq!(broadcast["receivers"], milestone["members"], "{broadcast}");
        assert_eq!(broadcast["delivered"], milestone["members"], "{broadcast}");
        assert_eq!(broadcast["delivery"]["count"], milestone["members"], "{broadcast}");
        assert!(broadcast["heartbeats"]["count"].as_u64().unwrap() > 0, "{broadcast}");
        assert_eq!(
            milestone["join"]["count"].as_u64(),
            milestone["came"].as_u64().map(|came| {
                // The sender joins two channels in the first milestone.
                came + u64::from(milestone["members"] == 10_000)
            })
        );
        // The kernel's are counted on the whole machine, where others may free more.
        for bytes in ["server_bytes", "client_bytes"] {
            assert!(milestone[bytes].as_f64().unwrap() > 0.0, "{bytes}: {milestone}");
        }
        assert!(milestone["kernel_bytes"].is_number(), "{milestone}");
    }
    // Measured before the broadcast; a record of each join made it 600 and more.
    let client_bytes = milestones[1]["client_bytes"].as_f64().unwrap();
    assert!(client_bytes < 450.0, "{client_bytes} bytes for a client");
    let storm = &road["storm"];
    assert_eq!(storm["vanished"], TO, "{storm}");
    assert_eq!(storm["heartbeats_failed"], 0, "{storm}");
    for when in ["heartbeat", "back_heartbeat"] {
        let [all, own] = ["max_us", "lag_max_us"].map(|it| storm[format!("{when}_{it}")].as_u64());
        assert!(own.is_some() && all > Some(0), "{when}: {storm}");
    }
    // Counted on the whole machine, where other tests open and close sockets, too.
    let left = storm["sockets_left"].as_i64();
    assert!(left.is_some_and(|left| left < TO.cast_signed() / 4), "{storm}");
    let (then, received) = (storm["members_then"].as_u64(), storm["receivers"].as_u64());
    assert!(then > Some(0) && received >= then && received <= Some(TO), "{storm}");
    let (table, page) = (read("road.md"), read("road.html"));
    assert!(table.contains("| 60,000 |") && ran.stdout.contains(&table), "{table}");
    assert!(page.contains("<polyline") && !page.contains("http://"));
    let again = run(dir.path(), &["road", "--connections", "100", "--out", "out"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(again.stderr.contains("is not empty"), "{again:?}");
}

#[test]
fn capacity_test_with_tls_counts_all_clients() {
    let dir = directory(&[]);
    write_certificate(dir.path(), (4096, 1, 1));
    let words = ["road", "--connections", "500", "--rate", "250", "--out", "out"];
    let rest = ["--dashboard", "off", "--no-tune", "--no-reconnect", "--heartbeats", "off"];
    let tls = ["--tls-certificate", "fullchain.pem", "--tls-key", "privkey.pem"];
    let ran = run_long(dir.path(), &[&words[..], &rest, &tls].concat(), WITHIN);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(ran.stderr.contains("server on wss://127.77.0.1:"), "{ran:?}");
    assert!(ran.stdout.contains("with TLS") && ran.stdout.contains("| 500 |"), "{ran:?}");
}

#[test]
fn capacity_test_refuses_invalid_settings() {
    let dir = directory(&[]);
    for words in [
        ["--connections", "1"],
        ["--rate", "0"],
        ["--connections", "many"],
        ["--nodes", "0"],
        ["--nodes", "33"],
        ["--broadcasts", "0"],
        ["--tls-certificate", "chain.pem"],
    ] {
        let ran = run(dir.path(), &[&["road"][..], &words[..]].concat());
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    }
    for (words, why) in [
        (&["--nodes", "3", "--nats", "no/such/file"][..], "--nats: no/such/file: No such file"),
        (&["--nodes", "3", "--nats", "/bin/true"], "/bin/true is not nats-server"),
        (&["--tls-certificate", "no.pem", "--tls-key", "k"], "--tls-certificate: no.pem: No such"),
        (&["--compare"], "need --nodes 2 or more"),
    ] {
        let ran = run(dir.path(), &[&["road", "--out", "out"], words].concat());
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains(why), "{why:?} is not in\n{}", ran.stderr);
        let help = "install it with `cargo xtask engine`";
        assert_eq!(ran.stderr.contains(help), words[0] == "--nodes", "{}", ran.stderr);
    }
    assert!(!dir.path().join("out").exists(), "nothing is begun");
}
