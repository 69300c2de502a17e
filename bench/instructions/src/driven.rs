//! The work of a shard, through driven sockets: a whole server without a network.

use std::time::{Duration, Instant};

use simurgh::driver::{Counts, Driver, Options, SocketId};
use simurgh::supabase::Settings;
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserBroadcast,
    UserSocket, json,
};
use simurgh_proto::serializer::Serializer;

use crate::item::{Item, give_up};

/// Each message of a driven socket: from the frame to the answer's bytes.
const MESSAGE: &[&str] = &["*shard*Shard*carry_out*"];
/// Each slice of a fan-out.
const FAN_OUT: &[&str] = &["*fanout*Fanout*go_on*"];
/// From the sender's frame to those of all receivers, without the client's work.
const WHOLE_BROADCAST: &[&str] = &["*websocket*frames*Shard*frames", FAN_OUT[0]];

pub(crate) const ITEMS: &[Item] = &[
    Item { name: "join-v2", times: 1000, inside: MESSAGE, run: |n| join(n, V2) },
    Item { name: "join-values", times: 1000, inside: MESSAGE, run: |n| join(n, None) },
    Item { name: "heartbeat-v2", times: 1000, inside: MESSAGE, run: heartbeat },
    Item { name: "push-reply-v2", times: 16_000, inside: MESSAGE, run: answers },
    Item { name: "join-push-leave-v2", times: 1000, inside: MESSAGE, run: join_push_leave },
    Item { name: "broadcast-v2-1000", times: 5000, inside: FAN_OUT, run: |n| broadcasts(n, V2) },
    Item { name: "broadcast-v2-10000", times: 50_000, inside: FAN_OUT, run: |n| broadcasts(n, V2) },
    Item {
        name: "broadcast-binary-v2",
        times: MESSAGES,
        inside: WHOLE_BROADCAST,
        run: |n| broadcast(n, RAW),
    },
    Item {
        name: "supabase-broadcast-v2",
        times: MESSAGES,
        inside: WHOLE_BROADCAST,
        run: |n| broadcast(n, USER),
    },
    Item { name: "broadcast-values-10000", times: 50_000, inside: FAN_OUT, run: values },
];

const V2: Option<Serializer> = Some(Serializer::V2);
const ROOM: &str = "rooms:lobby";
/// Topics of the same length, so that they can be compared.
const PLAIN: &str = "channels:lobby";
const REALTIME: &str = "realtime:lobby";
const MESSAGES: u32 = 1000;
const AUDIENCE: u32 = 51;
const BROADCASTS: u32 = 5;
/// Pushes of each socket that are counted together, with one join.
const PUSHES: u32 = 16;
/// Long, because callgrind makes a second of a few dozen milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct Room;

impl ShardChannel for Room {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        Outcome::ok(payload.into_owned())
    }
}

/// A channel that broadcasts what it gets.
struct PassesOn;

impl ShardChannel for PassesOn {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        ctx.broadcast_from(event, payload.into_owned());
        Outcome::NoReply
    }
}

struct Server {
    endpoint: Endpoint,
    driver: Driver,
    sockets: Vec<SocketId>,
}

impl Server {
    fn start(sockets: u32, serializer: Option<Serializer>) -> Self {
        let user_socket = UserSocket::new("/socket")
            .channel(ChannelRoute::on_shard("rooms:*", |_, _| Join::ok(Room)))
            .channel(ChannelRoute::on_shard("channels:*", |_, _| Join::ok(PassesOn)))
            .channel(ChannelRoute::supabase("realtime:*", Settings::default()));
        let server = Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1);
        let endpoint = server.start_local().unwrap_or_else(|error| give_up(&error));
        let mut options = Options::default();
        options.serializer = serializer;
        options.counts_only = true;
        let mut driver = Driver::with(&endpoint, options);
        let opened = driver.connect_many(sockets as usize, "/socket", json!({}));
        let opened = opened.unwrap_or_else(|error| give_up(&error));
        let sockets: Vec<SocketId> = opened.into_iter().flatten().collect();
        Self { endpoint, driver, sockets }
    }

    fn join(&mut self) {
        self.join_as(ROOM, json!({"user": "Zoë"}));
    }

    fn join_as(&mut self, topic: &str, payload: impl Into<Payload<'static>>) {
        let joined = self.driver.join_many(&self.sockets, topic, payload);
        joined.unwrap_or_else(|error| give_up(&error));
        self.wait(|counts| counts.ok);
    }

    fn push(&mut self, topic: &str, event: &str, payload: Payload<'static>) {
        let pushed = self.driver.push_many(&self.sockets, topic, event, payload);
        pushed.unwrap_or_else(|error| give_up(&error));
    }

    /// Waits until the event was received as often as there are sockets.
    fn wait(&self, count: fn(&Counts) -> u64) {
        self.wait_for(count, 1);
    }

    fn wait_for(&self, count: fn(&Counts) -> u64, each: u32) {
        self.wait_until(count, self.sockets.len() as u64 * u64::from(each));
    }

    fn wait_until(&self, count: fn(&Counts) -> u64, wanted: u64) {
        let until = Instant::now() + WAIT_MAX;
        while count(&self.driver.counts()) < wanted {
            if Instant::now() > until {
                give_up(&format!("{:?}, {wanted} wanted", self.driver.counts()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn join(times: u32, serializer: Option<Serializer>) {
    Server::start(times, serializer).join();
}

fn heartbeat(times: u32) {
    let mut server = Server::start(times, V2);
    server.push("phoenix", "heartbeat", Payload::EMPTY_OBJECT);
    server.wait(|counts| counts.ok);
}

fn answers(times: u32) {
    let mut server = Server::start(times / PUSHES, V2);
    server.join();
    for push in 1..=PUSHES {
        server.push(ROOM, "new:msg", json!({"body": "said"}).into());
        server.wait_for(|counts| counts.ok, 1 + push);
    }
}

fn join_push_leave(times: u32) {
    let mut server = Server::start(times, V2);
    server.join();
    let payload = json!({"body": "Said \"so\",\nand then:", "at": 1_700_000_000});
    server.push(ROOM, "new:msg", payload.into());
    server.wait_for(|counts| counts.ok, 2);
    let left = server.driver.leave_many(&server.sockets, ROOM);
    left.unwrap_or_else(|error| give_up(&error));
    server.wait(|counts| counts.channels_closed);
}

fn broadcasts(times: u32, serializer: Option<Serializer>) {
    let mut server = Server::start(times / BROADCASTS, serializer);
    server.join();
    let pubsub = server.endpoint.pubsub();
    for heard in 1..=BROADCASTS {
        let body = "x".repeat(64);
        let sent = pubsub.broadcast(ROOM, "new:msg", json!({"body": body}));
        sent.unwrap_or_else(|error| give_up(&error));
        server.wait_for(|counts| counts.messages, heard);
    }
}

/// The data of a binary message, plain and as Supabase's clients send it: JSON.
type Push = (&'static str, fn(&str) -> Payload<'static>);

const RAW: Push = (PLAIN, |text| Payload::from_bytes(text.as_bytes().to_vec()));
const USER: Push = (REALTIME, |text| match UserBroadcast::json("cursor", text) {
    Ok(broadcast) => Payload::User(broadcast),
    Err(error) => give_up(&error),
});

/// Binary broadcasts of a member, one after the other: from its frame to those of all members.
fn broadcast(times: u32, (topic, payload): Push) {
    let mut server = Server::start(AUDIENCE, V2);
    server.join_as(topic, json!({}));
    let text = format!(r#"{{"body":"{}"}}"#, "x".repeat(64));
    let sender: Vec<SocketId> = server.sockets.first().copied().into_iter().collect();
    for heard in 1..=times {
        let pushed = server.driver.push_many(&sender, topic, "broadcast", payload(&text));
        pushed.unwrap_or_else(|error| give_up(&error));
        let wanted = u64::from(heard) * u64::from(AUDIENCE - 1);
        server.wait_until(|counts| counts.messages, wanted);
    }
}

fn values(times: u32) {
    broadcasts(times, None);
}
