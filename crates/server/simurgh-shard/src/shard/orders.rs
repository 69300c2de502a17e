//! Orders of back ends, carried out on the shard.
//!
//! The sockets of a user are found by a pass over all records, in slices of about 100 µs in each
//! millisecond, so that clients do not notice. All orders that arrive during a pass share the next
//! one, so a thousand orders cost two passes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use simurgh_core::{Mail, Socket, Stop, ToChannel, until};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::{Key, Next};
use simurgh_socket::{user_of, void_grants};

use super::{Io, Shard};
use crate::connection_id::ConnectionId;
use crate::mail::order::{Counted, Order, SocketRef};

/// Longest slice of a pass, and the time between two slices.
const SLICE: Duration = Duration::from_micros(100);
const SLICE_EVERY: Duration = Duration::from_millis(1);
/// Records between two reads of the clock, and in one slice.
const STRIDE: usize = 64;
const SLICE_RECORDS: usize = 2048;
/// Sockets with one id up to which no pass is needed.
const AT_ONCE_MAX: usize = 256;

/// Orders that need a pass over all records.
#[derive(Default)]
pub(crate) struct Orders {
    waiting: Vec<Pending>,
    pass: Option<Pass>,
    next_slice: u64,
}

struct Pending {
    order: Arc<Order>,
    counted: Counted,
    count: u64,
}

#[derive(Default)]
struct Pass {
    cursor: u32,
    orders: Vec<Pending>,
    by_user: HashMap<Box<str>, Vec<usize>>,
    by_id: HashMap<Box<str>, Vec<usize>>,
}

impl Pass {
    fn new(orders: Vec<Pending>) -> Self {
        let mut pass = Self::default();
        for (at, pending) in orders.iter().enumerate() {
            match pending.order.of() {
                SocketRef::User(user) => {
                    pass.by_user.entry(user.as_str().into()).or_default().push(at);
                }
                SocketRef::Id(id) => pass.by_id.entry(id.as_str().into()).or_default().push(at),
                SocketRef::Connection(_) => {}
            }
        }
        pass.orders = orders;
        pass
    }

    /// The orders for a socket, by their indices.
    fn orders_of(&self, socket: &Socket) -> Vec<usize> {
        let Some(state) = socket.state().filter(|_| socket.is_open()) else { return Vec::new() };
        let by_user = user_of(state).and_then(|user| self.by_user.get(user));
        let by_id = state.id.as_deref().and_then(|id| self.by_id.get(id));
        by_user.into_iter().chain(by_id).flatten().copied().collect()
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
            SocketRef::User(_) => None,
        };
        let Some(keys) = keys else {
            let orders = self.orders.get_or_insert_default();
            return orders.waiting.push(Pending { order, counted, count: 0 });
        };
        let count = keys.into_iter().filter(|key| self.obey(io, *key, &order)).count();
        counted(count as u64);
    }

    /// The sockets with an id; `None` if there are many.
    fn few_with_id(&self, io: &Io, id: &str) -> Option<Vec<Key>> {
        let Some(topic) = self.core.find_topic(id) else { return Some(Vec::new()) };
        let members: Vec<Key> = self.core.members(topic).take(AT_ONCE_MAX + 1).collect();
        if members.len() > AT_ONCE_MAX {
            return None;
        }
        // Members of a topic of that name are not meant.
        let has_id = |key: &Key| {
            let state = io.conn_ref(*key).and_then(|conn| conn.socket.state());
            state.is_some_and(|state| state.id.as_deref() == Some(id))
        };
        let mut keys: Vec<Key> = members.into_iter().filter(has_id).collect();
        // A socket may also have joined a topic with the name of its id.
        keys.sort_unstable();
        keys.dedup();
        Some(keys)
    }

    /// Continues a pass for one slice; returns when it has to run again.
    pub(crate) fn work_on_orders(&mut self, io: &mut Io) -> Next {
        let Some(mut orders) = self.orders.take() else { return Next::Idle };
        let began = io.clock_ns();
        if began < orders.next_slice {
            let wait = until(orders.next_slice, began);
            self.orders = Some(orders);
            return Next::After(wait);
        }
        let mut pass =
            orders.pass.take().unwrap_or_else(|| Pass::new(std::mem::take(&mut orders.waiting)));
        let is_over = self.continue_pass(io, &mut pass, began);
        if is_over {
            pass.orders.into_iter().for_each(|it| (it.counted)(it.count));
            if orders.waiting.is_empty() {
                return Next::Idle;
            }
        } else {
            orders.pass = Some(pass);
        }
        orders.next_slice = began + SLICE_EVERY.as_nanos() as u64;
        self.orders = Some(orders);
        Next::After(SLICE_EVERY)
    }

    /// Returns whether it has seen all records.
    fn continue_pass(&mut self, io: &mut Io, pass: &mut Pass, began: u64) -> bool {
        let mut keys = Vec::with_capacity(STRIDE);
        for _ in 0..SLICE_RECORDS / STRIDE {
            keys.clear();
            io.sweep(&mut pass.cursor, STRIDE, |_, _| true, &mut keys);
            for key in &keys {
                let found = io.conn_ref(*key).map(|conn| pass.orders_of(&conn.socket));
                for at in found.into_iter().flatten() {
                    if let Some(pending) = pass.orders.get_mut(at)
                        && self.obey(io, *key, &pending.order)
                    {
                        pending.count += 1;
                    }
                }
            }
            if pass.cursor == 0 {
                return true;
            }
            if until(io.clock_ns(), began) >= SLICE {
                break;
            }
        }
        false
    }

    /// Does to a socket what is ordered; returns whether it concerned the socket.
    fn obey(&mut self, io: &mut Io, key: Key, order: &Order) -> bool {
        let Some(socket) = io.conn_ref(key).map(|conn| &conn.socket) else { return false };
        if !socket.is_open() {
            return false;
        }
        let (topic, what) = match order {
            Order::Disconnect { except, keep_grants, .. } => {
                let id = ConnectionId { node: self.server.id, shard: self.index, key };
                let is_excepted = !except.is_empty() && except.contains(&id.to_string());
                if !is_excepted {
                    if let Some(state) = socket.state().filter(|_| !keep_grants) {
                        void_grants(state);
                    }
                    let (core, mut out) = self.parts(io);
                    core.close(&mut out, key, CloseCode::GOING_AWAY);
                }
                return !is_excepted;
            }
            Order::Kick { topic, rejoin, .. } => {
                // A client joins again after phx_error, and not after phx_close.
                let stop = if *rejoin { Stop::Expired } else { Stop::Shutdown };
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
