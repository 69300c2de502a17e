//! The clients' timing is that of phoenix.js; without wasted work the formula is met.

use super::*;

fn storm(clients: f64, seconds: f64) -> Storm {
    // A node whose cores take this many clients in this many seconds.
    let of = domains::Storm {
        clients,
        node_cores: 8.0,
        proxy_cores: None,
        handshake: 0.0,
        connect: 0.75 * 8.0 * seconds / clients,
        join: 0.25 * 8.0 * seconds / clients,
    };
    Storm::new(of, &Prices::read(None).unwrap(), 4)
}

fn near(outcome: &Outcome, expected: f64, share: f64) -> bool {
    let Some(all) = outcome.back[2] else { return false };
    (all - expected).abs() <= share * expected
}

#[test]
fn the_waits_are_those_of_the_official_client() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/chat/static/phoenix.min.js");
    let text = std::fs::read_to_string(path).unwrap();
    let list = |all: &[u64]| {
        let short = |ms: &u64| match ms % 1000 {
            0 => format!("{}e3", ms / 1000),
            _ => ms.to_string(),
        };
        all.iter().map(short).collect::<Vec<_>>().join(",")
    };
    let reconnect = format!("[{}][s-1]||{}e3", list(&RECONNECT_MS), RECONNECT_LAST_MS / 1000);
    let rejoin = format!("[{}][s-1]||{}e4", list(&REJOIN_MS), REJOIN_LAST_MS / 10_000);
    assert!(text.contains(&reconnect), "{reconnect}");
    assert!(text.contains(&rejoin), "{rejoin}");
}

/// The formula, clients ÷ rate, holds while queues are never full and no join times out.
#[test]
fn without_anything_in_vain_it_takes_as_long_as_the_formula_says() {
    for seconds in [2.0, 5.0, 9.0] {
        let it = Storm { notice: Notice::Reset, ..storm(300_000.0, seconds) };
        let outcome = it.run(1);
        assert!((it.of.seconds() - seconds).abs() < 1e-9);
        // A round trip for the first and for the join.
        assert!(near(&outcome, seconds + 0.2, 0.1), "{seconds}: {outcome:?}");
        assert!(outcome.timed_out < 1e-9 && outcome.dropped < 1e-9, "{outcome:?}");
        assert!((outcome.joins - 1.0).abs() < 1e-9);
    }
}

#[test]
fn who_comes_spread_is_back_when_the_last_one_came() {
    let it = Storm { backoff: Backoff::Spread(40.0), ..storm(300_000.0, 20.0) };
    let outcome = it.run(1);
    assert!(near(&outcome, 40.2, 0.03), "{outcome:?}");
    // Half of the machines' capacity is enough.
    assert!(outcome.behind < 0.5 && outcome.timed_out < 1e-9, "{outcome:?}");
}

#[test]
fn silence_spreads_clients_by_itself() {
    let it = Storm { notice: Notice::Silence, ..storm(300_000.0, 10.0) };
    let outcome = it.run(1);
    assert!(near(&outcome, 61.7, 0.03), "{outcome:?}");
    assert!(outcome.behind < 1.0, "{outcome:?}");
}

/// Clients with the same table of delays come at the same moments, however often they have tried.
#[test]
fn without_jitter_all_try_again_in_the_same_second_once_they_are_sent_elsewhere() {
    let plain = Storm { redirect: 15.0, ..storm(300_000.0, 1.0) };
    let jitter = Storm { backoff: Backoff::Jitter, ..plain };
    let (plain, jitter) = (plain.run(1), jitter.run(1));
    assert!(plain.peak > 1.5 * jitter.peak, "{plain:?} {jitter:?}");
    let wait = |it: &Outcome| it.back[2].unwrap() - 15.0;
    assert!(wait(&plain) < 7.0 && wait(&jitter) < 9.0, "{plain:?} {jitter:?}");
}

/// The join waits behind the connections of all others: ten seconds later clients leave and join
/// again, and servers do it twice.
#[test]
fn a_queue_of_more_than_ten_seconds_makes_joins_in_vain() {
    let outcome = storm(300_000.0, 60.0).run(1);
    assert!(outcome.timed_out > 0.3, "{outcome:?}");
    assert!(outcome.joins > 1.3, "{outcome:?}");
    assert!(outcome.back[2].unwrap() > 66.0, "{outcome:?}");
}

#[test]
fn a_full_queue_drops_and_the_kernel_comes_again_ever_later() {
    let it = Storm { queue: 10_000.0, ..storm(300_000.0, 5.0) };
    let outcome = it.run(1);
    assert!(outcome.dropped > 1.0, "{outcome:?}");
    // Idle times make it later than the formula says.
    assert!(outcome.back[2].unwrap() > 7.0, "{outcome:?}");
    assert!(outcome.timed_out < 1e-9, "{outcome:?}");
}

#[test]
fn proxies_hold_back_what_nodes_could_take() {
    let mut it = storm(300_000.0, 2.0);
    it.of.proxy_cores = Some(8.0);
    it.of.handshake = 8.0 * 12.0 / 300_000.0;
    let outcome = it.run(1);
    assert!(near(&outcome, it.of.seconds() + 0.2, 0.1), "{outcome:?}");
    assert!(outcome.behind < 0.5, "{outcome:?}");
}

#[test]
fn a_seed_says_it_all() {
    let it = Storm { backoff: Backoff::Jitter, redirect: 5.0, ..storm(300_000.0, 12.0) };
    assert_eq!(format!("{:?}", it.run(7)), format!("{:?}", it.run(7)));
    assert_ne!(format!("{:?}", it.run(7)), format!("{:?}", it.run(8)));
}
