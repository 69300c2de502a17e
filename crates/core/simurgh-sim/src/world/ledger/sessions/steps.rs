//! Steps: the inputs of a core, and what is due when it returns. Lifetimes, waits and linked work.

use super::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Input {
    #[default]
    Other,
    Tick,
    FanOut,
    Settle,
    /// The connection is gone, or its client closes.
    Ended(u32),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Time {
    /// The ends that callbacks of one step have set, one of which counts.
    ends_ns: Vec<Option<u64>>,
    set_step: u32,
    /// When its shard first ended a turn after that.
    due_ns: Option<u64>,
    /// It was over in this step, before a callback changed it.
    was_over: Option<u32>,
}

pub(crate) fn ticks(time: Duration) -> u32 {
    (time.as_nanos() / TICK.as_nanos()) as u32
}

impl Ledger {
    pub(crate) fn begin_step(&mut self, input: Input, tick: u32) {
        self.findings.step += 1;
        let now = &mut self.sessions.now;
        let Now { ending, closed, closing, joined, publishers, .. } = now;
        [ending, closed, closing, joined, publishers].into_iter().for_each(Vec::clear);
        now.holds.clear();
        now.relays.clear();
        now.proceeded.clear();
        (now.input, now.tick, now.is_late) = (input, tick, false);
    }

    /// A core has returned; returns the socket whose channel published last.
    pub(crate) fn end_step(&mut self, shard: usize) -> Option<u32> {
        let (due, joining) = (self.sessions.now.due.take(), self.sessions.now.joining.take());
        match (due, joining) {
            (None, _) => {}
            // A broadcast that it intercepted meanwhile has ended it, so nothing is left to leave.
            (Some((chan, Call::Terminate(_))), Some(joining)) if !self.sessions.is_live(chan) => {
                self.replies_to(joining, b'o', EMPTY);
            }
            (Some(due), _) => self.fail("callback", format!("{due:?} has not come")),
        }
        while let Some((conn, ids)) = self.sessions.now.pending.pop() {
            // The join of a closing socket has no effects.
            let has_closed = self.sessions.conn(conn).is_some_and(|it| it.closed_step == self.step);
            if !ids.is_empty() && !has_closed {
                self.fail("broadcast", format!("{ids:?} of socket {conn} are never accepted"));
            }
        }
        while let Some((chan, call)) = self.sessions.now.calls.pop() {
            if self.sessions.is_live(chan) {
                self.fail("presence", format!("{call:?} of channel {chan} is not posted"));
            }
        }
        self.check_notified();
        self.check_listeners();
        if self.sessions.now.input == Input::Tick {
            self.check_expired(shard);
        }
        let Sessions { now, conns, chans, .. } = &self.sessions;
        let chan = |chan: u32| &chans[chan as usize];
        if let Some(it) = now.ending.iter().find(|it| chan(**it).life == Life::Live) {
            self.fail("terminate", format!("channel {it} goes on after its end"));
        }
        if let Some(it) = now.closing.iter().find(|it| conns[**it as usize].is_open) {
            self.fail("close", format!("socket {it} is open although it was to be closed"));
        }
        if let Some(it) = now.closed.iter().find(|it| conns[chan(**it).conn as usize].is_open) {
            self.fail("reason", format!("channel {it} ended because its socket has closed"));
        }
        if let Some(it) = now.joined.iter().find(|it| chan(**it).owes_after_join) {
            self.fail("callback", format!("channel {it} has no after_join"));
        }
        now.publishers.last().copied()
    }

    /// A socket is closed, perhaps because its client has been silent for too long.
    pub(crate) fn over(&mut self, conn: u32, is_silent: bool) {
        let (step, input) = (self.step, self.sessions.now.input);
        let is_over = self.is_over(conn);
        let Some(it) = self.sessions.conn_mut(conn).filter(|conn| conn.is_open) else { return };
        let has_expired = is_over || it.time.was_over == Some(step);
        (it.is_open, it.closed_step) = (false, step);
        (it.awaiting, it.replaced, it.full, it.is_reading) = (None, None, None, false);
        let (shard, left) = (it.shard, it.channels.len());
        let (is_gone, is_tick) = (input == Input::Ended(conn), input == Input::Tick);
        it.is_cut |= is_gone;
        let counts = &mut self.sessions.shards[shard];
        counts.sockets.retain(|open| *open != conn);
        let drains = counts.drains;
        if is_tick {
            let codes = [(is_silent, 1002), (drains, 1012), (has_expired, 3000)];
            for (_, code) in codes.into_iter().filter(|(is_reason, _)| *is_reason) {
                self.sessions.may_close(conn, code);
            }
        }
        let codes = self.sessions.conns[conn as usize].codes;
        if has_expired && is_tick {
            self.count("sockets whose time was over", 1);
            let expired = &mut self.sessions.shards[shard].expired;
            expired.0 += u64::from(codes == code_bit(3000));
            expired.1 += 1;
        }
        if codes == 0 && !is_gone {
            self.fail("close", format!("socket {conn} is closed for no reason"));
        }
        if left > 0 {
            self.fail("terminate", format!("socket {conn} is closed, {left} channels are not"));
        }
    }

    // Lifetimes: a socket is closed with 3000 when its time is over (PROTOCOL §7.7).

    pub(crate) fn lives_for(&mut self, conn: u32, time: Option<Duration>) {
        self.count("times of sockets set", 1);
        let (now_ns, step, was_over) = (self.now_ns, self.step, self.is_over(conn));
        let Some(it) = self.sessions.conn_mut(conn) else { return };
        if was_over {
            it.time.was_over = Some(step);
        }
        let ends_ns = time.map(|time| now_ns.saturating_add(nanoseconds(time)));
        if std::mem::replace(&mut it.time.set_step, step) != step {
            it.time.ends_ns.clear();
        }
        it.time.ends_ns.push(ends_ns);
        it.time.due_ns = None;
    }

    fn is_over(&self, conn: u32) -> bool {
        let ends_ns = self.sessions.conn(conn).map(|conn| conn.time.ends_ns.iter().flatten());
        ends_ns.into_iter().flatten().any(|ends_ns| *ends_ns <= self.now_ns)
    }

    /// After a sweep of a shard no socket is open whose time was over long ago.
    fn check_expired(&mut self, shard: usize) {
        if self.sessions.has_more {
            return;
        }
        // How often a server looks for ended lifetimes (PROTOCOL §7.2).
        let Config { handshake_timeout, close_timeout, decision_timeout, idle_timeout, .. } =
            self.plan.config;
        let shortest = handshake_timeout.min(close_timeout).min(decision_timeout);
        let shortest = idle_timeout.map_or(shortest, |idle| idle.min(shortest));
        let every_ns = (shortest / 8).clamp(TICK, Duration::from_secs(5)).as_nanos() as u64;
        // The server counts in ticks, of which the first and the last are partial.
        let (now_ns, slack_ns) = (self.now_ns, 2 * TICK.as_nanos() as u64);
        let Sessions { conns, shards, .. } = &mut self.sessions;
        for conn in &shards[shard].sockets {
            let time = &mut conns[*conn as usize].time;
            let is_past = |ends_ns: &Option<u64>| {
                ends_ns.is_some_and(|ends_ns| ends_ns.saturating_add(slack_ns) <= now_ns)
            };
            if time.ends_ns.is_empty() || !time.ends_ns.iter().all(is_past) {
                continue;
            }
            let due_ns = *time.due_ns.get_or_insert(now_ns);
            let late_ns = now_ns - due_ns;
            if late_ns >= every_ns && late_ns > 0 {
                self.findings.fail("expiry", format!("socket {conn} is open, {late_ns} ns late"));
            }
        }
    }

    // Channels that hold their socket, and work that ends with its channel.

    pub(super) fn holds(&mut self, chan: u32, conn: u32) {
        let since = self.sessions.now.tick;
        self.sessions.now.holds.push((chan, conn));
        let is_over = !self.sessions.is_live(chan) || self.sessions.is_closing(conn);
        if is_over || self.sessions.waits(conn) {
            return;
        }
        self.sessions.conns[conn as usize].full = Some((chan, since));
        self.count("holds", 1);
    }

    /// Sockets that several callbacks have held or released in this step: the order is not known.
    pub(crate) fn sync_holds(&mut self, phase: impl Fn(u32) -> Option<Phase>) {
        let holds = std::mem::take(&mut self.sessions.now.holds);
        for (at, (chan, conn)) in holds.iter().enumerate() {
            let is_again = holds.iter().take(at).any(|(_, held)| held == conn);
            let Some(phase) = phase(*conn).filter(|_| is_again) else { continue };
            let waits = phase == Phase::Waiting;
            let since = self.sessions.now.tick;
            let it = &mut self.sessions.conns[*conn as usize];
            if it.awaiting.is_none() && !it.is_reading && it.full.is_some() != waits {
                it.full = waits.then_some((*chan, since));
            }
        }
    }

    pub(super) fn proceeds(&mut self, chan: u32, conn: u32) {
        let full = self.sessions.conn_mut(conn).map(|conn| &mut conn.full);
        let held = full.and_then(|full| full.take_if(|(holds, _)| *holds == chan));
        self.sessions.now.proceeded.extend(held);
    }

    /// A callback reads the value that is kept with its socket.
    pub(crate) fn reads(&mut self, conn: u32, assigned: Option<u32>) {
        let step = self.step;
        // That of a socket that closes in this step may have been replaced or not.
        let is_closing = self.sessions.is_closing(conn);
        let it = self.sessions.conn_mut(conn).filter(|conn| conn.is_open && !is_closing);
        let Some(it) = it else { return };
        // In a later step one of the values of that step is kept, and no older one.
        let older = usize::from(it.assigned_step != step);
        let is_known = it.assigned_before.iter().skip(older).any(|other| *other == assigned);
        let expected = it.assigned;
        if older > 0 && is_known {
            it.assigned = assigned;
            it.assigned_before.clear();
        }
        if assigned != expected && !is_known {
            self.fail("assigned", format!("socket {conn} keeps {assigned:?}, not {expected:?}"));
        }
    }

    pub(crate) fn new_task(&mut self, chan: u32) -> u32 {
        self.sessions.tasks.push(Task { chan, ..Task::default() });
        self.sessions.tasks.len() as u32 - 1
    }

    pub(super) fn links(&mut self, chan: u32, conn: u32, task: u32) {
        self.count("works linked", 1);
        let is_there = self.sessions.is_live(chan) && !self.sessions.is_closing(conn);
        match self.sessions.chans.get_mut(chan as usize).filter(|_| is_there) {
            Some(chan) => chan.tasks.push(task),
            None => self.sessions.now.unlinked.push(task),
        }
    }

    /// Work is notified that its channel has ended, or dropped because it has finished.
    pub(crate) fn task_notified(&mut self, task: u32) {
        let Some(it) = self.sessions.tasks.get_mut(task as usize) else { return };
        if std::mem::replace(&mut it.is_notified, true) {
            self.fail("linked", format!("work {task} is notified of its end again"));
        }
        self.sessions.now.told.push(task);
    }

    pub(crate) fn finish_task(&mut self, which: usize) {
        let tasks = &mut self.sessions.tasks;
        if let Some(at) = tasks.len().checked_sub(1 + which % tasks.len().clamp(1, 16)) {
            tasks[at].is_finished = true;
        }
    }

    pub(crate) fn is_finished(&self, task: u32) -> bool {
        self.sessions.tasks.get(task as usize).is_some_and(|task| task.is_finished)
    }

    fn check_notified(&mut self) {
        let now = &mut self.sessions.now;
        if now.told.is_empty() && now.unlinked.is_empty() {
            return;
        }
        let [told, unlinked] = [&mut now.told, &mut now.unlinked].map(std::mem::take);
        for task in told {
            let Task { chan, is_finished, .. } = self.sessions.tasks[task as usize];
            if self.sessions.is_live(chan) && !is_finished && !unlinked.contains(&task) {
                self.fail("linked", format!("work {task} ended, but {chan} lives"));
            }
        }
        let goes_on = |task: &&u32| !self.sessions.tasks[**task as usize].is_notified;
        if let Some(task) = unlinked.iter().find(goes_on) {
            self.fail("linked", format!("work {task} goes on without its channel"));
        }
    }

    /// Joins that are not awaited any more have timed out.
    pub(crate) fn check_waiting(&mut self, shard: usize, phase: impl Fn(u32) -> Option<Phase>) {
        let Sessions { shards, conns, .. } = &self.sessions;
        let awaiting = |conn: &u32| Some((*conn, conns[*conn as usize].awaiting?));
        let waiting: Vec<_> = shards[shard].sockets.iter().filter_map(awaiting).collect();
        for (conn, Awaiting { joining, since, .. }) in waiting {
            let Some(phase) = phase(conn) else { continue };
            let is_closed = matches!(phase, Phase::Closing | Phase::Ending);
            let it = &self.sessions.conns[conn as usize];
            let longest = it.patience(&self.plan.config);
            let is_late = self.sessions.now.tick.wrapping_sub(since) > longest;
            // A drain may close it in the same step, after its join has timed out, or before.
            if phase == Phase::Waiting || (is_closed && !is_late) {
                continue;
            }
            self.sessions.shards[it.shard].refused_perhaps += u64::from(is_closed);
            self.sessions.conns[conn as usize].awaiting = None;
            if !is_late {
                self.fail("join", format!("socket {conn}: its join timed out early"));
            }
            self.refused(joining, payload::reason("join timed out"));
        }
    }

    /// The metrics of a shard are those that follow from what has happened.
    pub(crate) fn check_counters(&mut self, shard: usize, metrics: &ShardMetrics) {
        let Sessions { shards, conns, .. } = &mut self.sessions;
        let own = &mut shards[shard];
        let refused = metrics.joins_refused.value();
        let perhaps = std::mem::take(&mut own.refused_perhaps);
        let may_be_fewer = (own.refused.saturating_sub(perhaps)..own.refused).contains(&refused);
        // Of topics with a history, homes count the broadcasts, and joins may time out for a client
        // whose messages are not known in time.
        let has_history = self.plan.history.is_some();
        if may_be_fewer || has_history {
            own.refused = refused;
        }
        let counted = [
            if has_history { own.accepted } else { metrics.broadcasts.value() },
            metrics.sockets.value(),
            metrics.channels.value(),
            refused,
            metrics.errors_unmatched_topic.value(),
        ];
        let channels = own.sockets.iter().map(|conn| conns[*conn as usize].channels.len());
        let (open, channels) = (own.sockets.len() as u64, channels.sum::<usize>() as u64);
        let expected = [own.accepted, open, channels, own.refused, own.unmatched];
        let limited = [
            metrics.limited_joins.value(),
            metrics.limited_messages.value(),
            metrics.limited_bytes.value(),
            metrics.limited_presence_calls.value(),
            metrics.limited_payload_bytes.value(),
        ];
        let (over, expired, expirations) = (own.limited, own.expired, metrics.expirations.value());
        if counted != expected || limited != over {
            let names = "broadcasts, sockets, channels, refused joins, unmatched topics; limits";
            let text = format!("{names}: {counted:?} {limited:?}, not {expected:?} {over:?}");
            self.fail("metrics", text);
        }
        if !(expired.0..=expired.1).contains(&expirations) {
            self.fail("metrics", format!("{expirations} expirations, not {expired:?}"));
        }
    }

    /// Everything is delivered: clients and channels have received all that was for them.
    pub(crate) fn check_delivered(&self) {
        let conns = (0..).zip(&self.sessions.conns);
        for (conn, it) in conns.filter(|(_, it)| it.is_open && !it.is_lost) {
            if it.is_disconnected {
                self.fail("disconnect", format!("socket {conn} is still open"));
            }
            self.check_missing(conn);
        }
        let chans = (0..).zip(&self.sessions.chans);
        for (chan, it) in chans.filter(|(_, chan)| chan.life == Life::Live) {
            let mut relays = it.relays.iter();
            let relayed = relays.find_map(|relay| self.next_relay(chan, relay.topic, None));
            let intercepted = self.next_intercept(chan).map(|(at, id, _)| (at, id));
            if let Some(next) = intercepted.or(relayed) {
                self.fail("lost", format!("channel {chan} has not received {next:?}"));
            }
        }
        // Each broadcast that one shard has accepted is in the lists of all shards of its node.
        for (id, made) in self.broadcasts.iter().enumerate() {
            let start = self.starts.get(made.node).filter(|it| it.is_alive);
            let shards = start.map_or(0, |it| it.shards.len());
            let is_lost = made.accepted > 0 && usize::from(made.accepted) != shards;
            if shards > 0 && is_lost && !self.sessions.is_partial {
                self.fail("lost", format!("{} of {shards} shards have #{id}", made.accepted));
            }
        }
    }
}

impl Conn {
    /// For how many ticks it may wait for a decision, or for its channel.
    pub(super) fn patience(&self, config: &Config) -> u32 {
        ticks(if self.has_shut { config.close_timeout } else { config.decision_timeout })
    }
}

impl Sessions {
    pub(crate) fn waits(&self, conn: u32) -> bool {
        let waits = |it: &Conn| it.awaiting.is_some() || it.full.is_some() || it.is_reading;
        self.conn(conn).is_some_and(waits)
    }

    pub(crate) fn open_sockets(&self, shard: usize) -> u64 {
        let start = self.start_of(shard);
        self.shards.iter().filter(|it| it.start == start).map(|it| it.sockets.len() as u64).sum()
    }
}
