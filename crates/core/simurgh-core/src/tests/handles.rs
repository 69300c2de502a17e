//! Messages of handles, and the channels that receive them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use simurgh_channel::{ChannelMessage, Effect, Publication};
use simurgh_data::Key;
use simurgh_proto::message::Payload;

use crate::testing::*;
use crate::*;

struct Other;

impl ShardChannel for Other {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

impl ShardHandleInfo<u8> for Other {
    fn handle_info(&mut self, _: &mut ShardContext<'_>, _: u8) -> Outcome {
        panic!("it is no such channel")
    }
}

fn test_shard() -> (TestShard, Key, ChannelId) {
    let (it, [key]) = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::Info(message) => {
            ctx.push("info", &format!("{:?}", message.downcast_ref::<u8>()));
            Outcome::NoReply
        }
        other => standard(ctx, other),
    }))
    .members();
    let id = it.channel(key);
    (it, key, id)
}

#[test]
fn message_reaches_only_channels_of_its_type() {
    let (mut it, key, id) = test_shard();
    it.core.mail(&mut it.out, Mail::ToChannel(id, info(7_u8)));
    assert_eq!(it.receives(key), [r#"[1,null,"t","info","Some(7)"]"#]);
    let message = ToChannel::Message(Box::new(ChannelMessage::new::<Other, u8>(7)));
    it.core.mail(&mut it.out, Mail::ToChannel(id, message));
    assert!(it.receives(key).is_empty());
}

#[test]
fn handle_broadcasts_for_its_channel() {
    let (mut it, key, id) = test_shard();
    let other = it.joined(&["t"]);
    let news = |n| vec![format!(r#"[null,null,"t","news",{n}]"#)];
    let say = |it: &TestShard, n: &'static str, audience| {
        it.node.broadcast_by(id, "news", Payload::from_json(n), audience)
    };
    say(&it, "1", Audience::All).unwrap();
    assert!(it.node.charged(0) > 0, "it is counted while it is on its way");
    it.handles_mail();
    it.fans_out();
    assert_eq!((it.receives(key), it.receives(other)), (news(1), news(1)));
    say(&it, "2", Audience::Others).unwrap();
    it.handles_mail();
    it.fans_out();
    assert_eq!((it.receives(key), it.receives(other)), (vec![], news(2)));
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    say(&it, "3", Audience::All).unwrap();
    it.handles_mail();
    assert!(it.receives_all(other).is_empty());
    assert_eq!(it.node.charged(0), 0);
}

/// An application accepted a message of the member, which has left meanwhile.
#[test]
fn publication_of_a_channel_that_has_ended_is_still_broadcast() {
    let (mut it, key, id) = test_shard();
    let other = it.joined(&["t"]);
    let publish = |it: &mut TestShard, n: &'static str| {
        let broadcast = Broadcast::new("t", "news", Payload::from_json(n)).but_for(id);
        let made = vec![Publication { broadcast, id: None }];
        it.core.mail(&mut it.out, Mail::ToChannel(id, ToChannel::Publish(made)));
        it.handles_mail();
        it.fans_out();
    };
    publish(&mut it, "1");
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    publish(&mut it, "2");
    let news = |n| format!(r#"[null,null,"t","news",{n}]"#);
    assert_eq!(it.receives(other), [news(1), news(2)]);
}

#[test]
fn handle_gets_an_error_when_congested() {
    let config = Config { outbound_bytes_max: 100, mailbox_bytes_max: 100, ..Config::default() };
    let it = TestShard::configured(config);
    let id = ChannelId { shard: 0, membership: 0, generation: 0 };
    let say = |bytes| {
        let payload = Payload::from_json("1".repeat(bytes));
        it.node.broadcast_by(id, "news", payload, Audience::All)
    };
    assert_eq!(say(51), Err(BroadcastError::TooLarge { bytes: 51, bytes_max: 50 }));
    assert_eq!((say(50), say(50)), (Ok(()), Err(BroadcastError::Congested)));
    it.node.discharge(0, it.node.charged(0));
    it.node.log().ended.push(0);
    assert_eq!((say(50), it.node.log().bytes[0]), (Ok(()), 0));
}

/// Counts its instances.
struct Work {
    left: Arc<AtomicUsize>,
    is_finished: bool,
}

impl Work {
    fn boxed(left: &Arc<AtomicUsize>, is_finished: bool) -> Box<dyn LinkedWork> {
        left.fetch_add(1, SeqCst);
        Box::new(Self { left: Arc::clone(left), is_finished })
    }
}

impl LinkedWork for Work {
    fn is_finished(&self) -> bool {
        self.is_finished
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.left.fetch_sub(1, SeqCst);
    }
}

/// However it ends, and however much of it there was.
#[test]
fn linked_work_ends_with_its_channel() {
    type End = fn(&mut TestShard, Key);
    let ends: [End; 3] = [
        |it, key| it.sends(key, r#"[1,9,"t","phx_leave",{}]"#),
        |it, key| it.sends(key, r#"[2,9,"t","phx_join",{}]"#),
        |it, key| it.disconnects(key),
    ];
    for end in ends {
        let left = Arc::new(AtomicUsize::new(0));
        let works = Arc::clone(&left);
        let (mut it, [key, other]) = TestShard::running(scripted(move |ctx, heard| match heard {
            ChannelCall::In("link", payload) => {
                let is_finished = payload.json() == Some("true");
                ctx.carry_out([Effect::Link(Work::boxed(&works, is_finished))]);
                Outcome::NoReply
            }
            other => standard(ctx, other),
        }))
        .members();
        it.sends(key, r#"[1,2,"t","link",false]"#);
        it.sends(other, r#"[1,2,"t","link",false]"#);
        for _ in 0..1000 {
            it.sends(key, r#"[1,2,"t","link",true]"#);
        }
        assert!(left.load(SeqCst) < 20, "what has ended is let go of");
        end(&mut it, key);
        assert_eq!(left.load(SeqCst), 1, "that of another");
        it.disconnects(other);
        assert_eq!(left.load(SeqCst), 0);
    }
}

/// There is no channel yet: effects for one are dropped, and counted.
#[test]
fn early_effects_of_a_join_function_are_counted() {
    let left = Arc::new(AtomicUsize::new(0));
    let works = Arc::clone(&left);
    let mut it = TestShard::of(user_socket(move |ctx, payload| {
        ctx.push("early", Payload::NULL);
        ctx.subscribe("u");
        ctx.carry_out([Effect::Link(Work::boxed(&works, false))]);
        ctx.broadcast("said", Payload::NULL);
        ctx.assign(7_u8);
        ctx.handle::<Scripted>().push("early", Payload::NULL);
        match payload.json() {
            Some("1") => Join::later(async { Join::error(Payload::NULL) }),
            Some("2") => crash(),
            _ => Join::error(Payload::NULL),
        }
    }));
    for payload in ["0", "1", "2"] {
        let key = it.opens(Wire::V2);
        it.sends(key, &format!(r#"[1,1,"t","phx_join",{payload}]"#));
        it.handles_mail();
        let counts = it.counts();
        assert!(counts.contains(&"errors_before_join +4".to_owned()), "{counts:?}");
        assert!(counts.contains(&"broadcasts +1".to_owned()), "{counts:?}");
        let assigned = it.out.peer(key).socket.state().and_then(|it| it.assigns.clone());
        assert_eq!(assigned.unwrap().downcast_ref(), Some(&7_u8));
        assert_eq!(left.load(SeqCst), 0);
    }
}

/// All channels of a socket read it, at once when it is assigned, and its id stays.
#[test]
fn assigns_belong_to_the_socket() {
    let mut it = TestShard::running(scripted(|ctx, heard| match heard {
        ChannelCall::In("assign", payload) => {
            ctx.assign(payload.json().unwrap_or_default().to_owned());
            Outcome::ok(Payload::from_json(ctx.assigns::<String>().unwrap().clone()))
        }
        ChannelCall::In("assigned", _) => {
            let kept = (ctx.assigns::<String>().cloned(), ctx.socket_id());
            Outcome::ok(&format!("{kept:?}"))
        }
        other => standard(ctx, other),
    }));
    let state = SocketState {
        id: Some("id".into()),
        assigns: Some(Arc::new(Bomb)),
        ..SocketState::default()
    };
    let key = it.opens_with(Wire::V2, state);
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    it.asks(key, r#"[2,2,"u","phx_join",{}]"#);
    it.sends(key, r#"[1,3,"t","assign",5]"#);
    assert_eq!(it.receives(key), [ok(1, 3, "t", "5")], "what was there panics as it goes");
    it.sends(key, r#"[2,4,"u","assigned",{}]"#);
    assert_eq!(it.receives(key), [ok(2, 4, "u", r#""(Some(\"5\"), Some(\"id\"))""#)]);
}

/// The very first listener, too: its name differs from that of a join function's channel.
#[test]
fn listeners_receive_broadcast_from_of_a_join_function() {
    let mut it = TestShard::of(user_socket(|ctx, _| {
        ctx.broadcast_from("comes", Payload::NULL);
        Join::error(Payload::NULL)
    }));
    let (notes, heard) = Notes::shared();
    let hear = Box::new(move |it: &Arc<Broadcast>| heard.add(it.event()));
    let listener = Listener { name: Listener::id(0, 0), on_broadcast: hear };
    it.core.mail(&mut it.out, Mail::Listen("t".into(), listener));
    let key = it.opens(Wire::V2);
    it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
    assert_eq!(notes.take(), ["comes"]);
}

#[test]
fn listeners_receive_their_topic_until_they_unsubscribe() {
    let (mut it, key, _) = test_shard();
    let heard = Notes::default();
    let listen = |it: &mut TestShard, topic: &str, number| {
        let notes = heard.clone();
        let hear = move |broadcast: &Arc<Broadcast>| {
            notes.add(format!("{number} {} {}", broadcast.topic(), broadcast.event()));
        };
        let listener = Listener { name: Listener::id(0, number), on_broadcast: Box::new(hear) };
        it.core.mail(&mut it.out, Mail::Listen(topic.into(), listener));
    };
    listen(&mut it, "t", 1);
    listen(&mut it, "t", 2);
    listen(&mut it, "nobody", 3);
    it.sends(key, r#"[1,2,"t","bcast_from",{}]"#);
    it.broadcasts("nobody", "news", "1");
    it.broadcasts("other", "news", "1");
    assert_eq!(heard.take(), ["1 t news", "2 t news", "3 nobody news"]);
    let from = Broadcast::new("t", "own", Payload::NULL).but_for(Listener::id(0, 1));
    it.node.broadcast(from).unwrap();
    it.handles_mail();
    it.fans_out();
    assert_eq!(heard.take(), ["2 t own"]);
    assert_eq!(it.receives(key).last().unwrap(), r#"[null,null,"t","own",null]"#);
    for (topic, number) in [("t", 2), ("t", 2), ("u", 9), ("nobody", 3)] {
        it.core.mail(&mut it.out, Mail::Unlisten(topic.into(), Listener::id(0, number)));
    }
    it.broadcasts("t", "last", "1");
    it.broadcasts("nobody", "last", "1");
    assert_eq!(heard.take(), ["1 t last"]);
    assert_eq!(it.core.fanout().listens(), 1);
    it.core.mail(&mut it.out, Mail::Unlisten("t".into(), Listener::id(0, 1)));
    assert_eq!(it.core.fanout().listens(), 0);
}
