//! Deltas and states of one topic for other nodes. The simulator checks that all nodes agree in the
//! end, whatever is lost, doubled or comes in another order, and that `list()` has all presences.

use simurgh_channel::{PresenceCall, PresenceConfig};
use simurgh_presence::{FromPeers, Meta, Owner, ToPeers};

use crate::ChannelId;
use crate::presence::home::{Home, MemberCall};

const TOPIC: &str = "t";
const SECOND: u64 = 1_000_000_000;

fn channel(membership: u32) -> ChannelId {
    ChannelId { shard: 0, membership, generation: 1 }
}

/// Sends what is due. Returns the versions of the deltas for other nodes.
fn take_deltas(home: &mut Home, config: &PresenceConfig, now_ns: u64) -> Vec<(u64, u64)> {
    while let Some(topic) = home.take_due(now_ns) {
        home.tell(&topic, config, 1 << 20, now_ns);
    }
    let deltas = home.take_outbox().into_iter().filter_map(|(_, what)| match what {
        ToPeers::Delta(delta) => Some((delta.from, delta.to)),
        _ => None,
    });
    deltas.collect()
}

#[test]
fn delta_that_precedes_a_requested_state_is_repeated() {
    let (mut home, config) = (Home::new(Owner(7), 0, true, 7), PresenceConfig::default());
    let at_ns = |second: u64| 1 + second * SECOND;
    home.begin(TOPIC, &config, at_ns(0));
    let track = PresenceCall::Track("k".into(), Meta::parse("{}").unwrap(), None);
    home.call(TOPIC, MemberCall::uncharged(channel(1), track), &config, at_ns(0));
    // The version of the join is not repeated any more.
    for second in 0..40 {
        take_deltas(&mut home, &config, at_ns(second));
    }
    home.call(TOPIC, MemberCall::uncharged(channel(1), PresenceCall::End), &config, at_ns(40));
    home.peers_message(TOPIC, FromPeers::StateWanted(Owner(9)), &config, at_ns(40));
    let mut sent = Vec::new();
    for second in 40..80 {
        sent.extend(take_deltas(&mut home, &config, at_ns(second)));
    }
    assert_eq!(sent, [(1, 2), (2, 2), (2, 2), (2, 2)]);
    assert!(home.is_empty());
}
