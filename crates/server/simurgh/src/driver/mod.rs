//! Sockets without a network: for tests of an application's channels, and for load.
//!
//! A driven socket is a socket of its [`Endpoint`] like any other. It lives on a shard, passes the
//! user socket's connect function, joins the same channels, receives the same broadcasts and is
//! counted by the same metrics; only its transport is this module instead of a WebSocket. What such
//! sockets receive arrives at the one receiver of their [`Driver`], as values that name the socket.
//!
//! ```
//! use simurgh::{Channel, Context, Endpoint, Join, UserSocket, Outcome, Payload, driver::Driver,
//! json};
//!
//! struct Echo;
//!
//! impl Channel for Echo {
//!     fn handle_in(&mut self, _: &mut Context<'_>, _: &str, payload: Payload<'_>) -> Outcome {
//!         Outcome::ok(payload.into_owned())
//!     }
//! }
//!
//! let user_socket = UserSocket::new("/socket").channel("echo:*", |_, _| Join::ok(Echo));
//! let endpoint = Endpoint::builder().socket(user_socket).start_local()?;
//! let mut driver = Driver::start(&endpoint);
//! let socket = driver.connect("/socket", json!({"token": "secret"}))?;
//! driver.join(socket, "echo:1", json!({}))?;
//! let said = driver.push(socket, "echo:1", "shout", json!({"loud": true}))?;
//! assert_eq!(driver.reply(said)?.response, json!({"loud": true}).into());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Values, or the whole way
//! By default nothing is serialized: a message goes to the channel as it was given, and a broadcast
//! is one shared value for all who receive it. With [`Options::serializer`] everything passes that
//! serializer and WebSocket frames in both directions, on the shard, as with a client: the codec's
//! share of the work can then be measured as the difference. Sockets of a
//! [plain user socket](crate::UserSocket::plain) always pass frames.
//!
//! # Bounds
//! What is asked of sockets is charged to the mailboxes of their shards, like broadcasts; beyond
//! [`Config::mailbox_bytes_max`](crate::Config) it is refused with [`Error::Congested`]. What
//! sockets received and nobody has taken yet is counted in bytes: beyond
//! [`Options::queue_bytes_max`] events are dropped and counted ([`Counts::lost`]), for a socket
//! without a network cannot be slow. [`Counts`] counts them all, dropped or not; with
//! [`Options::counts_only`] nothing is kept but the counts.
//!
//! # What differs from a client on a network
//! Driven sockets are not closed for being silent: there is no network that could lose them. They
//! need no descriptor, and no limit but [`Config::max_connections`](crate::Config) counts them.

mod queue;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use simurgh_core::Kind;
use simurgh_proto::message::{Payload, Ref, events};
use simurgh_proto::params;
use simurgh_proto::serializer::Serializer;
use simurgh_reactor::Key;

use crate::endpoint::Endpoint;

pub use simurgh_shard::mail::driver::Counts;
use simurgh_shard::mail::driver::{
    Batch, ClientMessage, CommandKind, Connect, EventQueue, EventSender, OpenBatch,
};
pub use simurgh_shard::mail::driver_event::{
    DriverError as Error, Event, MessageRef, Received, Reply, SocketId, What,
};
use simurgh_shard::server::Server;

/// How long [`Driver::reply`] and [`Driver::message`] wait.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Sockets that one message opens on a shard.
const OPENED_AT_ONCE: usize = 16 << 10;
/// Sockets that one message speaks to.
const KEYS_AT_ONCE: usize = 16 << 10;

/// Drives sockets of one server. Dropping it closes them.
pub struct Driver {
    server: Arc<Server>,
    queue: Arc<EventQueue>,
    options: Options,
    inbox: Receiver<Batch>,
    /// The batch that is being taken.
    batch: OpenBatch,
    /// Events that were passed over while another was looked for, and their weight.
    skipped: VecDeque<(Event, usize)>,
    next_ref: u64,
    next_shard: usize,
}

/// How sockets are driven.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// What everything passes on its way, as WebSocket frames. Default `None`: values.
    pub serializer: Option<Serializer>,
    /// Events are counted and not kept. Default off.
    pub counts_only: bool,
    /// Bytes of events that may wait to be taken; further ones are dropped and counted. Default
    /// 64 MiB.
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

    /// Drives sockets as `options` say.
    pub fn with(endpoint: &Endpoint, options: Options) -> Self {
        let server = endpoint.handle().0;
        let shards = server.mailboxes.len();
        let queue = EventQueue::new(shards, options.queue_bytes_max, options.counts_only);
        let queue = Arc::new(queue);
        let (sender, inbox) = channel();
        for shard in 0..shards as u16 {
            let to_driver = EventSender::new(&queue, &sender, shard);
            // A shard that has ended is noticed when something is asked of it.
            let _ = queue::post(&server, &queue, shard, CommandKind::Attach(to_driver));
        }
        Self {
            server,
            queue,
            options,
            inbox,
            batch: OpenBatch::default(),
            skipped: VecDeque::new(),
            next_ref: 0,
            next_shard: 0,
        }
    }

    /// Opens a socket on the user socket at `path` (`/socket`, or a plain user socket's own path),
    /// and waits until the application has let it in. `params` is an object; all its values arrive
    /// as strings, as those of a URL do. `null` stands for none.
    ///
    /// # Errors
    /// It was refused, or the server has ended.
    pub fn connect(&mut self, path: &str, params: Value) -> Result<SocketId, Error> {
        let mut opened = self.connect_many(1, path, params)?;
        opened.pop().unwrap_or(Err(Error::Ended))
    }

    /// Opens as many sockets with the same params, spread over all shards, and waits until the
    /// application has decided about each: let in or [`Error::Refused`].
    ///
    /// # Errors
    /// Nothing is mounted at `path`, too much is under way, or the server has ended; some sockets
    /// may be open by then.
    pub fn connect_many(
        &mut self,
        count: usize,
        path: &str,
        params: Value,
    ) -> Result<Vec<Result<SocketId, Error>>, Error> {
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
                // Who was to answer has gone: the shard, or a connection before it was decided.
                Err(_) => opened.resize(count, Err(Error::Ended)),
            }
        }
        Ok(opened)
    }

    /// Joins a topic; the reply tells whether it is joined.
    ///
    /// # Errors
    /// [`Error::Congested`] or [`Error::Ended`], here and wherever something is asked of a socket.
    /// A socket that is closed receives and says nothing.
    pub fn join(
        &mut self,
        socket: SocketId,
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, Error> {
        self.join_many(&[socket], topic, payload)
    }

    /// Joins the same topic with all these sockets.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn join_many(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, Error> {
        self.say(sockets, topic, events::JOIN, payload.into())
    }

    /// Pushes an event to a channel.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn push(
        &mut self,
        socket: SocketId,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, Error> {
        self.push_many(&[socket], topic, event, payload)
    }

    /// Pushes the same event with all these sockets.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn push_many(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<MessageRef, Error> {
        self.say(sockets, topic, event, payload.into())
    }

    /// Leaves a topic.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn leave(&mut self, socket: SocketId, topic: &str) -> Result<MessageRef, Error> {
        self.leave_many(&[socket], topic)
    }

    /// Leaves a topic with all these sockets.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn leave_many(&mut self, sockets: &[SocketId], topic: &str) -> Result<MessageRef, Error> {
        self.say(sockets, topic, events::LEAVE, Payload::EMPTY_OBJECT)
    }

    /// Closes a socket; it receives [`What::Closed`] as its last.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn close(&mut self, socket: SocketId) -> Result<(), Error> {
        self.close_many(&[socket])
    }

    /// Closes all these sockets.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn close_many(&mut self, sockets: &[SocketId]) -> Result<(), Error> {
        for (shard, keys) in self.by_shard(sockets) {
            self.ask(shard, CommandKind::Close(keys))?;
        }
        Ok(())
    }

    /// Waits until the shards have done all that was asked so far, and what they said to it is
    /// there to be received. Not waited for: what an application answers later, and broadcasts that
    /// are still on their way.
    ///
    /// # Errors
    /// The server has ended, or too much is under way.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.settle_within(Duration::MAX)
    }

    /// As [`settle`](Self::settle), but [`Error::TimedOut`] for a shard that takes longer.
    #[doc(hidden)]
    pub fn settle_within(&mut self, time: Duration) -> Result<(), Error> {
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

    /// What was received next; `None` if there is nothing now.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.recv_within(Duration::ZERO).ok()
    }

    /// What was received next, waiting for it for as long; `None` if nothing came, or the server
    /// has ended.
    pub fn recv_timeout(&mut self, time: Duration) -> Option<Event> {
        self.recv_within(time).ok()
    }

    /// What was received next, waiting for it until the server has ended.
    pub fn recv(&mut self) -> Option<Event> {
        loop {
            match self.recv_within(Duration::from_secs(3600)) {
                Ok(event) => return Some(event),
                Err(Error::TimedOut) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits up to 5 s for the reply to a message; what else is received meanwhile stays to be
    /// received.
    ///
    /// # Errors
    /// It did not come in time, or the server has ended.
    pub fn reply(&mut self, to: MessageRef) -> Result<Reply, Error> {
        self.find(|event| match &event.what {
            What::Reply(reply) => reply.to == Some(to),
            _ => false,
        })
        .and_then(|event| match event.what {
            What::Reply(reply) => Ok(reply),
            _ => Err(Error::TimedOut),
        })
    }

    /// Waits up to 5 s until a socket receives this event, in a push or a broadcast; what else is
    /// received meanwhile stays to be received.
    ///
    /// # Errors
    /// It did not come in time, or the server has ended.
    pub fn message(&mut self, socket: SocketId, event: &str) -> Result<Received, Error> {
        self.find(|heard| match &heard.what {
            What::Message(message) => heard.socket == socket && message.event() == event,
            _ => false,
        })
        .and_then(|heard| match heard.what {
            What::Message(message) => Ok(message),
            _ => Err(Error::TimedOut),
        })
    }

    /// How much was received so far of each sort.
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// The first event that `is_it`.
    fn find(&mut self, is_it: impl Fn(&Event) -> bool) -> Result<Event, Error> {
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

    fn recv_within(&mut self, time: Duration) -> Result<Event, Error> {
        let (event, weight) = match self.skipped.pop_front() {
            Some(skipped) => skipped,
            None => self.next(time)?,
        };
        self.queue.taken(weight);
        Ok(event)
    }

    /// The next event that was not passed over yet.
    fn next(&mut self, time: Duration) -> Result<(Event, usize), Error> {
        loop {
            if let Some(event) = self.batch.next() {
                return Ok(event);
            }
            let batch = self.inbox.recv_timeout(time).map_err(recv_error)?;
            self.batch = batch.into();
        }
    }

    fn say(
        &mut self,
        sockets: &[SocketId],
        topic: &str,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<MessageRef, Error> {
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

    /// The keys of these sockets by shard, in parts that one message takes.
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

    fn ask(&self, shard: u16, what: CommandKind) -> Result<(), Error> {
        queue::post(&self.server, &self.queue, shard, what)
    }

    /// The user socket at `path`, and the request that a client of it would make.
    fn request(&self, path: &str, params: &Value) -> Result<(u8, Box<[u8]>), Error> {
        let refused = |status, body: &str| Error::Refused { status, body: body.to_owned() };
        if !path.starts_with('/') || path.contains(|it: char| it.is_ascii_control() || it == ' ') {
            return Err(refused(400, "a path begins with / and holds no blank"));
        }
        let query =
            params::encode(params).ok_or_else(|| refused(400, "params are an object, or null"))?;
        let channels = format!("{}/websocket", path.trim_end_matches('/'));
        let user_sockets = &self.server.user_sockets;
        let found = [channels.as_str(), path].into_iter().find_map(|path| {
            let at = user_sockets.iter().position(|user_socket| user_socket.takes(path, true))?;
            Some((path, at, user_sockets.get(at)?))
        });
        let (path, at, user_socket) = found.ok_or_else(|| refused(404, ""))?;
        let vsn = match (&user_socket.channels.kind, self.options.serializer) {
            (Kind::Plain { .. }, _) => "",
            (Kind::Channels(_), Some(Serializer::V1)) => "vsn=1.0.0&",
            (Kind::Channels(_), _) => "vsn=2.0.0&",
        };
        let head = format!("GET {path}?{vsn}{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        Ok((at as u8, head.into_bytes().into()))
    }
}

/// Why a channel from the shards gave nothing.
fn recv_error(error: RecvTimeoutError) -> Error {
    match error {
        RecvTimeoutError::Timeout => Error::TimedOut,
        RecvTimeoutError::Disconnected => Error::Ended,
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for shard in 0..self.server.mailboxes.len() as u16 {
            // One that has ended has closed everything already.
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
