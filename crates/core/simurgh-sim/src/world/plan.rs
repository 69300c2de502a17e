//! What a seed decides before the first operation, and which operations it makes.

use simurgh_cluster::Bucket;
use simurgh_loopback::UNIX_MS;

use super::*;

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;

#[derive(Debug, Default, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The configuration of the shards.
    pub(crate) config: Config,
    /// Most nanoseconds between two readings of the clock.
    pub(crate) jump_ns: u32,
    /// Bytes that the network holds between a peer and its socket.
    pub(crate) window: usize,
    /// The kinds of operations, with their weights.
    pub(crate) weights: Vec<(Kind, u32)>,
    pub(crate) nodes: Vec<usize>,
    pub(crate) clients: usize,
    pub(crate) topics: Topics,
    /// Several nodes have a broker between them.
    pub(crate) has_broker: bool,
    pub(crate) network: NetworkConfig,
    pub(crate) linger_ns: u64,
    pub(crate) exact_max: usize,
    pub(crate) whole_for_ns: u64,
    pub(crate) plain_bytes: usize,
    pub(crate) presence_bytes: usize,
    pub(crate) down_ns: u64,
    /// The least time between two turns of a thread: how slow threads are.
    pub(crate) quantum_ns: u64,
    pub(crate) fault: Option<(Fault, u32)>,
    pub(crate) history: Option<HistoryPlan>,
    pub(crate) app: AppPlan,
    /// How often cores get an input, at most.
    pub(crate) steps: usize,
}

/// The kinds of plans: one node or several, with histories or without.
#[derive(Clone, Copy, Debug)]
pub(crate) enum World {
    Node,
    History,
    Cluster,
    ClusterHistory,
}

impl Plan {
    /// The plan of a seed. On a single node cores get this many inputs.
    pub(crate) fn new(world: World, seed: u64, steps: usize) -> Self {
        match world {
            World::Node => Self::single(seed, steps),
            World::History => Self::alone(seed),
            World::Cluster => Self::of_several(seed),
            World::ClusterHistory => Self::with_history(seed),
        }
    }

    /// Several nodes without histories.
    pub(super) fn of_several(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x43_4c_55_53);
        let count = [2, 2, 3, 3, 3, 4, 5, 7][rng.usize(..8)];
        let nodes: Vec<usize> = (0..count).map(|_| rng.usize(1..=3)).collect();
        let has_faults = rng.u8(..) < 220;
        let faults = FAULTS.map(|kinds| (kinds, has_faults && rng.u8(..) < 90));
        let of_faults = faults.iter().filter(|(_, occurs)| *occurs).flat_map(|(kinds, _)| *kinds);
        let delay_ns = match rng.u8(..) {
            0..150 => 30_000..=100_000,
            150..220 => MILLISECOND..=20 * MILLISECOND,
            _ => 20 * MILLISECOND..=45 * MILLISECOND,
        };
        let some = |rng: &mut Rng, values: [u32; 2]| match rng.u8(..) {
            0..180 => 0,
            180..225 => values[0],
            _ => values[1],
        };
        let network = NetworkConfig {
            delay_ns,
            loss_per_million: if has_faults { some(&mut rng, [2_000, 60_000]) } else { 0 },
            reorder_per_million: some(&mut rng, [20_000, 300_000]),
            kept: None,
            ..NetworkConfig::default()
        };
        let topics = rng.usize(1..=5);
        Self {
            seed,
            jump_ns: 5_000,
            window: 1 << 20,
            weights: weights(2).chain(of_faults.copied()).collect(),
            clients: rng.usize(2..=4 + 2 * count),
            topics: Topics::named(names(topics, rng.u8(..) < 80)),
            has_broker: true,
            network,
            linger_ns: [SECOND / 10, 2 * SECOND, 5 * SECOND][rng.usize(..3)],
            exact_max: [1, 3, 4096][rng.usize(..3)],
            whole_for_ns: [SECOND, 10 * SECOND][rng.usize(..2)],
            plain_bytes: if rng.u8(..) < 60 { 3_000 } else { 8 << 20 },
            presence_bytes: if rng.u8(..) < 60 { 3_000 } else { 1 << 20 },
            // The shortest was added after the seeds of the list.
            down_ns: [10, 12, if seed.is_multiple_of(5) { 6 } else { 30 }][rng.usize(..3)] * SECOND,
            // No socket is closed because it is idle or slow.
            config: Config {
                presence: PresenceConfig {
                    interval: Duration::from_millis([10, 50, 100][rng.usize(..3)]),
                    ..PresenceConfig::default()
                },
                idle_timeout: None,
                hibernate_after: None,
                slow_after: Duration::from_secs(1_000),
                handshake_timeout: Duration::from_secs(30),
                close_timeout: Duration::from_secs(30),
                ..Config::default()
            },
            quantum_ns: [50_000, MILLISECOND, 10 * MILLISECOND][rng.usize(..3)],
            app: AppPlan::plain(&mut rng, false, 700),
            nodes,
            fault: None,
            history: None,
            steps: usize::MAX,
        }
    }

    /// Several nodes whose broker stores the histories.
    fn with_history(seed: u64) -> Self {
        let mut plan = Self::of_several(seed);
        let mut rng = Rng::with_seed(seed ^ 0x4b_43_4c_55);
        let network = &mut plan.network;
        let has_faults = plan.weights.len() > weights(2).count() || network.loss_per_million > 0;
        let rule = HistoryRule {
            count: [3, 30, 1000, 1000][rng.usize(..4)],
            bytes: [3_000, 1 << 20, 1 << 20][rng.usize(..3)],
            age: Duration::from_secs([20, 300, 3_000][rng.usize(..3)]),
            ..HistoryRule::default()
        };
        let purges = rng.u8(..) < 90;
        let some = |rng: &mut Rng, values: [u32; 2]| match rng.u8(..) {
            _ if !has_faults => 0,
            0..150 => 0,
            150..210 => values[0],
            _ => values[1],
        };
        network.vanish_per_million = some(&mut rng, [5_000, 100_000]);
        network.double_per_million = some(&mut rng, [5_000, 200_000]);
        let age_ns = rule.age.as_nanos() as u64;
        network.kept = Some(StreamLimits { count: rule.count, age_ns });
        let lag_ms = if has_faults { [0, 0, 300, 3_000][rng.usize(..4)] } else { 0 };
        network.lag_ns = 0..=lag_ms * MILLISECOND;
        let keeps_all = rule.count == 1000 && rule.bytes == 1 << 20 && rule.age.as_secs() == 3_000;
        plan.history = Some(HistoryPlan {
            rule,
            opts_in: 210,
            has_id: [0, 200, 255][rng.usize(..3)],
            is_local_when_away: Rng::with_seed(seed ^ 0x4c_4f_43).u8(..) < 80,
            is_whole: keeps_all && !has_faults && !purges,
            ..HistoryPlan::default()
        });
        let has_leaders = has_faults && rng.u8(..) < 90;
        plan.weights.extend([(Kind::Keep, 60), (Kind::LookUp, 20)]);
        plan.weights.extend(purges.then_some((Kind::Purge, 8)));
        let leaders = [(Kind::LoseLeader, 5), (Kind::ElectLeader, 12)];
        plan.weights.extend(leaders.iter().filter(|_| has_leaders));
        plan.app = AppPlan::plain(&mut Rng::with_seed(seed ^ 0x41_50_50), true, 700);
        // A topic is followed for longer than the lag of a copy, as by default, so that no copy
        // repeats what a client without a position has received.
        if lag_ms > 0 {
            plan.linger_ns = 5 * SECOND;
        }
        plan
    }

    /// The plan of one node without an engine.
    fn alone(seed: u64) -> Self {
        let mut plan = Self::of_several(seed);
        let mut rng = Rng::with_seed(seed ^ 0x4b_45_50_54);
        plan.nodes = vec![rng.usize(1..=4)];
        plan.clients = rng.usize(1..=6);
        plan.app = AppPlan::plain(&mut rng, true, 3_000);
        plan.app.is_present = false;
        (plan.network, plan.has_broker) = (Default::default(), false);
        let rule = HistoryRule {
            count: [2, 5, 30, 1000][rng.usize(..4)],
            bytes: [1_000, 5_000, 1 << 20][rng.usize(..3)],
            age: [Duration::from_secs(2), Duration::from_secs(300)][rng.usize(..2)],
            only_own: rng.u8(..) < 60,
            ..HistoryRule::default()
        };
        let (has_id, purges) = ([0, 128, 255][rng.usize(..3)], rng.u8(..) < 40);
        // Broadcasts that wait for longer than these are unconfirmed.
        let Config { handshake_timeout, close_timeout, .. } = Config::default();
        (plan.config.handshake_timeout, plan.config.close_timeout) =
            (handshake_timeout, close_timeout);
        let limits = &mut plan.config.history;
        *limits = HistoryConfig {
            bytes_max: if rng.u8(..) < 60 { 3_000 } else { 256 << 20 },
            replay_count: if rng.u8(..) < 60 { 4 } else { 1000 },
            replay_bytes: if rng.u8(..) < 60 { 900 } else { 1 << 20 },
            ..HistoryConfig::default()
        };
        if rng.u8(..) < 100 {
            let bytes = if rng.bool() { 300 } else { 64 << 10 };
            limits.portion = ReplayLimits { count: rng.usize(1..=4), bytes };
        }
        let quota = Quota {
            count: rng.u64(1..=9),
            period_ms: [70, 1_000, 11_000][rng.usize(..3)],
            burst: rng.u64(1..=9),
            policy: app::policy(&mut rng),
        };
        let channel = [None, Some(quota), None, None];
        plan.app.limits = Some(Limits { channel, ..Limits::default() });
        plan.config.mailbox_bytes_max = if rng.u8(..) < 40 { 8_000 } else { 16 << 20 };
        plan.window = [1 << 20, 4_000, 300][rng.usize(..3)];
        plan.jump_ns = [50, 5_000, 300_000][rng.usize(..3)];
        let (leaves, restarts) = (rng.bool(), rng.u8(..) < 64);
        let is_on = |(kind, _): &(Kind, u32)| match kind {
            Kind::Leave => leaves,
            Kind::Purge => purges,
            Kind::Restart => restarts,
            _ => true,
        };
        plan.weights = weights(1).filter(is_on).collect();
        plan.app.limits = plan.app.limits.filter(|_| rng.u8(..) < 80);
        plan.history = Some(HistoryPlan {
            rule,
            opts_in: 200,
            has_id,
            intercepts: [0, 0, 90][rng.usize(..3)],
            waits_long: rng.u8(..) < 60,
            says_seen: rng.bool(),
            says_bad: rng.u8(..) < 64,
            forges: rng.bool(),
            ..HistoryPlan::default()
        });
        plan
    }

    /// The Unix time of a node's clock when the simulation's shows 0.
    pub(crate) fn skew_ms(&self, skew_ms: u64) -> u64 {
        match self.history {
            Some(_) => UNIX_MS + skew_ms % 5_000,
            None => skew_ms,
        }
    }

    pub(crate) fn cluster(&self, name: &str) -> Option<ClusterConfig> {
        let mut it = ClusterConfig::new(Prefix::new("sim").ok()?, name);
        it.interests.linger_ns = self.linger_ns;
        it.interests.exact_max = self.exact_max;
        it.interests.whole_for_ns = self.whole_for_ns;
        it.outbox.plain_bytes = self.plain_bytes;
        it.outbox.presence_bytes = self.presence_bytes;
        it.history = self.history.is_some().then(Default::default);
        it.peers.gone_ns = self.down_ns;
        it.peers.silent_ns = it.peers.silent_ns.min(self.down_ns);
        Some(it)
    }

    /// The flags that select such a plan on the command line.
    pub(crate) fn flags(&self) -> &'static str {
        match (self.is_one_node(), &self.history) {
            (true, None) => "",
            (true, Some(_)) => " --history",
            (false, Some(_)) => " --cluster --history",
            (false, None) => " --cluster",
        }
    }

    /// Draws operations for this many steps, each kind in proportion to its weight.
    pub(crate) fn operations(&self, steps: usize) -> Vec<Op> {
        let mut rng = Rng::with_seed(self.seed ^ 0x4f_50_53);
        let mut sum = 0;
        let mut sums = Vec::with_capacity(self.weights.len());
        for (_, weight) in &self.weights {
            sum += weight;
            sums.push(sum);
        }
        // On a single node a step is an input of a core: more operations than it takes.
        let count = if self.steps == usize::MAX { steps } else { 3 * steps + 1 };
        let draw = |_| {
            let at = rng.u32(..sum);
            let kind = self.weights[sums.partition_point(|sum| *sum <= at)].0;
            Op { kind, a: rng.u16(..), b: rng.u16(..), c: rng.u32(..) }
        };
        (0..count).map(draw).collect()
    }

    /// One node without an engine, which stores the histories itself.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_one_node() && self.history.is_some()
    }

    pub(crate) fn is_one_node(&self) -> bool {
        !self.has_broker
    }

    /// What is in transit in the network, and at a node that runs, has arrived after this.
    pub(crate) fn slack_ns(&self) -> u64 {
        2 * (self.network.delay_ns.end() + 4 * self.quantum_ns) + 200 * MILLISECOND
    }

    /// How a client uses histories, if its topics have any.
    pub(crate) fn habits(&self, client: u32) -> Habits {
        let mut rng = Rng::with_seed(self.seed.rotate_left(17) ^ u64::from(client));
        let Some(history) = &self.history else { return Habits::default() };
        let opts_in = rng.u8(..) < history.opts_in;
        let has_id = opts_in && rng.u8(..) < history.has_id;
        let intercepts = self.is_alone() && rng.u8(..) < history.intercepts;
        Habits { opts_in, has_id, intercepts }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct HistoryPlan {
    pub(crate) rule: HistoryRule,
    /// How many of 256 clients opt in, and how many of those have an id.
    pub(crate) opts_in: u8,
    pub(crate) has_id: u8,
    /// Without a link, broadcasts go to local members only.
    pub(crate) is_local_when_away: bool,
    /// There are no faults and everything is kept: nothing justifies a gap.
    pub(crate) is_whole: bool,
    // Of one node without an engine, which stores the histories itself.
    /// How many of 256 clients have channels that intercept.
    pub(crate) intercepts: u8,
    /// Some waits are longer than a channel waits until its broadcasts are stored.
    pub(crate) waits_long: bool,
    /// Clients name messages that arrived after they had left.
    pub(crate) says_seen: bool,
    /// Clients send resumes that cannot be read.
    pub(crate) says_bad: bool,
    /// Clients send a wrong key, or none.
    pub(crate) forges: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    pub(crate) opts_in: bool,
    pub(crate) has_id: bool,
    pub(crate) intercepts: bool,
}

/// Names of topics, each in its own bucket, or all in one.
fn names(count: usize, is_one_bucket: bool) -> Vec<String> {
    let all = (0..).map(|it| format!("rooms:{it}"));
    let first = Bucket::of("rooms:0");
    all.filter(|it| !is_one_bucket || Bucket::of(it) == first).take(count).collect()
}

/// One operation. The meaning of its numbers depends on its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Mostly the client, or the shard.
    pub(crate) a: u16,
    /// Mostly the topic.
    pub(crate) b: u16,
    /// Everything else.
    pub(crate) c: u32,
}

weighted! {
    /// The kinds of operations; weights on one node, on one with histories, on several.
    Kind, KINDS: [u32; 3];
    Connect [24, 40, 60],
    Join [50, 70, 110],
    Read [200, 200, 40],
    Turn [80, 120, 40],
    Mail [90, 200, 60],
    Push [140, 120, 160],
    Leave [16, 20, 20],
    Heartbeat [6, 0, 0],
    /// A client sends a message with refs outside of its session.
    Odd [20, 0, 0],
    /// A client takes some bytes.
    Take [120, 120, 0],
    Vanish [3, 12, 7],
    Close [2, 0, 0],
    HalfClose [2, 0, 0],
    Decide [40, 40, 0],
    Publish [20, 30, 30],
    /// The handle of a channel is used.
    Handle [30, 0, 0],
    Disconnect [1, 0, 2],
    Wait [30, 20, 120],
    /// The transport rejects bytes of a client.
    Fail [1, 0, 0],
    /// The core closes a socket, as asked from outside.
    Kick [2, 0, 0],
    /// A message that was read away from its shard is ready.
    Reading [40, 0, 0],
    /// The server drains, ends and starts again; mostly with what it has saved.
    Restart [20, 4, 0],
    /// A channel lets its client's messages be read again.
    Proceed [40, 0, 0],
    /// Linked work ends by itself.
    Finish [5, 0, 0],
    Speak [12, 15, 10],
    Listen [7, 0, 8],
    /// A question from outside of channels: which users are present.
    Who [10, 0, 0],
    /// A client sends the same message repeatedly, and all are read.
    Burst [20, 0, 0],
    Drain [0, 0, 0],
    /// All faults are repaired, everything is delivered, and the state is checked.
    Rest [0, 3, 2],
    Purge [0, 4, 0],
    Thread [0, 0, 60],
    /// A longer span of time.
    Long [0, 0, 16],
    // Faults, and what only histories have.
    Cut [0, 0, 0],
    Mend [0, 0, 0],
    Reset [0, 0, 0],
    Lossy [0, 0, 0],
    Partition [0, 0, 0],
    Heal [0, 0, 0],
    FreezeEngine [0, 0, 0],
    ThawEngine [0, 0, 0],
    KillEngine [0, 0, 0],
    RestartEngine [0, 0, 0],
    FreezeNode [0, 0, 0],
    ThawNode [0, 0, 0],
    Kill [0, 0, 0],
    Start [0, 0, 0],
    ClockStep [0, 0, 0],
    /// A broadcast from outside of channels, perhaps with an id.
    Keep [0, 0, 0],
    LookUp [0, 0, 0],
    LoseLeader [0, 0, 0],
    ElectLeader [0, 0, 0],
}

/// The first of them occur on one node, whose seeds change some weights.
pub(crate) const OF_ONE_NODE: usize = 30;

/// The kinds that occur in one of the columns.
fn weights(column: usize) -> impl Iterator<Item = (Kind, u32)> {
    let all = KINDS.iter().map(move |(kind, weights)| (*kind, weights[column]));
    all.filter(|(_, weight)| *weight > 0)
}

/// Kinds of faults: a seed has each with its end, or not at all.
const FAULTS: [&[(Kind, u32)]; 8] = [
    &[(Kind::Cut, 8), (Kind::Mend, 8)],
    &[(Kind::Reset, 6)],
    &[(Kind::Lossy, 6)],
    &[(Kind::Partition, 6), (Kind::Heal, 5)],
    &[(Kind::FreezeEngine, 4), (Kind::ThawEngine, 6)],
    &[(Kind::KillEngine, 4), (Kind::RestartEngine, 6)],
    &[(Kind::FreezeNode, 5), (Kind::ThawNode, 5)],
    &[(Kind::Kill, 6), (Kind::Start, 9), (Kind::Drain, 5), (Kind::ClockStep, 4)],
];

/// Of this many intercepted broadcasts one is swallowed.
pub(crate) const SWALLOWED: u32 = 3;
