//! Sockets without a network: for tests of an application's channels, and for load.
//!
//! A driven socket is a socket of its [`Endpoint`] like any other: it lives on a shard, passes the
//! connect function, joins the same channels, receives the same broadcasts, and counts in the same
//! metrics. Only its transport is this module instead of a WebSocket. Everything that driven
//! sockets receive arrives at the one receiver of their [`Driver`], as values that name the socket.
//!
//! ```
//! use simurgh::driver::Driver;
//! use simurgh::{ChannelRoute, Endpoint, Join, Outcome, Payload, UserSocket, json};
//! use simurgh::{ShardChannel, ShardContext};
//!
//! struct Echo;
//!
//! impl ShardChannel for Echo {
//!     fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, data: Payload<'_>) -> Outcome {
//!         Outcome::ok(data.into_owned())
//!     }
//! }
//!
//! let echo = ChannelRoute::on_shard("echo:*", |_, _| Join::ok(Echo));
//! let user_socket = UserSocket::new("/socket").channel(echo);
//! let endpoint = Endpoint::builder().socket(user_socket).start_local()?;
//! let mut driver = Driver::start(&endpoint);
//! let socket = driver.connect("/socket", json!({"token": "secret"}))?;
//! driver.join(socket, "echo:1", json!({}))?;
//! let said = driver.push(socket, "echo:1", "shout", json!({"loud": true}))?;
//! assert_eq!(driver.reply(said)?.response, json!({"loud": true}).into());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Values or frames
//! By default nothing is serialized: a channel receives the message as it was given, and all
//! receivers share one value of a broadcast. With [`Options::serializer`] everything passes that
//! serializer and WebSocket frames in both directions, on the shard, as with a client: the
//! difference is the cost of the codec. Sockets of a [plain user socket](crate::UserSocket::plain)
//! always pass frames.
//!
//! # Bounds
//! Requests to sockets are charged to the mailboxes of their shards, like broadcasts; beyond
//! [`Config::mailbox_bytes_max`](crate::Config) they fail with [`DriverError::Congested`]. Received
//! events wait until they are taken. Beyond [`Options::queue_bytes_max`] bytes, further ones are
//! dropped and counted ([`Counts::lost`]), because a socket without a network cannot be slow.
//! [`Counts`] counts all events, dropped or not; with [`Options::counts_only`] only the counts are
//! kept.
//!
//! # What differs from a client on a network
//! Driven sockets have no idle timeout, because no network can lose them. They need no descriptor,
//! and only [`Config::max_connections`](crate::Config) limits them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use simurgh_core::Kind;
use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::params;
use simurgh_proto::serializer::Serializer;
use simurgh_reactor::Key;

use crate::endpoint::Endpoint;

use simurgh_shard::mail::Mail;
pub use simurgh_shard::mail::driver::Counts;
use simurgh_shard::mail::driver::{
    Batch, Charge, ClientMessage, CommandKind, Connect, DriverCommand, EventQueue, EventSender,
};
pub use simurgh_shard::mail::driver_event::{
    DriverError, Event, MessageRef, Received, ReceivedReply, SocketId, What,
};
use simurgh_shard::server::Server;

/// How long [`Driver::reply`] and [`Driver::message`] wait.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Sockets that one message opens on a shard.
const OPENED_AT_ONCE: usize = 16 << 10;
/// Sockets that one message addresses.
const KEYS_AT_ONCE: usize = 16 << 10;

/// Drives sockets of one server. Dropping it closes them.
pub struct Driver {
    server: Arc<Server>,
    queue: Arc<EventQueue>,
    options: Options,
    inbox: Receiver<Batch>,
    batch: Batch,
    /// Events that were skipped while another was searched for, and their weight.
    skipped: VecDeque<(Event, usize)>,
    next_ref: u64,
    next_shard: usize,
}

/// Options of a [`Driver`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The serializer that everything passes, in WebSocket frames. Default `None`: values.
    pub serializer: Option<Serializer>,
    /// Counts events without keeping them. Default off.
    pub counts_only: bool,
    /// Bytes of events that may wait to be taken; further ones are dropped and counted. Default: 64
    /// MiB.
    pub queue_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { serializer: None, counts_only: false, queue_bytes_max: 64 << 20 }
    }
}

impl Driver {
    /// Drives sockets with the default [`Options`]: values, kept until they are taken.
    pub fn start(endpoint: &Endpoint) -> Self {
        Self::with(endpoint, Options::default())
    }

    /// Drives sockets with these options.
    pub fn with(endpoint: &Endpoint, options: Options) -> Self {
        let server = endpoint.handle().0;
        let shards = server.mailboxes.len();
        let queue = EventQueue::new(shards, options.queue_bytes_max, options.counts_only);
        let queue = Arc::new(queue);
        let (sender, inbox) = channel();
        let driver = Self {
            server,
            queue,
            options,
            inbox,
            batch: Batch::default(),
            skipped: VecDeque::new(),
            next_ref: 0,
            next_shard: 0,
        };
        for shard in 0..shards as u16 {
            let to_driver = EventSender::new(&driver.queue, &sender, shard);
            // The next request to a shard reports that it has ended.
            let _ = driver.ask(shard, CommandKind::Attach(to_driver));
        }
        driver
    }

    /// Opens a socket on the user socket at `path` (`/socket`, or a plain user socket's own path),
    /// and waits until the application has accepted it. `params` is an object; all its values
    /// arrive as strings, as those of a URL do. `null` means none.
    ///
    /// # Errors
    /// It was refused, or the server has ended.
    pub fn connect(&mut self, path: &str, params: Value) -> Result<SocketId, DriverError> {
        let mut opened = self.connect_many(1, path, params)?;
        opened.pop().unwrap_or(Err(DriverError::Ended))
    }

    /// Opens `count` sockets with the same params, spread over all shards, and waits until the
    /// application has accepted or refused ([`DriverError::Refused`]) each.
    ///
    /// # Errors
    /// Nothing is mounted at `path`, the server is congested, or it has ended; some sockets may be
    /// open by then.
    pub fn connect_many(
        &mut self,
        count: usize,
        path: &str,
        params: Value,
    ) -> Result<Vec<Result<SocketId, DriverError>>, DriverError> {
        let (user_socket, head) = self.request(path, &params)?;
        let (answer, answers) = channel();
        let shards = self.server.mailboxes.len().max(1);
        let first = self.next_shard;
        self.next_shard = (first + count) % shards;
        let mut shares: Vec<usize> = vec![count / shards; shards];
        for shard in 0..count % shards {
            if let Some(share) = shares.get_mut((first + shard) % shards) {
                *share += 1;
            }
        }
        for (shard, mut share) in shares.into_iter().enumerate() {
            while share > 0 {
                let some = share.min(OPENED_AT_ONCE);
                share -= some;
                let (head, answer) = (head.clone(), answer.clone());
                let values = self.options.serializer.is_none();
                let connect = Connect { head, user_socket, values, count: some, answer };
                self.ask(shard as u16, CommandKind::Connect(connect))?;
            }
        }
        drop(answer);
        let mut opened = Vec::with_capacity(count);
        while opened.len() < count {
            match answers.recv() {
                Ok(some) => opened.extend(some),
                // The shard has ended, or the connection closed before it was decided.
                Err(_) => opened.resize(count, Err(DriverError::Ended)),
            }
        }
        Ok(opened)
    }

    /// Joins a topic; the reply reports the result. A closed socket sends and receives nothing.
    ///
    /// # Errors
    /// [`DriverError::Congested`] or [`DriverError::Ended`], as for all requests to a socket.
    pub fn join(
        &mut self,
        socket: SocketId,
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, DriverError> {
        self.join_many(&[socket], topic, payload)
    }

    /// Joins the same topic with all these sockets. Errors as for [`join`](Self::join).
    pub fn join_many(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, DriverError> {
        self.say(sockets, topic, events::JOIN, payload.into())
    }

    /// Pushes an event to a channel. Errors as for [`join`](Self::join).
    pub fn push(
        &mut self,
        socket: SocketId,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, DriverError> {
        self.push_many(&[socket], topic, event, payload)
    }

    /// Pushes the same event with all these sockets. Errors as for [`join`](Self::join).
    pub fn push_many(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, DriverError> {
        self.say(sockets, topic, event, payload.into())
    }

    /// Leaves a topic. Errors as for [`join`](Self::join).
    pub fn leave(&mut self, socket: SocketId, topic: &str) -> Result<MessageRef, DriverError> {
        self.leave_many(&[socket], topic)
    }

    /// Leaves a topic with all these sockets. Errors as for [`join`](Self::join).
    pub fn leave_many(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
    ) -> Result<MessageRef, DriverError> {
        self.say(sockets, topic, events::LEAVE, Payload::EMPTY_OBJECT)
    }

    /// Closes a socket; its last event is [`What::Closed`]. Errors as for [`join`](Self::join).
    pub fn close(&mut self, socket: SocketId) -> Result<(), DriverError> {
        self.close_many(&[socket])
    }

    /// Closes all these sockets. Errors as for [`join`](Self::join).
    pub fn close_many(&mut self, sockets: &[SocketId]) -> Result<(), DriverError> {
        for (shard, keys) in self.by_shard(sockets) {
            self.ask(shard, CommandKind::Close(keys))?;
        }
        Ok(())
    }

    /// Waits until the shards have done all that was requested so far, and their events can be
    /// received; not for later answers of an application, nor for broadcasts in transit.
    ///
    /// # Errors
    /// The server has ended or is congested.
    pub fn settle(&mut self) -> Result<(), DriverError> {
        self.settle_within(Duration::MAX)
    }

    /// As [`settle`](Self::settle), but [`DriverError::TimedOut`] if a shard takes longer.
    #[doc(hidden)]
    pub fn settle_within(&mut self, time: Duration) -> Result<(), DriverError> {
        let (answer, answers) = channel();
        for shard in 0..self.server.mailboxes.len() as u16 {
            self.ask(shard, CommandKind::Settle(answer.clone()))?;
        }
        drop(answer);
        for _ in 0..self.server.mailboxes.len() {
            answers.recv_timeout(time).map_err(recv_error)?;
        }
        Ok(())
    }

    /// Takes the next event; `None` if there is none now.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.recv_within(Duration::ZERO).ok()
    }

    /// Waits this long for the next event; `None` if none came, or the server has ended.
    pub fn recv_timeout(&mut self, time: Duration) -> Option<Event> {
        self.recv_within(time).ok()
    }

    /// Waits for the next event; `None` once the server has ended.
    pub fn recv(&mut self) -> Option<Event> {
        loop {
            match self.recv_within(Duration::from_secs(3600)) {
                Ok(event) => return Some(event),
                Err(DriverError::TimedOut) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits up to 5 s for the reply to a message; other events stay in the queue. Fails if it does
    /// not come in time, or the server has ended.
    pub fn reply(&mut self, to: MessageRef) -> Result<ReceivedReply, DriverError> {
        self.find(|event| match &event.what {
            What::Reply(reply) => reply.to == Some(to),
            _ => false,
        })
        .and_then(|event| match event.what {
            What::Reply(reply) => Ok(reply),
            _ => Err(DriverError::TimedOut),
        })
    }

    /// Waits up to 5 s until a socket receives this event, in a push or a broadcast; other events
    /// stay in the queue. Fails as [`reply`](Self::reply) does.
    pub fn message(&mut self, socket: SocketId, event: &str) -> Result<Received, DriverError> {
        self.find(|heard| match &heard.what {
            What::Message(message) => heard.socket == socket && message.event() == event,
            _ => false,
        })
        .and_then(|heard| match heard.what {
            What::Message(message) => Ok(message),
            _ => Err(DriverError::TimedOut),
        })
    }

    /// How many events of each kind were received so far.
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    fn find(&mut self, is_it: impl Fn(&Event) -> bool) -> Result<Event, DriverError> {
        if let Some(at) = self.skipped.iter().position(|(event, _)| is_it(event))
            && let Some((event, weight)) = self.skipped.remove(at)
        {
            self.queue.taken(weight);
            return Ok(event);
        }
        let until = Instant::now() + WAIT_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (event, weight) = self.next(left)?;
            if is_it(&event) {
                self.queue.taken(weight);
                return Ok(event);
            }
            self.skipped.push_back((event, weight));
        }
    }

    fn recv_within(&mut self, time: Duration) -> Result<Event, DriverError> {
        let (event, weight) = match self.skipped.pop_front() {
            Some(skipped) => skipped,
            None => self.next(time)?,
        };
        self.queue.taken(weight);
        Ok(event)
    }

    fn next(&mut self, time: Duration) -> Result<(Event, usize), DriverError> {
        loop {
            if let Some(event) = self.batch.next() {
                return Ok(event);
            }
            self.batch = self.inbox.recv_timeout(time).map_err(recv_error)?;
        }
    }

    fn say(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<MessageRef, DriverError> {
        self.next_ref += 1;
        let name = MessageRef(self.next_ref);
        let msg_ref = name.write();
        let join_ref = if event == events::JOIN { msg_ref.clone() } else { Ref::Null };
        let (topic, event) = (topic.into(), event.into());
        let sent = Arc::new(ClientMessage { join_ref, msg_ref, topic, event, payload });
        for (shard, keys) in self.by_shard(sockets) {
            self.ask(shard, CommandKind::Send(keys, Arc::clone(&sent)))?;
        }
        Ok(name)
    }

    /// In parts for one message each.
    fn by_shard(&self, sockets: &[SocketId]) -> Vec<(u16, Vec<Key>)> {
        if let [one] = sockets {
            return vec![(one.shard, vec![one.key])];
        }
        let mut shards: Vec<Vec<Key>> = vec![Vec::new(); self.server.mailboxes.len()];
        for id in sockets {
            if let Some(keys) = shards.get_mut(id.shard()) {
                keys.push(id.key);
            }
        }
        let parts = (0..).zip(&shards).flat_map(|(shard, keys)| {
            keys.chunks(KEYS_AT_ONCE).map(move |some| (shard, some.to_vec()))
        });
        parts.collect()
    }

    fn ask(&self, shard: u16, what: CommandKind) -> Result<(), DriverError> {
        let is_control = matches!(what, CommandKind::Attach(_) | CommandKind::Detach);
        let bytes = size_of::<DriverCommand>()
            + match &what {
                CommandKind::Send(keys, sent) => size_of_val(&**keys) + sent.weight(),
                CommandKind::Close(keys) => size_of_val(&**keys),
                CommandKind::Connect(connect) => connect.head.len(),
                CommandKind::Attach(_) | CommandKind::Settle(_) | CommandKind::Detach => 0,
            };
        let (server, at) = (&self.server, usize::from(shard));
        let there = server.mailboxes.get(at).zip(server.ended.get(at));
        let Some((mailbox, _)) = there.filter(|(_, ended)| !ended.load(Relaxed)) else {
            return Err(DriverError::Ended);
        };
        // A command that exceeds the whole limit may pass when nothing else is queued.
        let under_way = mailbox.bytes();
        if !is_control && under_way != 0 && under_way.saturating_add(bytes) > mailbox.bytes_max() {
            return Err(DriverError::Congested);
        }
        let charge = Charge::new(mailbox, bytes);
        let command = DriverCommand { queue: Arc::clone(&self.queue), what, _charge: charge };
        match mailbox.post_anyway(Mail::Drive(Box::new(command))) {
            true => Ok(()),
            false => Err(DriverError::Ended),
        }
    }

    fn request(&self, path: &str, params: &Value) -> Result<(u8, Box<[u8]>), DriverError> {
        let refused = |status, body: &str| DriverError::Refused { status, body: body.to_owned() };
        if !path.starts_with('/') || path.contains(|it: char| it.is_ascii_control() || it == ' ') {
            return Err(refused(400, "a path must begin with / and must not contain spaces"));
        }
        let query = params::encode(params)
            .ok_or_else(|| refused(400, "params must be an object or null"))?;
        let channels = format!("{}/websocket", path.trim_end_matches('/'));
        let user_sockets = &self.server.now().user_sockets;
        let found = [channels.as_str(), path].into_iter().find_map(|path| {
            let at = user_sockets.iter().position(|user_socket| user_socket.takes(path, true))?;
            Some((path, at, user_sockets.get(at)?))
        });
        let (path, at, user_socket) = found.ok_or_else(|| refused(404, ""))?;
        let vsn = match (&user_socket.parts().channels.kind, self.options.serializer) {
            (Kind::Plain { .. }, _) => "",
            (Kind::Channels(_), Some(Serializer::V1)) => "vsn=1.0.0&",
            (Kind::Channels(_), _) => "vsn=2.0.0&",
        };
        let head = format!("GET {path}?{vsn}{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        Ok((at as u8, head.into_bytes().into()))
    }
}

fn recv_error(error: RecvTimeoutError) -> DriverError {
    match error {
        RecvTimeoutError::Timeout => DriverError::TimedOut,
        RecvTimeoutError::Disconnected => DriverError::Ended,
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for shard in 0..self.server.mailboxes.len() as u16 {
            // A shard that has ended has already closed everything.
            let _ = self.ask(shard, CommandKind::Detach);
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("options", &self.options)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
