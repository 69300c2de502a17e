//! Members that call faster than diffs leave, and keys with many entries.

use super::*;

/// What a call changes is kept until the next diff, so its bytes count until then.
#[test]
fn member_that_calls_faster_than_diffs_leave_is_not_read_until_the_diff() {
    let mut config = Config { presence: PresenceConfig::default(), ..Config::default() };
    config.mailbox_bytes_max = 64 << 10;
    let (mut it, [key]) = TestShard::with(config, vec![present().user_socket()]).members();
    says(&mut it, key, "track", r#""a""#);
    let mut calls = 0;
    while !it.out.is_held(key) {
        sends(&mut it, key, "update", r#""a""#);
        it.handles_mail();
        calls += 1;
        assert!(calls < 100, "never held");
    }
    assert!(it.core.presences().bytes > 0 && it.node.charged(0) == 0, "the mail is handled");
    turn(&mut it);
    it.core.settle(&mut it.out);
    assert!(it.out.is_held(key), "the interval is not over");
    turn_after(&mut it, INTERVAL);
    it.core.settle(&mut it.out);
    assert_eq!((it.out.is_held(key), it.core.presences().bytes), (false, 0));
}

#[test]
fn rejoins_under_new_keys_are_paused_like_publishers() {
    let mut config = Config { presence: PresenceConfig::default(), ..Config::default() };
    config.mailbox_bytes_max = 64 << 10;
    let (mut it, [key]) = TestShard::with(config, vec![present().user_socket()]).members();
    for n in 0..100 {
        it.sends(key, &format!(r#"[{n},{n},"t","phx_join",{{}}]"#));
        it.sends(key, &format!(r#"[{n},9,"t","track","k{n}"]"#));
        it.handles_mail();
        if it.out.is_held(key) {
            return assert!(it.core.presences().bytes < 3 * (8 << 10), "after {n} joins");
        }
    }
    panic!("never held");
}

#[test]
fn sample_of_a_key_with_all_entries_has_as_many_metas_as_a_sample_has_keys() {
    let config = PresenceConfig { list_max: 10, sample: 3, ..PresenceConfig::default() };
    let (mut home, meta) = (Home::new(Owner(1), 0, false, 1), || Meta::parse("{}").unwrap());
    for membership in 0..11 {
        let channel = ChannelId { shard: 0, membership, generation: 1 };
        let call = PresenceCall::Track("k".into(), meta(), None);
        home.call("t", MemberCall::uncharged(channel, call), &config, 0);
    }
    let output = home.tell("t", &config, 1 << 20, 0);
    let Some(Output::All("presence_summary", text)) = output.last() else { panic!("{output:?}") };
    let summary: Value = serde_json::from_str(text).unwrap();
    assert_eq!((&summary["count"], &summary["keys"]), (&json!(11), &json!(1)));
    assert_eq!(summary["sample"]["k"]["metas"].as_array().unwrap().len(), 3);
}

/// Members that rejoin before they have got the list: their ended channels do not wait for it, and
/// nobody gets it later than the others.
#[test]
fn rejoining_members_get_the_list_in_turn() {
    let config = PresenceConfig { turn_bytes: 1, ..PresenceConfig::default() };
    let (mut home, ns) = (Home::new(Owner(1), 0, false, 1), INTERVAL.as_nanos() as u64);
    let mut served = Vec::new();
    for round in 0..30 {
        let now_ns = u64::from(round) * ns;
        for membership in 0..3 {
            let channel = ChannelId { shard: 0, membership, generation: round };
            for call in [
                PresenceCall::Track("k".into(), Meta::parse("{}").unwrap(), None),
                PresenceCall::PushState,
            ] {
                home.call("t", MemberCall::uncharged(channel, call), &config, now_ns);
            }
        }
        let output = home.tell("t", &config, 1 << 20, now_ns);
        let Some(Output::Some(_, channels)) = output.last() else { panic!("{output:?}") };
        served.extend(channels.iter().map(|channel| channel.membership));
        let waiting = home.topics.get("t").map_or(0, |topic| topic.getting.len());
        assert_eq!(waiting, 2, "in round {round}");
    }
    assert_eq!(served[..6], [0, 1, 2, 0, 1, 2]);
    assert_eq!(served.len(), 30);
}
