//! Topics, broadcasts and presences as other nodes receive them.

use simurgh_presence::{Delta, Meta, Owner, PhxRefs, Shared};
use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::*;

fn clustered() -> (TestShard, Notes) {
    clustered_with(scripted(standard))
}

/// Its members have presences if they track one or ask for the list.
fn present() -> Scripted {
    scripted(|ctx, heard| {
        if let ChannelCall::In("track", _) = heard {
            drop(ctx.presence().track("k", Payload::from_json("{}")));
        } else if let ChannelCall::In("state", _) = heard {
            ctx.presence().push_state();
        }
        Outcome::NoReply
    })
}

/// What is to be told is told, after this time.
fn passes(it: &mut TestShard, seconds: u64) {
    it.handles_mail();
    it.advances(std::time::Duration::from_secs(seconds));
    it.core.tick(&mut it.out);
    it.handles_mail();
    it.fans_out();
}

fn clustered_with(channel: Scripted) -> (TestShard, Notes) {
    let mut node = TestNode::new(1, Config::default(), vec![channel.user_socket()]);
    let notes = node.join_cluster(1000);
    (TestShard::with_node(node), notes)
}

#[test]
fn topic_begins_before_the_first_reply_and_ends_with_its_last_member() {
    let (mut it, told) = clustered();
    let one = it.joined(&["t"]);
    assert_eq!(told.take(), ["begins t on 0"]);
    let two = it.joined(&["t", "u"]);
    assert_eq!(told.take(), ["begins u on 0"]);
    it.disconnects(one);
    assert_eq!(told.take(), [""; 0]);
    it.sends(two, r#"[1,2,"t","phx_leave",{}]"#);
    assert_eq!(told.take(), ["ends t on 0"]);
    it.disconnects(two);
    assert_eq!(told.take(), ["ends u on 0"]);
    it.joined(&["t"]);
    assert_eq!(told.take(), ["begins t on 0"]);
}

#[test]
fn further_topics_reach_the_cluster_and_socket_ids_do_not() {
    let (mut it, told) = clustered();
    let key = it.opens_as(Wire::V2, "user:1");
    assert_eq!(told.take(), [""; 0]);
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    it.sends(key, r#"[1,2,"t","subscribe","further"]"#);
    assert_eq!(told.take(), ["begins t on 0", "begins further on 0"]);
    it.sends(key, r#"[1,3,"t","unsubscribe","further"]"#);
    assert_eq!(told.take(), ["ends further on 0"]);
    it.disconnects(key);
    assert_eq!(told.take(), ["ends t on 0"]);
}

#[test]
fn a_topic_with_members_and_listeners_ends_with_the_last_of_both() {
    let (mut it, told) = clustered();
    let listen = |it: &mut TestShard, number| {
        let name = Listener::id(0, number);
        let listener = Listener { name, on_broadcast: Box::new(|_| ()) };
        it.core.mail(&mut it.out, Mail::Listen("t".into(), listener));
        name
    };
    let first = listen(&mut it, 1);
    let key = it.joined(&["t"]);
    it.disconnects(key);
    let key = it.joined(&["t"]);
    assert!(told.take().iter().all(|it| it == "begins t on 0"));
    it.core.mail(&mut it.out, Mail::Unlisten("t".into(), first));
    assert_eq!(told.take(), [""; 0]);
    let (second, third) = (listen(&mut it, 2), listen(&mut it, 3));
    told.take();
    it.disconnects(key);
    it.core.mail(&mut it.out, Mail::Unlisten("t".into(), second));
    assert_eq!(told.take(), [""; 0]);
    it.core.mail(&mut it.out, Mail::Unlisten("t".into(), third));
    assert_eq!(told.take(), ["ends t on 0"]);
}

#[test]
fn each_broadcast_is_sent_to_other_nodes_once() {
    let (mut it, told) = clustered();
    let key = it.joined(&["t"]);
    told.take();
    it.sends(key, r#"[1,2,"t","bcast",{"a":1}]"#);
    it.delivers("elsewhere", "news", "{}");
    assert_eq!(told.take(), [r#"t news {"a":1}"#, "elsewhere news {}"]);
    // Messages of another node are not sent on.
    let posted =
        Posted::new(std::sync::Arc::new(Broadcast::new("t", "e", Payload::EMPTY_OBJECT)), None);
    it.node.charge(0, posted.broadcast().weight());
    it.core.mail(&mut it.out, Mail::Broadcast(posted));
    it.fans_out();
    assert_eq!(told.take(), [""; 0]);
    assert_eq!(it.receives(key).len(), 2);
}

#[test]
fn message_too_large_for_other_nodes_is_refused_with_the_limit() {
    let (mut it, told) = clustered();
    let key = it.joined(&["t"]);
    told.take();
    let text = format!("\"{}\"", "x".repeat(1000));
    it.sends(key, &format!(r#"[1,2,"t","bcast",{text}]"#));
    it.fans_out();
    let response = r#"{"reason":"payload_too_large","limit":995}"#;
    let refused = format!(r#"[1,2,"t","phx_reply",{{"status":"error","response":{response}}}]"#);
    assert_eq!((told.take(), it.receives(key)), (vec![], vec![refused]));
    let names = "t".len() + "e".len();
    let refused = it.node.broadcast(Broadcast::new("t", "e", Payload::from_json(text)));
    let Err(error @ BroadcastError::TooLargeForCluster { bytes_max, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(bytes_max, 1000 - names);
    assert!(error.to_string().contains("too large for the cluster"), "{error}");
    let topic = "t".repeat(usize::from(u16::MAX) + 1);
    assert!(it.node.broadcast(Broadcast::new(topic, "e", Payload::EMPTY_OBJECT)).is_err());
}

#[test]
fn presences_of_a_topic_begin_with_the_first_member_that_uses_them() {
    let (mut it, told) = clustered_with(present());
    let (one, two) = (it.joined(&["t"]), it.joined(&["t"]));
    told.take();
    it.sends(one, r#"[1,2,"t","state",{}]"#);
    it.sends(two, r#"[1,2,"t","track",{}]"#);
    it.sends(two, r#"[1,3,"t","state",{}]"#);
    it.handles_mail();
    assert_eq!(told.take(), ["presences of t: Begin"]);
    let asked = FromPeers::Requested([].into());
    it.node.post_home("t", PresenceMail::Peers(asked), None);
    passes(&mut it, 0);
    let said = told.take();
    let [delta] = said.as_slice() else { panic!("{said:?}") };
    assert!(delta.starts_with("presences of t: Delta(Delta { owner: Owner(7), from: 0, to: 1"));
    assert!(it.receives(one).iter().any(|it| it.contains("presence_state")));
    it.disconnects(one);
    it.disconnects(two);
    for seconds in [1, 1, 5, 25] {
        passes(&mut it, seconds);
    }
    let said = told.take();
    let ends = ["ends t on 0", "presences of t: End"].map(|end| said.iter().any(|it| it == end));
    assert_eq!(ends, [true; 2], "{said:?}");
    // The leave, repeated three times because nothing followed it.
    assert_eq!(said.iter().filter(|it| it.contains("Delta")).count(), 4, "{said:?}");
    assert!(it.core.presences().topics == 0);
}

/// A client without a list keeps diffs until it gets one.
#[test]
fn member_without_a_list_receives_leaves_of_removed_presences() {
    let (mut it, _told) = clustered_with(present());
    let (one, two) = (it.joined(&["t"]), it.joined(&["t"]));
    it.sends(one, r#"[1,2,"t","track",{}]"#);
    it.handles_mail();
    let other = Owner(9 << 16);
    let (phx_ref, meta) = (PhxRefs::new(other).next(1), Meta::parse("{}").unwrap());
    let entry = Shared { key: "far".into(), phx_ref, phx_ref_prev: None, meta, extra: None };
    let delta = Delta { owner: other, from: 0, to: 1, joins: vec![entry], leaves: vec![] };
    for what in [FromPeers::Requested([].into()), FromPeers::Delta(delta)] {
        it.node.post_home("t", PresenceMail::Peers(what), None);
    }
    passes(&mut it, 1);
    let hears_of = |it: &mut TestShard| -> Vec<String> {
        it.receives(two).into_iter().filter(|it| it.contains("far")).collect()
    };
    let [joins] = hears_of(&mut it).try_into().unwrap();
    assert!(joins.contains(r#""leaves":{}"#), "{joins}");
    it.disconnects(one);
    for seconds in [1, 1, 5, 25] {
        passes(&mut it, seconds);
    }
    let [leaves] = hears_of(&mut it).try_into().unwrap();
    assert!(leaves.contains(r#""joins":{}"#), "{leaves}");
    assert!(it.core.presences() == PresenceCounts::default());
}
