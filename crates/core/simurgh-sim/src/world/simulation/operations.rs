//! Operations on nodes from outside of them, the connections of clients, and long messages in
//! transit to be read away from their shard, and back.

use simurgh_core::Kind;

use super::*;

/// The user socket of clients, and that of clients without a serializer.
pub(super) const CHANNELS: u8 = 0;
const PLAIN: u8 = 1;

impl Simulation {
    pub(super) fn some_topic(&self, b: u16) -> u8 {
        let topics = &self.shared.plan.topics;
        let room = (usize::from(b / 32) % topics.rooms) as u8;
        match b % 32 {
            31 => topics.unmatched,
            29 | 30 => topics.over.unwrap_or(room),
            _ => room,
        }
    }

    pub(super) fn connect(&mut self, client: usize, slot: usize, c: u32) {
        let shared = Arc::clone(&self.shared);
        let (plan, local_ns) = (&shared.plan, self.local_ns(slot));
        let Some(running) = self.nodes[slot].as_mut().filter(|it| it.is_open()) else { return };
        let shard = (c >> 8) as usize % running.shards.len();
        let Shard { net, has_ended, .. } = &mut running.shards[shard];
        if self.clients[client].is_some() || *has_ended || net.is_deaf {
            return;
        }
        let wire = wire(plan, c);
        let user_socket = if wire == Wire::Plain { PLAIN } else { CHANNELS };
        let (start, first) = (running.start, running.node.first);
        let mut ledger = shared.ledger();
        let id = (c >> 4 & 7 < 2).then(|| plan.topics.id((c >> 20) as usize % IDS));
        let name = id.map(|id| plan.topics.name(id).into());
        let number = ledger.sessions.open(first + shard, client as u32, wire, id);
        let has_assigns = plan.app.reaches && c >> 28 & 1 == 0;
        let assigned = has_assigns.then(|| ledger.sessions.next_assigned());
        ledger.sessions.conns[number as usize].assigned = assigned;
        drop(ledger);
        let assigns = assigned.map(|number| {
            Arc::new(Assigned { number, _alive: Arc::clone(&shared.assigned) }) as Assigns
        });
        let may_poll = !plan.has_broker && plan.history.is_none() && wire.serializer().is_some();
        let polled_ns = (may_poll && c >> 25 & 7 == 0).then_some(self.clock_ns);
        let window = if polled_ns.is_some() { usize::MAX } else { plan.window };
        running.node.seats.fetch_add(1, Relaxed);
        net.now = Now::from_ns(net.now.ns.max(local_ns));
        let key = net.open(number, wire, user_socket, window);
        if let Some(peer) = net.peer_mut(key).filter(|_| polled_ns.is_some()) {
            peer.socket.transport = POLLED;
        }
        let line = Connection { slot, shard, key, number, wire, polled_ns, ..Default::default() };
        self.clients[client] = Some(line);
        let text = || format!("#{number} to shard {shard} of start {start}, {wire:?}, id {name:?}");
        shared.note(|| format!("client {client} connects as {}", text()));
        let has_time = plan.app.expires && c >> 29 & 1 == 0;
        let time = if has_time { lifetime(c.rotate_left(13)) } else { None };
        self.step(slot, shard, Input::Other, |core, net| {
            let mut ledger = shared.ledger();
            if wire == Wire::Plain {
                ledger.joins_plain(number);
            }
            if time.is_some() {
                ledger.lives_for(number, time);
            }
            drop(ledger);
            let time = time.filter(|_| !shared.faults.happens(Fault::Outstay));
            let lifetime = time.map(Lifetime::from);
            core.opened(net, key, SocketState { id: name, assigns, lifetime });
        });
    }

    pub(crate) fn vanish(&mut self, client: usize) {
        let Some(line) = self.clients[client].take() else { return };
        let mut ledger = self.shared.ledger();
        ledger.sessions.conns[line.number as usize].is_lost = true;
        ledger.disconnected(client as u32);
        ledger.note(|| format!("client {client} is gone"));
        drop(ledger);
        if let Some(shard) = self.shard(line.slot, line.shard) {
            shard.net.removals.push(line.key);
            shard.next_ns = 0;
        }
    }

    /// The number of a client's connection, its slot, shard and key.
    pub(super) fn line(&self, client: usize) -> Option<(u32, usize, usize, Key)> {
        let line = self.clients.get(client)?.as_ref()?;
        Some((line.number, line.slot, line.shard, line.key))
    }

    pub(super) fn publish(&mut self, slot: usize, topic: u8, c: u32) {
        let Some(running) = &self.nodes[slot] else { return };
        let (node, start) = (Arc::clone(&running.node), running.start);
        let app = &self.shared.plan.app;
        let mut ledger = self.shared.ledger();
        let event = EVENTS[c as usize % EVENTS.len()];
        let is_binary = app.binary > 0 && c >> 8 & 7 == 0;
        let pad = if app.long > 0 && c >> 12 & 3 == 0 { app.pad } else { 0 };
        let info = BroadcastInfo::new(usize::from(topic), start);
        let made = BroadcastInfo { event, is_binary, depth: 1, ..info };
        let (id, payload) = ledger.payload(made, c, pad);
        let leaves_out = app.reaches && c >> 20 & 3 == 0;
        let left_out = leaves_out.then(|| ledger.leave_out(id, c >> 22)).flatten();
        drop(ledger);
        let name = self.shared.plan.topics.name(topic).to_owned();
        let expected = node.may_broadcast(&name, payload.len());
        let broadcast = Broadcast::new(&*name, event, payload);
        let done = node.broadcast(match left_out {
            Some(left_out) => broadcast.but_for(left_out),
            None => broadcast,
        });
        let ledger = self.shared.ledger();
        if done != expected {
            ledger.fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        let is_said = ledger.broadcasts[id as usize].place.is_some();
        if self.shared.plan.has_broker && !ledger.is_kept(topic) && is_said != done.is_ok() {
            ledger.fail("own", format!("#{id} was made, and not said: {done:?}"));
        }
        ledger.note(|| format!("#{id} is published on {name:.20} of start {start}: {done:?}"));
    }

    /// Closes the sockets with an id, on all nodes; sometimes somebody waits for the outcome.
    pub(super) fn disconnect(&mut self, slot: usize, which: usize, c: u32) {
        let name = self.shared.plan.topics.name(self.shared.plan.topics.id(which)).to_owned();
        let Some(running) = self.nodes[slot].as_ref().filter(|it| !it.is_draining) else { return };
        let (node, by, has_broker) = (&running.node, running.start, self.shared.plan.has_broker);
        let waits = has_broker && c & 1 == 0;
        let mut ledger = self.shared.ledger();
        let others = (0..).zip(&ledger.starts).filter(|(start, _)| *start != by);
        let alive = others.filter(|(_, it)| it.is_alive).map(|it| it.0).collect();
        let peers = running.thread.node.cluster.peers();
        let known = peers.iter().filter_map(|it| ledger.start_of(it.id())).collect();
        let (id, at_ns, done) = (which % IDS, self.clock_ns, [by].into());
        let disconnect = Disconnect { id, by, at_ns, alive, known, done, waits };
        ledger.disconnects.extend(has_broker.then_some(disconnect));
        let number = ledger.disconnects.len();
        ledger.note(|| format!("start {by} is asked for disconnect {number}, of {name}"));
        drop(ledger);
        let disconnect = Broadcast::new(&*name, DISCONNECT, Payload::EMPTY_OBJECT);
        let done = match waits {
            true => node.broadcast_local(disconnect),
            false => node.broadcast(disconnect),
        };
        match done {
            Err(error) if has_broker => self.shared.fail("disconnect", error.to_string()),
            _ if waits => running.node.mailbox.post(Command::Disconnect(name.into(), number - 1)),
            _ => {}
        }
    }

    /// A channel whose handle is kept; that of an ended channel is used once more: too late.
    fn some_handle(&self, c: u32) -> Option<(u32, simurgh_core::ChannelHandle<Actor>)> {
        let mut ledger = self.shared.ledger();
        let chans = ledger.sessions.chans.len();
        let chan = chans.checked_sub(1 + c as usize % chans.clamp(1, 16))? as u32;
        let handle = ledger.sessions.handles.get(&chan).cloned()?;
        if ledger.sessions.chan(chan).is_some_and(|it| it.life == Life::Ended) {
            drop(ledger.sessions.handles.remove(&chan));
        }
        Some((chan, handle))
    }

    pub(super) fn use_handle(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let expires = self.shared.plan.app.expires;
        let mut ledger = self.shared.ledger();
        let it = &mut ledger.sessions.chans[chan as usize];
        let (topic, answers) = (it.topic, if c >> 8 & 1 == 0 { it.refs.pop() } else { None });
        let (id, payload) = ledger.payload(BroadcastInfo::new(usize::from(topic), 0), c, 0);
        let what = c >> 9 & 7;
        let told = answers.as_ref().map(|it| it.1).or((what >= 5).then_some(id));
        ledger.sessions.chans[chan as usize].infos.extend(told);
        ledger.note(|| format!("the handle of channel {chan}: {what}, {answers:?}, #{id}"));
        drop(ledger);
        match (answers, what) {
            (Some((to, _)), _) => handle.reply(to, Reply::ok(payload)),
            (None, 0) => handle.stop(Stop::Normal),
            (None, 1) if expires && c >> 12 & 1 == 0 => handle.stop(Stop::Expired),
            (None, 1) => handle.stop(Stop::Abnormal),
            (None, 2..5) => handle.push("p", payload),
            (None, _) => handle.send(id),
        }
    }

    pub(super) fn speak(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let word = c.rotate_right(8);
        let mut ledger = self.shared.ledger();
        let (id, payload) = speech(&mut ledger, chan, 1, word);
        let made = &mut ledger.broadcasts[id as usize];
        // Its channel may have ended before this reaches it.
        made.is_optional = true;
        let made = *made;
        drop(ledger);
        let Some(running) = self.running_nodes().find(|it| it.start == made.node) else { return };
        let node = Arc::clone(&running.node);
        let expected = node.may_broadcast("", payload.len());
        let done = match made.except == chan {
            true => handle.broadcast_from(made.event, payload),
            false => handle.broadcast(made.event, payload),
        };
        if done != expected {
            self.shared.fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.shared.note(|| format!("the handle of channel {chan} broadcasts #{id}: {done:?}"));
    }

    pub(super) fn proceed(&mut self, c: u32) {
        let Some((chan, handle)) = self.some_handle(c) else { return };
        let mut ledger = self.shared.ledger();
        let id = ledger.add(BroadcastInfo::new(0, 0));
        ledger.sessions.chans[chan as usize].infos.push_back(id);
        drop(ledger);
        handle.visit(move |actor: &mut Actor, ctx| actor.proceed(ctx, id, c));
    }

    pub(super) fn drain_shards(&mut self, a: u16, c: u32) {
        let over = Duration::from_millis(u64::from(c % 3_000));
        let Some(node) = self.node(0) else { return };
        for shard in 0..node.shards() {
            if c >> 16 & 1 == 0 || usize::from(a) % node.shards() == shard {
                node.post(shard, Mail::Drain(over));
            }
        }
        self.shared.note(|| format!("a drain over {over:?}"));
    }

    /// A new process starts once all shards have drained and ended. Clients that had channels
    /// reconnect to any shard, and join them again.
    pub(super) fn restart_ended(&mut self, c: u32) {
        let Some(running) = self.nodes[0].as_ref() else { return };
        if !running.shards.iter().all(|shard| shard.has_ended) {
            return;
        }
        let left = |it: &Shard| {
            let ShardMetrics { sockets, channels, subscriptions, .. } = &*it.metrics;
            let gauges = sockets.value() + channels.value() + subscriptions.value();
            gauges + it.net.frames()
        };
        let left: u64 = running.shards.iter().map(left).sum();
        let ledger = self.shared.ledger();
        let open = ledger.sessions.open_sockets(running.node.first);
        if left + open > 0 {
            ledger.fail("left", format!("{left} frames and gauges, {open} sockets"));
        }
        ledger.count("restarts", 1);
        drop(ledger);
        self.readings.clear();
        self.remove(0);
        self.check_left();
        self.start(0);
        for client in 0..self.clients.len() {
            let c = c.wrapping_mul(0x9e37_79b1).wrapping_add(client as u32 * 0x9_1d3);
            self.come_back(client, c);
        }
    }

    fn come_back(&mut self, client: usize, c: u32) {
        let ledger = self.shared.ledger();
        let last = ledger.sessions.conns.iter().rfind(|conn| conn.client as usize == client);
        let joins = last.map(|conn| conn.joins.clone()).unwrap_or_default();
        drop(ledger);
        self.connect(client, 0, c);
        for (topic, _) in joins.iter().enumerate().filter(|(_, join_ref)| **join_ref > 0) {
            self.shared.ledger().count("channels joined again after one", 1);
            self.send_asked(client, RequestKind::Join, topic as u8, c >> 3, false);
        }
    }

    pub(super) fn begin_listening(&mut self, slot: usize, topic: u8, c: u32) {
        let Some(running) = self.nodes[slot].as_ref().filter(|it| !it.is_draining) else { return };
        let (node, start) = (Arc::clone(&running.node), running.start);
        let shard = (c >> 8) as usize % node.shards();
        let topics = &self.shared.plan.topics;
        let topic = if c & 7 == 0 { topics.id((c >> 3) as usize) } else { topic };
        let name = topics.name(topic).to_owned();
        if node.state().ended[shard] {
            return;
        }
        let number = self.shared.ledger().new_listener(start, shard, topic);
        let text = || format!("listener {number} on {topic}, shard {shard} of start {start}");
        self.shared.note(text);
        let heard = ListenerGuard { number, shared: Arc::clone(&self.shared) };
        let on_broadcast = move |it: &Arc<Broadcast>| heard.hear(number_of(it), it.position());
        let on_broadcast = Box::new(on_broadcast);
        let listener = Listener { name: Listener::id(shard as u16, number), on_broadcast };
        node.post(shard, Mail::Listen(name.into(), listener));
    }

    pub(super) fn end_listening(&mut self, number: usize) {
        let mut ledger = self.shared.ledger();
        let it = &mut ledger.sessions.listeners[number];
        let (shard, topic, name) = (it.shard, it.topic, it.name);
        if mem::replace(&mut it.is_ending, true) {
            return;
        }
        drop(ledger);
        let topic = self.shared.plan.topics.name(topic).to_owned();
        let is_it = |it: &&Arc<SimNode>| (it.first..it.first + it.shards()).contains(&shard);
        if let Some(node) = self.running_nodes().map(|it| &it.node).find(is_it) {
            node.post(shard - node.first, Mail::Unlisten(topic.into(), name));
        }
    }

    pub(super) fn ask_who(&mut self, slot: usize, topic: u8) {
        let Some(node) = self.node(slot).cloned() else { return };
        let shared = Arc::clone(&self.shared);
        let name = shared.plan.topics.name(topic).to_owned();
        let answer = Box::new(move |list: PresenceList| {
            let (mut ledger, json) = (shared.ledger(), list.json);
            let told = PresenceEvent::read("presence_state", &json);
            if told.is_none_or(|it| ledger.presences.check(usize::from(topic), &it).is_err()) {
                ledger.fail("presence", format!("topic {topic} is answered with {json}"));
            }
        });
        node.request_presences(&name, answer);
    }

    pub(super) fn kick(&mut self, client: usize) {
        let Some((number, _, shard, key)) = self.line(client) else { return };
        let mut ledger = self.shared.ledger();
        let was_open = ledger.sessions.conn(number).is_some_and(|conn| conn.is_open);
        ledger.sessions.may_close(number, 1001);
        drop(ledger);
        let code = CloseCode::GOING_AWAY;
        self.step(0, shard, Input::Other, |core, net| core.close(net, key, code));
        if was_open {
            self.must_be_over(shard, key, "it is closed from outside");
        }
    }

    pub(super) fn fail_bytes(&mut self, client: usize, c: u32) {
        let Some((_, _, shard, key)) = self.line(client) else { return };
        let codes = [CloseCode::PROTOCOL, CloseCode::INVALID_DATA, CloseCode::INTERNAL];
        let Some(socket) = self.peer(0, shard, key).map(|it| &it.socket) else { return };
        if socket.is_open() || socket.phase() == Phase::Closing {
            self.fail_socket(shard, key, codes[c as usize % 3]);
        }
    }

    /// The transport rejects a client's bytes, or there are too many.
    pub(super) fn fail_socket(&mut self, shard: usize, key: Key, code: CloseCode) {
        let Some(number) = self.peer(0, shard, key).map(|it| it.conn) else { return };
        self.shared.ledger().sessions.cut_with(number, code.0);
        self.step(0, shard, Input::Other, |core, net| core.fail(net, key, code));
        self.must_be_over(shard, key, "its bytes are wrong");
    }

    /// Checks that a socket that had to be closed has no session, and is read if it may answer.
    fn must_be_over(&mut self, shard: usize, key: Key, why: &str) {
        let Some(peer) = self.peer(0, shard, key) else { return };
        let phase = peer.socket.phase();
        let is_unheard = peer.is_held && peer.socket.transport == NETWORK;
        let is_over = matches!(phase, Phase::Closing | Phase::Ending);
        if !is_over || is_unheard || peer.socket.channels() > 0 {
            let text = format!("socket {} is {phase:?} (held: {}): {why}", peer.conn, peer.is_held);
            self.shared.fail("close", text);
        }
    }
}

/// The wire of a new connection. Histories have the older one on one node only.
fn wire(plan: &Plan, c: u32) -> Wire {
    match c % 16 {
        _ if plan.history.is_some() && (plan.has_broker || c >> 16 & 3 > 0) => Wire::V2,
        _ if plan.history.is_some() => Wire::V1,
        0..5 => Wire::V1,
        5..12 => Wire::V2,
        12..14 => Wire::Values,
        _ if plan.has_broker => Wire::V2,
        _ => Wire::Plain,
    }
}

#[derive(Debug)]
pub(crate) struct Reading {
    pub(super) conn: u32,
    pub(super) shard: usize,
    pub(super) key: Key,
    pub(super) serializer: Serializer,
    pub(super) bytes: Vec<u8>,
    pub(super) asked: Request,
}

impl Simulation {
    /// Hands in a long text that was read, if its socket still waits for it.
    pub(super) fn was_read(&mut self, which: usize) -> bool {
        let which = which.checked_rem(self.readings.len()).unwrap_or(0);
        let Some(reading) = self.readings.remove(which) else { return false };
        let Reading { conn, shard, key, serializer, bytes, asked } = reading;
        let message = String::from_utf8(bytes).ok();
        let message = message.and_then(|text| serializer.decode_owned(text).ok());
        let size = message.as_ref().map(size).unwrap_or_default();
        let received = message.and_then(|message| self.prepared(message));
        // What came in before the socket was closed is dropped.
        let shared = Arc::clone(&self.shared);
        let is_due = mem::take(&mut shared.ledger().sessions.conns[conn as usize].is_reading);
        let peer = self.peer(0, shard, key).filter(|_| is_due);
        if !peer.is_some_and(|peer| peer.socket.phase() == Phase::Waiting) {
            return true;
        }
        let Some((received, id)) = received else {
            shared.ledger().sessions.cut_with(conn, CloseCode::INTERNAL.0);
            self.step(0, shard, Input::Other, |core, net| {
                core.resume(net, key);
                core.fail(net, key, CloseCode::INTERNAL);
            });
            return true;
        };
        self.step(0, shard, Input::Other, |core, net| {
            core.resume(net, key);
            let mut ledger = shared.ledger();
            let asked = Request { join_ref: join_ref(&received.message), ..asked };
            ledger.hand_in(conn, asked, size);
            ledger.sessions.prepared = id;
            drop(ledger);
            core.message(net, key, received);
            shared.ledger().sessions.prepared = None;
        });
        self.feed(0, shard, key);
        true
    }

    /// Prepares a message; returns the number of the prepared value, if any; `None` after a panic.
    fn prepared(&self, mut message: Message<'static>) -> Option<(Received<'static>, Option<u32>)> {
        let user_socket = self.node(0)?.user_socket(CHANNELS)?;
        let Kind::Channels(_) = &user_socket.kind else { return None };
        let route = user_socket.route(&message.topic);
        let Some(prepare) = route.and_then(|it| it.prepare.as_ref()) else {
            return Some((message.into(), None));
        };
        let bytes = message.payload.len();
        let prepared = guarded(|| prepare(&mut message))?;
        let taken_bytes = bytes.saturating_sub(message.payload.len());
        let id = prepared.downcast_ref::<Ready>().map(|ready| ready.id);
        Some((Received { message, prepared: Some(prepared), taken_bytes }, id))
    }
}
