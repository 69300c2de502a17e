//! Each component alone, without a core.

use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{Effect, KeepRequest, KeptFor, PresenceCall};
use simurgh_data::{Key, Next};
use simurgh_history::Resume;
use simurgh_presence::Meta;
use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::ws::CloseCode;

use crate::barrier::{Barriers, Queued};
use crate::deadlines::{Deadlines, Due, Excuses, Expiry};
use crate::fanout::{Fanout, Registry};
use crate::history::{Histories, Recovery};
use crate::presence::Presences;
use crate::registry::{Holds, List, Subscriber};
use crate::testing::*;
use crate::*;

fn node() -> Arc<TestNode> {
    Arc::new(TestNode::new(1, Config::default(), vec![scripted(standard).user_socket()]))
}

fn channel() -> ChannelId {
    ChannelId { shard: 0, membership: 3, generation: 0 }
}

#[test]
fn barriers_queue_effects_until_their_confirmation() {
    let (mut barriers, mut out) = (Barriers::default(), TestSockets::default());
    let conn = out.connect(Phase::Open, Wire::V2);
    let proceed = || Queued::Effect(Effect::Proceed);
    assert!(barriers.admit(channel(), proceed()).is_some(), "it does not wait");
    let ticket = barriers.raise(&mut out, conn, channel());
    assert!(out.is_held(conn) && barriers.holds_socket(conn));
    assert!(barriers.admit(channel(), proceed()).is_none());
    barriers.answer_later(channel(), Some(Ref::Null), None, Some(Reason::Crashed));
    assert!(barriers.is_ending(channel()));
    assert!(barriers.lower(channel(), ticket + 1).is_none(), "of an earlier broadcast");
    let mut barrier = barriers.lower(channel(), ticket).unwrap();
    assert_eq!(barrier.fail().1.len(), 1, "the end of the channel stays");
    assert!(matches!(barrier.next(), Some((_, Queued::End(Reason::Crashed)))));
    assert_eq!(barriers.len(), 0);
}

/// Of two callbacks that waited behind a replay, the first broadcasts, and that is not kept.
#[test]
fn failed_broadcast_drops_what_its_callback_did_also_if_that_had_waited() {
    let (mut barriers, mut out) = (Barriers::default(), TestSockets::default());
    let conn = out.connect(Phase::Open, Wire::V2);
    let proceed = || Queued::Effect(Effect::Proceed);
    let replay = barriers.raise(&mut out, conn, channel());
    for reply in [Some(Reply::ok(Payload::EMPTY_OBJECT)), None] {
        let outer = barriers.enter(None);
        assert!(barriers.admit(channel(), proceed()).is_none());
        assert!(barriers.admit(channel(), proceed()).is_none());
        barriers.answer_later(channel(), Some(Ref::Null), reply, None);
        barriers.leave(outer);
    }
    let mut waited = barriers.lower(channel(), replay).unwrap();
    let (call, _broadcast) = waited.next().unwrap();
    let outer = barriers.enter(Some(call));
    let ticket = barriers.raise(&mut out, conn, channel());
    barriers.leave(outer);
    barriers.wait_again(channel(), waited);
    let mut barrier = barriers.lower(channel(), ticket).unwrap();
    let (message, lost) = barrier.fail();
    assert!(message.is_some(), "the error is the answer to the message");
    assert!(matches!(
        lost[..],
        [Queued::Effect(Effect::Proceed), Queued::Effect(Effect::Reply(..))]
    ));
    assert_eq!([barrier.next(), barrier.next()].map(|it| it.map(|it| it.0)), [Some(2); 2]);
    assert!(barrier.next().is_none());
}

#[test]
fn deadlines_find_a_silent_socket() {
    let (node, mut out) = (node(), TestSockets::default());
    let (mut deadlines, mut expiry) = (Deadlines::new(&*node), Expiry::default());
    let key = out.connect(Phase::Open, Wire::V2);
    assert!(matches!(deadlines.find(&mut out, &mut expiry, &*node), Some(Next::After(_))));
    out.turn_ns = Duration::from_secs(100).as_nanos() as u64;
    assert_eq!(deadlines.find(&mut out, &mut expiry, &*node), None);
    assert_eq!(deadlines.next(), Some(key));
    let mut judge = |is_held_back| {
        let excuses = Excuses { waits_on_history: false, is_held_back };
        Deadlines::judge(&mut out, key, excuses, &mut expiry, &*node, &Default::default())
    };
    assert_eq!(judge(false), Some(Due::Close(CloseCode::PROTOCOL)));
    assert_eq!(judge(true), None, "it is silent because it is not read");
}

/// A member of a topic on a registry of its own.
fn member(out: &mut TestSockets, topic: &str) -> (Registry, Key, u32) {
    let mut registry = Registry::new(Arc::default(), 0, 7);
    let key = out.connect(Phase::Open, Wire::V2);
    let holds = Holds::NOTHING;
    let subscriber = Subscriber { holds, join_ref: OwnedRef::NULL, via_channel: false, flags: 0 };
    let mut list = List::default();
    let member = registry.subscribe(&mut list, key, topic, subscriber).ok().unwrap();
    (registry, key, member)
}

#[test]
fn fanout_sends_a_broadcast_to_members_of_its_topic() {
    let (node, mut out) = (node(), TestSockets::default());
    let (mut registry, key, _) = member(&mut out, "t");
    let mut fanout = Fanout::new(node, Arc::default(), 0, 7);
    for topic in ["t", "other"] {
        let broadcast = Broadcast::new(topic, "news", Payload::EMPTY_OBJECT);
        fanout.publish(&mut registry, &mut out, key, broadcast);
    }
    let mut slice = fanout.begin_slice(&out).unwrap();
    assert!(fanout.go_on(&mut registry, &mut out, &mut slice).is_none(), "for no application");
    assert_eq!(fanout.end_slice(&out, &slice), Next::Idle);
    assert_eq!(out.peer(key).received(), [r#"[null,null,"t","news",{}]"#]);
}

#[test]
fn histories_return_a_kept_broadcast_to_a_client_that_resumes() {
    let user_socket = keeping(scripted(standard), HistoryRule::default());
    let node = Arc::new(TestNode::new(1, Config::default(), vec![user_socket]));
    let out = TestSockets::default();
    let mut histories = Histories::new(node, Arc::default(), 0, 7);
    assert!(histories.retention("t").is_some() && !histories.confirms(0));
    let resume = |text: &str| Resume::parse(text).unwrap().unwrap();
    let key = Key { slot: 0, generation: 0 };
    let join = |histories: &mut Histories<TestNode>, json: &str| match histories.join(
        key,
        1,
        "t",
        &resume(json),
        out.now(),
    ) {
        Recovery::Now(resumption) => resumption.missed,
        Recovery::Later { .. } => panic!("its home is here"),
    };
    let at = join(&mut histories, OPTED_IN).through;
    let broadcast = Broadcast::new("t", "news", Payload::EMPTY_OBJECT);
    let (charge, id, kept_for) = (None, None, KeptFor::Nobody);
    let keep = KeepRequest { broadcast, charge, sender: 0, client: 0, id, kept_for };
    let spread = histories.publish(out.now(), keep, 0).unwrap();
    assert!(spread.broadcast.position().is_some() && spread.apart.is_none());
    assert_eq!(join(&mut histories, &since(&at.to_string())).messages.len(), 1);
}

#[test]
fn presences_post_the_change_of_a_call() {
    let (node, out) = (node(), TestSockets::default());
    let mut presences = Presences::new(Arc::clone(&node), Arc::default(), 0, 7);
    let call = PresenceCall::Track("key".into(), Meta::parse("{}").unwrap(), None);
    let mail = PresenceMail::Call(channel(), call);
    node.log().bytes[0] = mail.weight() + 1;
    presences.came(out.now(), "t", mail, None);
    assert_eq!(presences.counts().entries, 1);
    presences.send(out.now());
    let mail = std::mem::take(&mut node.log().mail[0]);
    let [Mail::Broadcast(it)] = &mail[..] else { panic!("{mail:?}") };
    assert_eq!(it.broadcast().event(), "presence_diff");
}
