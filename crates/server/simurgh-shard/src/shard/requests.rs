//! Orders and questions of back ends, on the shard.
//!
//! A pass over all records finds the sockets of a user, and topics. It takes slices of about 100 µs
//! in each millisecond, so that clients do not notice. All requests that arrive during a pass share
//! the next one, so a thousand requests cost two passes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use simurgh_core::{Mail, Socket, Stop, TICK, ToChannel, WallClock, nanoseconds, until};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};
use simurgh_socket::{identity_of, user_of, void_grants};

use super::{Io, Shard};
use crate::connection_id::ConnectionId;
use crate::mail::order::{Counted, Order, SocketRef};
use crate::mail::question::{Answered, ConnectionInfo, ConnectionsOf, Found, Question};

/// Longest slice of a pass, and the time between two slices.
const SLICE: Duration = Duration::from_micros(100);
const SLICE_EVERY: Duration = Duration::from_millis(1);
/// Records between two reads of the clock, and in one slice.
const STRIDE: usize = 64;
const SLICE_RECORDS: usize = 2048;
/// Sockets with one id up to which no pass is needed.
const AT_ONCE_MAX: usize = 256;
/// Requests that may wait for the next pass; further questions get no answer.
const WAITING_MAX: usize = 10_000;
/// Topics in a row.
const TOPICS_IN_ROW: usize = 100;

/// Requests that need a pass over all records.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Vec<Request>,
    pass: Option<Pass>,
    next_slice: u64,
}

enum Request {
    Order(Arc<Order>, Counted, u64),
    Question(Arc<Question>, Answered, Found),
}

impl Request {
    fn finish(self) {
        match self {
            Self::Order(_, counted, count) => counted(count),
            Self::Question(_, answered, found) => answered(found),
        }
    }
}

#[derive(Default)]
struct Pass {
    cursor: u32,
    /// Whether it has seen all sockets, and goes on with topics.
    is_at_topics: bool,
    requests: Vec<Request>,
    /// The requests by what they concern, as their indices.
    by_user: HashMap<Box<str>, Vec<usize>>,
    by_id: HashMap<Box<str>, Vec<usize>>,
    by_token: HashMap<Box<str>, Vec<usize>>,
    by_topic: Vec<(Box<str>, usize)>,
    for_topics: Vec<usize>,
}

impl Pass {
    fn new(requests: Vec<Request>) -> Self {
        let mut pass = Self::default();
        for (at, request) in requests.iter().enumerate() {
            match request {
                Request::Order(order, ..) => match order.of() {
                    SocketRef::User(user) => pass.note_user(user, at),
                    SocketRef::Id(id) => pass.by_id.entry(id.as_str().into()).or_default().push(at),
                    SocketRef::Token(id) => {
                        pass.by_token.entry(id.as_str().into()).or_default().push(at);
                    }
                    SocketRef::Connection(_) => {}
                },
                Request::Question(question, ..) => match &**question {
                    Question::Online { users } => {
                        users.iter().for_each(|user| pass.note_user(user, at));
                    }
                    Question::Connections { of: ConnectionsOf::User(user), .. } => {
                        pass.note_user(user, at);
                    }
                    Question::Connections { of: ConnectionsOf::Topic(topic), .. } => {
                        pass.by_topic.push((topic.as_str().into(), at));
                    }
                    Question::Topics { .. } => pass.for_topics.push(at),
                    Question::Counts => {}
                },
            }
        }
        pass.is_at_topics = pass.by_user.is_empty()
            && pass.by_id.is_empty()
            && pass.by_token.is_empty()
            && pass.by_topic.is_empty();
        pass.requests = requests;
        pass
    }

    fn note_user(&mut self, user: &str, at: usize) {
        let requests = self.by_user.entry(user.into()).or_default();
        // A question may name a user twice.
        if requests.last() != Some(&at) {
            requests.push(at);
        }
    }

    /// The requests that concern a socket by its user, its id or its token.
    fn requests_of(&self, socket: &Socket) -> Vec<usize> {
        let Some(state) = socket.state() else { return Vec::new() };
        let by_user = user_of(state).and_then(|user| self.by_user.get(user));
        let by_id = state.id.as_deref().and_then(|id| self.by_id.get(id));
        let by_token = identity_of(state).and_then(|it| self.by_token.get(it.token_id?));
        by_user.into_iter().chain(by_id).chain(by_token).flatten().copied().collect()
    }
}

impl Shard {
    /// Carries out an order, or has the next pass do so.
    pub(crate) fn take_order(&mut self, io: &mut Io, order: Arc<Order>, counted: Counted) {
        let keys = match order.of() {
            SocketRef::Connection(connection) => {
                let id = connection.parse::<ConnectionId>().ok();
                let is_here =
                    |it: &ConnectionId| it.node == self.server.id && it.shard == self.index;
                Some(id.filter(is_here).map(|it| it.key).into_iter().collect())
            }
            SocketRef::Id(id) => self.few_with_id(io, id),
            SocketRef::User(_) | SocketRef::Token(_) => None,
        };
        let Some(keys) = keys else {
            let requests = self.requests.get_or_insert_default();
            return requests.waiting.push(Request::Order(order, counted, 0));
        };
        let count = keys.into_iter().filter(|key| self.obey(io, *key, &order)).count();
        counted(count as u64);
    }

    /// Answers a question, or has the next pass do so.
    pub(crate) fn take_question(&mut self, question: Arc<Question>, answered: Answered) {
        let mut found = Found::default();
        if matches!(*question, Question::Counts) {
            found.counts.connections = self.metrics.sockets.value();
            found.counts.channels = self.metrics.channels.value();
            return answered(found);
        }
        let requests = self.requests.get_or_insert_default();
        if requests.waiting.len() < WAITING_MAX {
            requests.waiting.push(Request::Question(question, answered, found));
        }
    }

    /// The sockets with an id; `None` if there are many.
    fn few_with_id(&self, io: &Io, id: &str) -> Option<Vec<Key>> {
        let Some(topic) = self.core.find_topic(id) else { return Some(Vec::new()) };
        let mut keys: Vec<Key> = self.core.members(topic).take(AT_ONCE_MAX + 1).collect();
        if keys.len() > AT_ONCE_MAX {
            return None;
        }
        // Members of a topic of that name are not meant.
        keys.retain(|key| {
            let state = io.conn_ref(*key).and_then(|conn| conn.socket.state());
            state.is_some_and(|state| state.id.as_deref() == Some(id))
        });
        // A socket may also have joined a topic with the name of its id.
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// Continues a pass for one slice; returns when it has to run again.
    pub(crate) fn work_on_requests(&mut self, io: &mut Io) -> Next {
        let Some(mut requests) = self.requests.take() else { return Next::Idle };
        let began = io.clock_ns();
        if began < requests.next_slice {
            let wait = until(requests.next_slice, began);
            self.requests = Some(requests);
            return Next::After(wait);
        }
        let pass = requests.pass.take();
        let mut pass = pass.unwrap_or_else(|| Pass::new(std::mem::take(&mut requests.waiting)));
        if self.continue_pass(io, &mut pass, began) {
            pass.requests.into_iter().for_each(Request::finish);
            if requests.waiting.is_empty() {
                return Next::Idle;
            }
        } else {
            requests.pass = Some(pass);
        }
        requests.next_slice = began + nanoseconds(SLICE_EVERY);
        self.requests = Some(requests);
        Next::After(SLICE_EVERY)
    }

    /// Returns whether it has seen all records.
    fn continue_pass(&mut self, io: &mut Io, pass: &mut Pass, began: u64) -> bool {
        for _ in 0..SLICE_RECORDS / STRIDE {
            if pass.is_at_topics {
                if self.look_at_topics(pass) {
                    return true;
                }
            } else {
                pass.is_at_topics = self.look_at_sockets(io, pass);
            }
            if until(io.clock_ns(), began) >= SLICE {
                break;
            }
        }
        false
    }

    /// Returns whether these were the last.
    fn look_at_sockets(&mut self, io: &mut Io, pass: &mut Pass) -> bool {
        let mut keys = Vec::with_capacity(STRIDE);
        io.sweep(&mut pass.cursor, STRIDE, |_, _| true, &mut keys);
        for key in keys {
            let Some(socket) = io.conn_ref(key).map(|conn| &conn.socket) else { continue };
            if !socket.is_open() {
                continue;
            }
            let mut requests = pass.requests_of(socket);
            let joined = pass.by_topic.iter();
            let joined = joined.filter(|it| self.core.channel_on(key, socket, &it.0).is_some());
            requests.extend(joined.map(|it| it.1));
            for at in requests {
                match pass.requests.get_mut(at) {
                    Some(Request::Order(order, _, count)) => {
                        *count += u64::from(self.obey(io, key, order));
                    }
                    Some(Request::Question(question, _, found)) => {
                        self.find(io, key, question, found);
                    }
                    None => {}
                }
            }
        }
        pass.cursor == 0
    }

    /// Returns whether these were the last.
    fn look_at_topics(&mut self, pass: &mut Pass) -> bool {
        if pass.for_topics.is_empty() {
            return true;
        }
        let mut seen = Vec::with_capacity(STRIDE);
        self.core.visit_topics(&mut pass.cursor, STRIDE, false, |id, topic| {
            // A topic that only waits to leave the fan-out has no members.
            if topic.members > 0 {
                seen.push(id);
            }
        });
        for id in seen {
            let Some(topic) = self.core.topic(id).filter(|_| self.core.has_channels(id)) else {
                continue;
            };
            for at in &pass.for_topics {
                if let Some(Request::Question(question, _, found)) = pass.requests.get_mut(*at)
                    && let Question::Topics { prefix, after, .. } = &**question
                    && topic.name.starts_with(&**prefix)
                    && topic.name > after.as_str()
                {
                    found.add_topic(question, topic.name, topic.members as u64);
                }
            }
        }
        pass.cursor == 0
    }

    /// Adds a socket to the answer of a question that concerns it.
    fn find(&self, io: &Io, key: Key, question: &Question, found: &mut Found) {
        let Some(socket) = io.conn_ref(key).map(|conn| &conn.socket) else { return };
        let user = socket.state().and_then(user_of);
        let (age, _) = socket.age_ticks(io.now().tick);
        let since = (self.server.unix_ms(0) / 1000).saturating_sub((TICK * age).as_secs());
        match question {
            Question::Online { .. } => {
                if let Some(user) = user {
                    found.add_user(user, since);
                }
            }
            Question::Connections { after, .. } => {
                let id = ConnectionId { node: self.server.id, shard: self.index, key }.to_string();
                if id <= *after || !found.has_place(question, &id) {
                    return;
                }
                let user_socket = self.server.user_sockets.get(usize::from(socket.user_socket()));
                let topics = self.core.topics_of(socket).take(TOPICS_IN_ROW);
                let info = ConnectionInfo {
                    node: self.server.config.node_name.clone(),
                    user: user.map(str::to_owned),
                    id: socket.state().and_then(|state| state.id.as_deref()).map(str::to_owned),
                    peer: io.peer_addr(key).ok().map(|peer| peer.ip().to_string()),
                    path: user_socket.map(|it| it.parts().path.clone()).unwrap_or_default(),
                    since,
                    topics: topics.map(|topic| (*topic).to_owned()).collect(),
                };
                found.add_connection(question, id, info);
            }
            Question::Topics { .. } | Question::Counts => {}
        }
    }

    fn close(&mut self, io: &mut Io, key: Key) {
        let (core, mut out) = self.parts(io);
        core.close(&mut out, key, CloseCode::GOING_AWAY);
    }

    /// Does to a socket what is ordered; returns whether it concerned the socket.
    fn obey(&mut self, io: &mut Io, key: Key, order: &Order) -> bool {
        let Some(socket) = io.conn_ref(key).map(|conn| &conn.socket) else { return false };
        if !socket.is_open() {
            return false;
        }
        let (topic, what) = match order {
            Order::Disconnect { of, except, keep_grants } => {
                let id = ConnectionId { node: self.server.id, shard: self.index, key };
                let is_excepted = !except.is_empty() && except.contains(&id.to_string());
                if !is_excepted {
                    // Those of a user or an id are void on each node already.
                    if let (SocketRef::Connection(_), Some(state)) = (of, socket.state())
                        && !keep_grants
                    {
                        void_grants(state);
                    }
                    self.close(io, key);
                }
                return !is_excepted;
            }
            Order::Access(rule) => {
                let identity = socket.state().and_then(identity_of);
                let is_meant = identity.is_some_and(|identity| rule.closes(identity.issued_at));
                if is_meant {
                    let (core, mut out) = self.parts(io);
                    core.block(&mut out, key);
                }
                return is_meant;
            }
            Order::Kick { topic, rejoin, .. } => {
                // A client joins again after phx_error, and not after phx_close.
                let stop = if *rejoin { Stop::Kicked } else { Stop::Shutdown };
                (topic, ToChannel::Stop(stop))
            }
            Order::Push { topic, event, payload, .. } => {
                let payload = Payload::from_json(payload.get().to_owned());
                (topic, ToChannel::Push(event.as_str().into(), payload))
            }
        };
        let Some(channel) = self.core.channel_on(key, socket, topic) else { return false };
        let (core, mut out) = self.parts(io);
        core.mail(&mut out, Mail::ToChannel(channel, what));
        true
    }
}
