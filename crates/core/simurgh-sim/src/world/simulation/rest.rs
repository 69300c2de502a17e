//! Checks after all faults are repaired and everything is delivered: nothing is missing without a
//! notice, all clients have the presences, disconnected sockets are closed, and interests are those
//! of the members. When all clients have left, nothing is left.

use super::*;

/// How long a link may take to come back.
const LINKS_NS: u64 = 10 * SECOND;
/// A lost delta is found by the last repetition of a version, at the latest.
const REPEATS_NS: u64 = 26 * SECOND;
/// The slow round finds what a topic lacks, and some attempts fetch it.
const ROUND_NS: u64 = 50 * SECOND;
/// Envelopes that may be in transit although everything else is delivered.
const BEATS: usize = 4;
/// Subscriptions that are allowed at any time.
const HELD_LEAST: usize = 8_192;

impl Simulation {
    /// Repairs everything, delivers it, and checks the state.
    pub(crate) fn rest(&mut self) {
        if self.shared.plan.is_one_node() {
            return self.rest_one_node();
        }
        self.mend();
        let mended_ns = self.clock_ns;
        let plan = &self.shared.plan;
        let slack_ns = 4 * plan.slack_ns();
        let loss = plan.network.loss_per_million > 0;
        let mut span_ns = LINKS_NS + SETTLES_NS + plan.down_ns + REPEATS_NS + slack_ns;
        if !mem::take(&mut self.is_broken) && !loss {
            span_ns = REPEATS_NS + slack_ns;
        }
        if plan.history.is_some() {
            span_ns += ROUND_NS;
        }
        let quantum_ns = mem::replace(&mut self.quantum_ns, 10 * MILLISECOND);
        self.pass(span_ns);
        // A disconnect may reach a node late, and end channels.
        for _ in 0..60 {
            let before = self.shared.ledger().presences.changes;
            self.pass(2 * SECOND + 2 * self.shared.plan.slack_ns());
            if self.shared.has_failed() || self.shared.ledger().presences.changes == before {
                break;
            }
        }
        self.check_rest(mended_ns);
        self.quantum_ns = quantum_ns;
        let loss = self.shared.plan.network.loss_per_million;
        self.running_nodes().for_each(|it| self.network.lossy(it.start, loss));
    }

    fn check_rest(&mut self, mended_ns: u64) {
        self.check_nodes();
        self.check_interests();
        self.check_census();
        let changes = self.shared.ledger().presences.changes;
        let answers = self.list_presences_everywhere();
        if self.shared.plan.history.is_some() {
            self.read_everywhere();
        }
        let mut ledger = self.shared.ledger();
        ledger.check_deliveries();
        ledger.check_disconnects(mended_ns);
        ledger.count("rests", 1);
        ledger.check_delivered();
        ledger.check_views();
        // A node without room for its answer is asked again, after the list was answered.
        let has_room = self.shared.plan.presence_bytes > 1 << 16;
        if changes != ledger.presences.changes {
            return;
        }
        if let Some(wrong) = ledger.presence_unrest(0, 0) {
            ledger.fail("present", wrong);
        }
        for (start, topic, numbers) in answers {
            let (there, _) = ledger.presences.of(topic);
            if has_room && numbers.as_ref() != Some(&there) {
                let text = format!("start {start} says {numbers:?} of topic {topic}: {there:?}");
                ledger.fail("list", text);
            }
        }
    }

    /// The presences that each node lists for each topic.
    fn list_presences_everywhere(&mut self) -> Vec<(usize, usize, Option<Vec<u32>>)> {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let topics = &self.shared.plan.topics;
        let mut asked = 0;
        for running in self.running_nodes().filter(|it| !it.is_draining) {
            for (topic, name) in topics.names.iter().take(topics.rooms).enumerate() {
                let (start, answers) = (running.start, Arc::clone(&answers));
                let answer = move |list: PresenceList| {
                    let told = PresenceEvent::read("presence_state", &list.json);
                    let numbers = told.map(|told| {
                        let mut numbers: Vec<u32> = told.metas().map(|it| it.number).collect();
                        numbers.sort_unstable();
                        numbers
                    });
                    locked(&answers).push((start, topic, numbers));
                };
                running.node.request_presences(name, Box::new(answer));
                asked += 1;
            }
        }
        self.pass(SECOND + 2 * self.shared.plan.slack_ns());
        let answers = mem::take(&mut *locked(&answers));
        if answers.len() != asked {
            self.shared.fail("list", format!("{} of {asked} are answered", answers.len()));
        }
        answers
    }

    fn check_nodes(&self) {
        let all = || self.running_nodes().filter(|it| !it.is_draining);
        let id = |it: &RunningNode| NodeId(it.node.id());
        let ids: BTreeSet<_> = all().map(id).collect();
        for running in all() {
            let cluster = &running.thread.node.cluster;
            let mut known: BTreeSet<_> = cluster.peers().live().collect();
            known.insert(id(running));
            let is_right = cluster.state().0 == LinkState::Up
                && known == ids
                && cluster.peers().iter().count() + 1 == ids.len()
                // Beats are in transit at any time.
                && cluster.outbox().len_of(Class::Plain) == 0
                && cluster.adapter().in_flight() <= BEATS;
            if !is_right {
                let (state, in_flight) = (cluster.state(), cluster.adapter().in_flight());
                let text = format!("{state:?}, {known:?} of {ids:?}, {in_flight} under way");
                self.shared.fail("nodes", format!("start {}: {text}", running.start));
            }
        }
    }

    /// Checks that interests are in topics with members or listeners.
    fn check_interests(&self) {
        for running in self.running_nodes() {
            let topics = &self.shared.plan.topics;
            for (topic, name) in (0..topics.rooms as u8).zip(&topics.names) {
                let ledger = self.shared.ledger();
                let mut expected = ledger.members(running.start, topic);
                expected.extend(ledger.listening(running.start, topic));
                let first = running.node.first;
                let expected: BTreeSet<usize> = expected.into_iter().map(|it| it - first).collect();
                let is_unsure = ledger.sessions.is_unsure(topic);
                drop(ledger);
                let shards = running.thread.shards(name);
                let is_heard = expected.is_empty() || self.network.is_heard(running.start, name);
                if !is_unsure && (shards != expected || !is_heard) {
                    let start = running.start;
                    let text = format!("{shards:?} for {expected:?}, in force: {is_heard}");
                    self.shared.fail("interests", format!("start {start}, topic {topic}: {text}"));
                }
            }
        }
    }

    pub(crate) fn check_bounds(&mut self, slot: usize) {
        let plan = &self.shared.plan;
        let Some(running) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let cluster = &running.thread.node.cluster;
        let counts = cluster.interests().counts();
        let held_max = HELD_LEAST.max(2 * plan.exact_max);
        let plain = cluster.outbox().bytes_of(Class::Plain);
        let starts = self.shared.ledger().starts.len();
        let is_bounded = counts.exact <= plan.exact_max
            && counts.exact + counts.whole <= held_max
            && counts.topics <= plan.topics.names.len()
            && plain <= plan.plain_bytes
            && cluster.peers().iter().count() < starts;
        if !is_bounded {
            let text = format!("start {}: {counts:?}, {plain} bytes, {starts}", running.start);
            self.shared.fail("bounds", text);
        }
    }

    /// Ends the run: all clients leave, and nothing must be left.
    pub(crate) fn end(&mut self) {
        if !self.shared.has_failed() {
            self.rest();
        }
        let plan = Arc::clone(&self.shared.plan);
        if plan.is_one_node() && !plan.is_alone() && plan.seed.is_multiple_of(4) {
            self.fall_silent();
        }
        (0..self.clients.len()).for_each(|client| self.vanish(client));
        for running in self.nodes.iter().flatten().filter(|_| plan.is_one_node()) {
            // They are dropped without the lock.
            let _deciding = mem::take(&mut running.node.state().deciding);
        }
        let listeners = self.shared.ledger().sessions.listeners.len();
        (0..listeners).for_each(|number| self.end_listening(number));
        if !self.shared.has_failed() && plan.is_one_node() {
            self.rest();
        } else if !self.shared.has_failed() {
            let lingers_ns = plan.linger_ns / 4 * 5 + plan.whole_for_ns;
            let round_ns = if plan.history.is_some() { ROUND_NS } else { 0 };
            self.quantum_ns = 20 * MILLISECOND;
            self.pass(REPEATS_NS + 2 * lingers_ns + 4 * plan.slack_ns() + round_ns);
        }
        if !self.shared.has_failed() {
            self.check_left();
        }
        let mut ledger = self.shared.ledger();
        ledger.findings.hash ^= self.running_nodes().fold(0, |hash, it| hash ^ it.hash());
        let steps = u64::from(ledger.step);
        ledger.count("steps", steps);
        // The handles and their nodes refer to each other. They are dropped without the lock.
        let _handles = mem::take(&mut ledger.sessions.handles);
        drop(ledger);
    }

    pub(crate) fn check_left(&self) {
        for running in self.running_nodes() {
            let cluster = &running.thread.node.cluster;
            let counts = cluster.interests().counts();
            let outbox = (cluster.outbox().len(), cluster.adapter().in_flight() <= BEATS);
            let left = [
                self.network.wanted_topics(running.start),
                cluster.followed(),
                cluster.store_bytes(),
            ];
            let is_covered = self.shared.plan.topics.names.iter().any(|it| {
                let of = |space| cluster.interests().covering(space, it);
                of(Space::Broadcast).is_some() || of(Space::Presence).is_some()
            });
            if counts != Default::default() || left != [0; 3] || outbox != (0, true) || is_covered {
                let text = format!("start {}: {counts:?}, {left:?}, {outbox:?}", running.start);
                self.shared.fail("left", text);
            }
            running.check_left();
        }
        let ledger = self.shared.ledger();
        let is_of = |it: &&RunningNode, shard| ledger.starts[it.start].shards.contains(&shard);
        let has_ended = |shard: usize| {
            let node = self.running_nodes().find(|it| is_of(it, shard));
            node.is_none_or(|it| it.node.state().ended[shard - it.node.first])
        };
        let listeners = ledger.sessions.listeners.iter();
        let left = [
            Arc::strong_count(&self.shared.channels) - 1,
            Arc::strong_count(&self.shared.ready) - 1,
            Arc::strong_count(&self.shared.assigned) - 1,
            listeners.filter(|it| !it.is_gone && !has_ended(it.shard)).count(),
            ledger.sessions.tasks.iter().filter(|it| !it.is_notified).count(),
        ];
        if left != [0; 5] {
            let names = "channels, prepared, assigned, listeners, linked works";
            ledger.fail("left", format!("{names}: {left:?}"));
        }
    }
}

impl RunningNode {
    /// Checks that nothing is left of sockets and channels on its shards.
    fn check_left(&self) {
        let shared = &self.node.shared;
        // Homes that end notify no shard: answers that others keep end with the server.
        let is_whole = self.shards.iter().all(|server| !server.has_ended);
        let state = self.node.state();
        for (shard, server) in self.shards.iter().enumerate().filter(|(_, it)| !it.has_ended) {
            let it = &server.metrics;
            let presences = server.core.presences();
            let mut left = vec![
                it.sockets.value(),
                it.channels.value(),
                it.fanout_topics.value(),
                it.channels_hibernating.value(),
                it.presences.value() + u64::from(presences.topics > 0),
                server.core.history_waits() as u64,
                state.charged[shard] as u64,
                server.net.frames(),
            ];
            // The listeners that tell the order of histories stay.
            if !shared.plan.is_alone() {
                left.extend([it.subscriptions.value(), it.topics.value()]);
                left.push(presences.answers as u64 * u64::from(is_whole));
            }
            if left.iter().any(|it| *it != 0) {
                shared.fail("left", format!("shard {shard} of start {}: {left:?}", self.start));
            }
        }
        let seats = self.node.seats.load(Relaxed);
        if seats != 0 || state.member_counts.iter().any(|it| *it != 0) {
            shared.fail("left", format!("{seats} seats, members {:?}", state.member_counts));
        }
    }
}

const ROUNDS_MAX: u64 = 4_000;
/// By how much a socket may be closed too late for its silence.
const SLACK_TICKS: u32 = 100;

impl Simulation {
    /// Delivers everything, and checks that all clients have received what was due.
    pub(super) fn rest_one_node(&mut self) {
        self.shared.ledger().count("rests", 1);
        let shards = self.shared.plan.nodes[0];
        // Frames of replays are kept for a while.
        let is_alone = self.shared.plan.is_alone();
        let (least, pause_ns) = if is_alone { (20, 50_000_000) } else { (0, 5_000_000) };
        for round in 0..ROUNDS_MAX {
            let mut is_busy = false;
            for shard in 0..shards {
                while self.take_mail(0, shard) {
                    is_busy = true;
                }
            }
            while self.was_read(0) {
                is_busy = true;
            }
            for client in 0..self.clients.len() {
                is_busy |= self.read(client, usize::MAX);
                is_busy |= self.take_all(client);
            }
            for shard in 0..shards {
                is_busy |= self.turn(0, shard);
            }
            self.clock_ns += pause_ns;
            if self.shared.has_failed() {
                return;
            }
            is_busy |= self.node(0).is_some_and(|node| node.decide_next(0));
            if !is_busy && round >= least && self.unrest().is_none() {
                self.check_census();
                let shards = self.running_nodes().flat_map(|it| &it.shards);
                let unconfirmed = shards.map(|it| it.metrics.errors_unconfirmed.value()).sum();
                let ledger = self.shared.ledger();
                ledger.check_delivered();
                ledger.check_views();
                if is_alone {
                    ledger.check_stored(unconfirmed);
                }
                return;
            }
            // Only events of presence are still to come.
            if !is_busy && self.presence_unrest().is_some() {
                self.clock_ns += 60_000_000;
            }
        }
        let text = self.unrest().unwrap_or_default();
        self.shared.fail("rest", format!("it does not come to rest: {text}"));
    }

    fn take_all(&mut self, client: usize) -> bool {
        let mut has_taken = false;
        self.polls(client);
        while self.receive(client, usize::MAX) {
            has_taken = true;
        }
        has_taken
    }

    fn unrest(&self) -> Option<String> {
        let running = self.nodes[0].as_ref()?;
        let state = running.node.state();
        for (shard, it) in running.shards.iter().enumerate().filter(|(_, it)| !it.has_ended) {
            if state.charged[shard] > 0 {
                return Some(format!("bytes under way in shard {shard}: {:?}", state.charged));
            }
            if it.metrics.fanout_topics.value() > 0 {
                return Some(format!("shard {shard} fans out"));
            }
            for peer in it.net.peers() {
                if peer.is_held && peer.socket.phase() != Phase::Waiting {
                    return Some(format!("socket {} is held", peer.conn));
                }
                let has_all =
                    peer.queue.is_empty() && peer.pipe.is_empty() && peer.heard.is_empty();
                if !has_all && !peer.is_mute {
                    return Some(format!("socket {} has not taken all", peer.conn));
                }
            }
        }
        drop(state);
        self.presence_unrest()
    }

    /// Events of presence that are still to come, or topics that are kept without entries.
    fn presence_unrest(&self) -> Option<String> {
        let shards = &self.nodes[0].as_ref()?.shards;
        for (shard, it) in shards.iter().enumerate() {
            let counts = it.core.presences();
            if counts.topics > 0 && counts.entries == 0 {
                return Some(format!("shard {shard} keeps topics without presences"));
            }
            // A list that was asked for while another one was in transit.
            if counts.is_due && !it.has_ended {
                return Some(format!("shard {shard} has something to tell"));
            }
        }
        let kept = shards.iter().map(|it| it.metrics.presences.value()).sum();
        let refused = shards.iter().map(|it| it.metrics.errors_presence_refused.value()).sum();
        self.shared.ledger().presence_unrest(kept, refused)
    }

    /// All clients fall silent: undecided joins time out, and sockets may close for their silence.
    pub(super) fn fall_silent(&mut self) {
        let config = self.shared.plan.config.clone();
        let longest = config.decision_timeout + config.idle_timeout.unwrap_or_default();
        let until_ns = self.clock_ns + (longest + Duration::from_secs(20)).as_nanos() as u64;
        while self.clock_ns < until_ns && !self.shared.has_failed() {
            (0..self.shared.plan.nodes[0]).for_each(|shard| _ = self.turn(0, shard));
            while self.was_read(0) {}
            (0..self.clients.len()).for_each(|client| _ = self.take_all(client));
            self.clock_ns += 500_000_000;
        }
        let tick = Now::from_ns(self.local_ns(0)).tick;
        let shards = self.running_nodes().flat_map(|running| &running.shards);
        for peer in shards.flat_map(|shard| shard.net.peers()) {
            let is_idle = peer.socket.transport == NETWORK && peer.inbound.is_empty();
            let limit = match peer.socket.phase() {
                Phase::Waiting => Some(config.decision_timeout),
                Phase::Open => config.idle_timeout.filter(|_| is_idle),
                _ => None,
            };
            let silent = tick.saturating_sub(peer.socket.last_heard());
            if limit.is_some_and(|limit| silent > ticks(limit) + SLACK_TICKS) {
                self.shared
                    .fail("silence", format!("{} is connected after {longest:?}", peer.conn));
            }
        }
    }
}
