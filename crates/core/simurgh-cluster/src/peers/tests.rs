//! Peers: which are alive, silent, gone, and why.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::departed::REMEMBERED_NS;
use super::*;

const ME: NodeId = NodeId(0);
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const UNIX: u64 = 1_700_000_000_000;

fn beat_of(id: NodeId, name: &str) -> Beat {
    Beat {
        id,
        name: name.into(),
        version: "1.0.0".into(),
        envelopes: (1, 1),
        sockets: 5,
        is_draining: false,
        unix_ms: UNIX,
    }
}

fn beat(id: NodeId) -> Beat {
    beat_of(id, &format!("node-{}", id.0))
}

fn hello_of(id: NodeId, name: &str) -> Hello {
    Hello { beat: beat_of(id, name), settings: Vec::new() }
}

struct Node {
    peers: Peers,
    now_ns: u64,
}

impl Node {
    fn new() -> Self {
        Self::with(PeersConfig::default())
    }

    fn with(config: PeersConfig) -> Self {
        let mut peers = Peers::new(ME, "me", config, 1);
        peers.link_up(0);
        let mut node = Self { peers, now_ns: 0 };
        node.wait(20 * SECOND);
        node
    }

    fn knowing(beat: &Beat) -> Self {
        let mut node = Self::new();
        node.note_beat(beat);
        node
    }

    fn wait(&mut self, span_ns: u64) {
        let end_ns = self.now_ns + span_ns;
        while self.now_ns < end_ns {
            self.now_ns = end_ns.min(self.now_ns + SECOND / 2);
            self.peers.tick(self.now_ns);
            self.peers.beat_due(self.now_ns);
        }
    }

    fn note_beat(&mut self, beat: &Beat) -> Vec<PeerEvent> {
        self.peers.heard(beat, self.now_ns, UNIX);
        self.events()
    }

    fn hello(&mut self, hello: &Hello) -> Vec<PeerEvent> {
        self.peers.hello(hello, self.now_ns, UNIX);
        self.events()
    }

    fn events_after(&mut self, span_ns: u64) -> Vec<PeerEvent> {
        self.wait(span_ns);
        self.events()
    }

    fn events(&mut self) -> Vec<PeerEvent> {
        std::iter::from_fn(|| self.peers.poll_event()).collect()
    }

    /// Each node sends a beat every two seconds.
    fn beating(&mut self, span_ns: u64, beats: &[&Beat]) -> Vec<PeerEvent> {
        let end_ns = self.now_ns + span_ns;
        let mut events = Vec::new();
        while self.now_ns < end_ns {
            self.wait(2 * SECOND);
            events.extend(self.events());
            for beat in beats {
                events.extend(self.note_beat(beat));
            }
        }
        events
    }

    fn ids(&self) -> Vec<NodeId> {
        self.peers.iter().map(Peer::id).collect()
    }
}

#[test]
fn node_joins_falls_silent_returns_and_is_gone() {
    let mut node = Node::new();
    assert_eq!(node.note_beat(&beat(A)), [PeerEvent::Joined(A)]);
    assert_eq!(node.note_beat(&beat(A)), []);
    assert_eq!(node.events_after(10 * SECOND - 1), []);
    assert!(node.peers.live().eq([A]));
    assert_eq!(node.events_after(1), [PeerEvent::Silent(A)]);
    assert_eq!((node.peers.live().count(), node.ids()), (0, vec![A]));
    assert_eq!(node.note_beat(&beat(A)), [PeerEvent::Back(A)]);
    node.wait(30 * SECOND);
    assert_eq!(node.events(), [PeerEvent::Silent(A), PeerEvent::Gone(A, GoneReason::Silent)]);
    assert!(node.peers.unaccounted().eq([A]));
    assert_eq!(node.note_beat(&beat(A)), [PeerEvent::Joined(A)], "it lives after all");
    assert_eq!(node.peers.unaccounted().count(), 0);
}

#[test]
fn lost_heartbeat_is_noticed_before_the_node_is_silent() {
    let mut node = Node::knowing(&beat(A));
    node.wait(5 * SECOND);
    assert_eq!(node.note_beat(&beat(A)), [], "two beats that took long");
    node.wait(5 * SECOND + 1);
    assert_eq!(node.note_beat(&beat(A)), [PeerEvent::Missed(A)]);
    assert_eq!(node.note_beat(&beat(A)), []);
}

#[test]
fn silence_is_not_counted_while_the_own_link_is_down_or_new() {
    let mut node = Node::knowing(&beat(A));
    node.wait(9 * SECOND);
    node.peers.link_down(node.now_ns);
    assert_eq!(node.peers.next_ns(), None);
    node.wait(1000 * SECOND);
    node.peers.link_up(node.now_ns);
    assert_eq!(node.events_after(10 * SECOND), []);
    assert_eq!(node.events_after(SECOND), [PeerEvent::Silent(A)]);
    for _ in 0..100 {
        node.peers.link_up(node.now_ns);
        node.wait(9 * SECOND);
    }
    assert_eq!(node.events(), []);
}

#[test]
fn silence_is_not_counted_while_this_process_is_suspended() {
    let mut node = Node::knowing(&beat(A));
    node.now_ns += 3600 * SECOND;
    node.peers.tick(node.now_ns);
    assert_eq!(node.events_after(10 * SECOND), []);
    assert_eq!(node.note_beat(&beat(A)), []);
}

#[test]
fn late_heartbeat_does_not_revive_a_node_that_left() {
    let mut node = Node::knowing(&beat(A));
    node.peers.bye(A, node.now_ns);
    assert_eq!(node.events(), [PeerEvent::Gone(A, GoneReason::Bye)]);
    for _ in 0..10 {
        assert_eq!(node.note_beat(&beat(A)), []);
        assert_eq!(node.hello(&Hello { beat: beat(A), settings: Vec::new() }), []);
        node.wait(2 * SECOND);
    }
    assert_eq!((node.ids(), node.peers.counts().late), (vec![], 20));
    node.peers.bye(A, node.now_ns);
    node.peers.bye(B, node.now_ns);
    assert_eq!((node.events(), node.note_beat(&beat(B))), (vec![], vec![]));
    assert_eq!(node.peers.unaccounted().count(), 0);
    node.wait(REMEMBERED_NS);
    assert_eq!(node.note_beat(&beat(B)), [PeerEvent::Joined(B)], "nothing is under way any more");
}

#[test]
fn restarted_node_replaces_its_predecessor_after_five_seconds() {
    let mut node = Node::knowing(&beat_of(A, "web"));
    assert_eq!(node.hello(&hello_of(B, "web")), [PeerEvent::Joined(B)]);
    node.wait(SECOND);
    assert_eq!(node.note_beat(&beat_of(A, "web")), []);
    assert_eq!(node.events_after(5 * SECOND - 1), []);
    assert_eq!(node.events_after(1), [PeerEvent::Gone(A, GoneReason::Replaced)]);
    assert_eq!(node.note_beat(&beat_of(A, "web")), []);
    assert_eq!(node.note_beat(&beat_of(A, "web")), []);
    let events = node.beating(20 * SECOND, &[&beat_of(B, "web")]);
    assert_eq!((events, node.ids()), (vec![PeerEvent::Missed(B)], vec![B]));
}

#[test]
fn two_living_nodes_with_one_name_conflict_without_replacement() {
    let (a, b) = (beat_of(A, "web"), beat_of(B, "web"));
    let mut node = Node::knowing(&a);
    node.hello(&hello_of(B, "web"));
    let conflict = PeerEvent::NameConflict { name: "web".into(), nodes: [A, B] };
    assert_eq!(node.beating(40 * SECOND, &[&a, &b]), [conflict]);
    assert_eq!(node.peers.counts().name_conflicts, 2);
    assert_eq!(node.beating(8 * SECOND, &[&b]), []);
    assert_eq!(node.hello(&hello_of(A, "web")), [PeerEvent::Missed(A)]);
    node.peers.bye(A, node.now_ns);
    assert_eq!(node.peers.counts().name_conflicts, 0);
}

#[test]
fn two_heartbeats_of_a_namesake_are_enough_for_a_conflict() {
    let (a, b) = (beat_of(A, "web"), beat_of(B, "web"));
    let mut node = Node::knowing(&a);
    node.note_beat(&b);
    node.wait(2 * SECOND);
    assert_eq!(node.note_beat(&b), []);
    node.wait(SECOND);
    let conflict = PeerEvent::NameConflict { name: "web".into(), nodes: [A, B] };
    assert_eq!(node.note_beat(&a), [conflict]);
}

#[test]
fn without_a_check_the_next_work_is_the_own_heartbeat() {
    let mut node = Node::new();
    node.peers.tick(node.now_ns);
    let due_ns = node.peers.next_beat_ns().unwrap();
    assert!(due_ns > node.now_ns);
    assert!(!node.peers.beat_due(due_ns - 1) && node.peers.beat_due(due_ns));
    node.peers.link_down(due_ns);
    assert_eq!(node.peers.next_beat_ns(), None);
}

#[test]
fn third_node_with_the_same_name_conflicts_too() {
    let mut node = Node::new();
    let c = NodeId(3);
    let beats = [A, B, c].map(|id| beat_of(id, "web"));
    node.note_beat(&beats[0]);
    node.note_beat(&beats[1]);
    assert_eq!(node.beating(10 * SECOND, &[&beats[0], &beats[1]]).len(), 1);
    let conflict = |id| PeerEvent::NameConflict { name: "web".into(), nodes: [id, c] };
    let events = node.beating(20 * SECOND, &[&beats[0], &beats[1], &beats[2]]);
    assert_eq!(events, [PeerEvent::Joined(c), conflict(A), conflict(B)]);
    assert_eq!(node.peers.counts().name_conflicts, 3);
}

#[test]
fn late_heartbeat_of_the_previous_start_is_no_conflict() {
    let a = beat_of(A, "web");
    let mut node = Node::knowing(&a);
    assert_eq!(node.note_beat(&beat_of(B, "web")), [PeerEvent::Joined(B)]);
    assert_eq!(node.note_beat(&beat_of(B, "web")), [], "it arrives in a burst");
    let gone = [PeerEvent::Silent(B), PeerEvent::Gone(B, GoneReason::Silent)];
    assert_eq!(node.beating(60 * SECOND, &[&a]), gone);
    assert_eq!((node.ids(), node.peers.counts().name_conflicts), (vec![A], 0));
}

#[test]
fn living_node_wrongly_taken_for_replaced_joins_again() {
    let (a, b) = (beat_of(A, "web"), beat_of(B, "web"));
    let mut node = Node::knowing(&a);
    node.note_beat(&b);
    let gone = PeerEvent::Gone(A, GoneReason::Replaced);
    assert_eq!(node.beating(8 * SECOND, &[&b]), [gone]);
    let conflict = PeerEvent::NameConflict { name: "web".into(), nodes: [B, A] };
    assert_eq!(node.beating(10 * SECOND, &[&a, &b]), [PeerEvent::Joined(A), conflict]);
}

#[test]
fn draining_node_does_not_conflict_with_its_successor() {
    let mut node = Node::new();
    let old = Beat { is_draining: true, ..beat_of(A, "web") };
    let new = beat_of(B, "web");
    node.note_beat(&old);
    node.note_beat(&new);
    assert_eq!(node.beating(30 * SECOND, &[&old, &new]), []);
    assert_eq!(node.peers.counts().draining, 1);
    assert_eq!(node.beating(6 * SECOND, &[&new]), [PeerEvent::Gone(A, GoneReason::Replaced)]);
}

#[test]
fn own_previous_start_is_no_conflict_but_a_living_namesake_is() {
    let mut node = Node::new();
    assert_eq!(node.note_beat(&beat_of(A, "me")), [PeerEvent::Joined(A)]);
    assert_eq!(node.events_after(5 * SECOND), [PeerEvent::Gone(A, GoneReason::Replaced)]);
    let conflict = |id| PeerEvent::NameConflict { name: "me".into(), nodes: [id, ME] };
    let events = node.hello(&hello_of(B, "me"));
    assert_eq!(events, [PeerEvent::Joined(B), conflict(B)]);
    let c = NodeId(3);
    let mut other = Node::new();
    let events = other.beating(10 * SECOND, &[&beat_of(c, "me")]);
    assert_eq!(events, [PeerEvent::Joined(c), conflict(c)]);
}

#[test]
fn node_restarted_later_is_accounted_for() {
    let mut node = Node::knowing(&beat_of(A, "web"));
    node.wait(40 * SECOND);
    assert!(node.peers.unaccounted().eq([A]));
    node.note_beat(&beat_of(B, "web"));
    assert_eq!(node.peers.unaccounted().count(), 0);
}

#[test]
fn hello_is_answered_within_200_ms_at_spread_times() {
    let mut answers = Vec::new();
    for seed in 0..100 {
        let mut peers = Peers::new(ME, "me", PeersConfig::default(), seed);
        peers.link_up(0);
        peers.hello(&hello_of(A, "a"), SECOND / 2, UNIX);
        let at = peers.next_ns().unwrap();
        assert!((SECOND / 2..SECOND / 2 + 200 * MILLISECOND).contains(&at));
        assert!(!peers.beat_due(at - 1) && peers.beat_due(at) && !peers.beat_due(at));
        answers.push(at);
    }
    answers.sort_unstable();
    let in_10_ms = |from: &u64| {
        answers.iter().filter(|it| (*from..from + 10 * MILLISECOND).contains(*it)).count()
    };
    assert!(answers.iter().map(in_10_ms).max().unwrap() < 25);
}

#[test]
fn own_heartbeats_stay_spaced_under_many_hellos() {
    let mut peers = Peers::new(ME, "me", PeersConfig::default(), 3);
    peers.link_up(0);
    let mut beats = Vec::new();
    for now_ms in 0..10_000_u64 {
        let now_ns = now_ms * MILLISECOND;
        peers.hello(&hello_of(A, "a"), now_ns, UNIX);
        if peers.beat_due(now_ns) {
            beats.push(now_ms);
        }
    }
    assert!(beats.windows(2).all(|it| (100..=200).contains(&(it[1] - it[0]))), "{beats:?}");
}

#[test]
fn own_heartbeats_average_two_seconds_and_stop_without_a_link() {
    let mut peers = Peers::new(ME, "me", PeersConfig::default(), 3);
    assert!(!peers.beat_due(100 * SECOND));
    peers.link_up(100 * SECOND);
    let (mut now_ns, mut spans) = (100 * SECOND, Vec::new());
    for _ in 0..1000 {
        let at = peers.next_ns().unwrap();
        assert!(peers.beat_due(at));
        spans.push((at - now_ns) / MILLISECOND);
        now_ns = at;
    }
    assert!(spans.iter().all(|it| (1600..=2400).contains(it)));
    assert!((1900..2100).contains(&(spans.iter().sum::<u64>() / 1000)));
    peers.link_down(now_ns);
    assert!(!peers.beat_due(now_ns + 100 * SECOND));
}

#[test]
fn different_settings_are_reported_once() {
    let own = vec![("room:*".into(), 1), ("chat:*".into(), 2), ("mine:*".into(), 3)];
    let mut node = Node::with(PeersConfig { settings: own, ..Default::default() });
    let hello = |settings: &[(&str, u64)]| {
        let settings = settings.iter().map(|it| (it.0.into(), it.1)).collect();
        Hello { beat: beat(A), settings }
    };
    let differ = |pattern: &str| PeerEvent::SettingsDiffer { node: A, pattern: pattern.into() };
    let first = hello(&[("room:*", 9), ("chat:*", 2), ("theirs:*", 7), ("room:*", 8)]);
    assert_eq!(node.hello(&first), [PeerEvent::Joined(A), differ("room:*")]);
    assert_eq!(node.hello(&first), []);
    assert!(node.peers.differing(A).eq(["room:*"]));
    assert_eq!(node.hello(&hello(&[("room:*", 1), ("chat:*", 0)])), [differ("chat:*")]);
    assert_eq!(node.hello(&hello(&[("room:*", 0)])), [differ("room:*")]);
    assert_eq!(node.peers.differing(B).count(), 0);
    // An own hello is due at a new difference only, so two nodes do not answer for ever.
    let other = hello(&[("chat:*", 0)]);
    assert!(node.peers.hello(&other, node.now_ns, UNIX));
    assert!(!node.peers.hello(&other, node.now_ns, UNIX));
}

#[test]
fn envelopes_use_the_newest_version_that_all_nodes_support() {
    let config = PeersConfig { envelopes: (1, 3), ..Default::default() };
    let mut node = Node::with(config);
    let with = |id, envelopes| Beat { envelopes, ..beat(id) };
    let version = PeerEvent::EnvelopeVersion;
    assert_eq!(node.peers.version, Some(3));
    assert_eq!(node.note_beat(&with(A, (1, 2))), [PeerEvent::Joined(A), version(Some(2))]);
    assert_eq!(node.note_beat(&with(B, (3, 4))), [PeerEvent::Joined(B), version(None)]);
    let c = NodeId(3);
    let alien = with(c, (7, 9));
    assert_eq!(node.note_beat(&alien), [PeerEvent::Joined(c), PeerEvent::Incompatible(c)]);
    assert_eq!(node.note_beat(&alien), []);
    assert!(node.peers.live().eq([A, B]));
    assert_eq!(node.peers.counts().incompatible, 1);
    node.peers.bye(B, node.now_ns);
    assert_eq!(node.events(), [PeerEvent::Gone(B, GoneReason::Bye), version(Some(2))]);
    assert_eq!(node.note_beat(&with(A, (1, 3))), [version(Some(3))]);
    node.wait(30 * SECOND);
    assert_eq!(node.peers.version, Some(3));
}

#[test]
fn heartbeats_beyond_the_node_limit_or_invalid_are_counted() {
    let mut node = Node::with(PeersConfig { peers_max: 2, ..Default::default() });
    for id in 1..=4 {
        node.note_beat(&beat(NodeId(id)));
    }
    assert_eq!(node.ids(), [A, B]);
    node.note_beat(&Beat { envelopes: (2, 1), ..beat(A) });
    node.note_beat(&beat_of(A, &"a".repeat(256)));
    node.note_beat(&beat(ME));
    node.peers.bye(ME, node.now_ns);
    let counts = PeerCounts { alive: 2, refused: 2, invalid: 2, ..Default::default() };
    assert_eq!((node.peers.counts(), node.ids()), (counts, vec![A, B]));
    node.peers.bye(A, node.now_ns);
    assert_eq!(node.note_beat(&beat(NodeId(4))).last(), Some(&PeerEvent::Joined(NodeId(4))));
}

#[test]
fn clock_offset_is_that_of_the_fastest_heartbeat() {
    let mut node = Node::new();
    for delay_ms in [40, 3, 900, 20] {
        node.peers.heard(&beat(A), node.now_ns, UNIX - 5000 + delay_ms);
    }
    let offset = |node: &Node| node.peers.get(A).unwrap().clock_offset_ms();
    assert_eq!(offset(&node), Some(4997));
    for _ in 0..8 {
        node.peers.heard(&beat(A), node.now_ns, UNIX + 100);
    }
    assert_eq!(offset(&node), Some(-100), "old ones are forgotten");
    node.peers.heard(&Beat { unix_ms: u64::MAX, ..beat(A) }, node.now_ns, 0);
    assert_eq!(offset(&node), Some(-100), "a mad clock has no estimate");
    assert_eq!(node.peers.get(A).unwrap().delay, None, "nor a delay");
}

#[test]
fn heartbeat_delay_is_relative_to_the_fastest_heartbeat() {
    let mut node = Node::new();
    let mut delays = Vec::new();
    for delay_ms in [40, 3, 900, 20, 3_600_000, 3] {
        node.peers.heard(&beat(A), node.now_ns, UNIX - 5000 + delay_ms);
        let delay = node.peers.get(A).unwrap().delay;
        delays.push(delay.map(|it| it.as_millis()));
    }
    assert_eq!(delays, [None, Some(0), Some(897), Some(17), None, Some(0)]);
    let counted = node.peers.delays();
    assert_eq!((counted.buckets.iter().sum::<u64>(), counted.sum_ns), (4, 914_000_000));
}

#[derive(Clone, Debug)]
enum Call {
    Beat(u64),
    Hello(u64),
    Bye(u64),
    LinkUp,
    LinkDown,
    Wait(u64),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        6 => (1..6_u64).prop_map(Call::Beat),
        2 => (1..6_u64).prop_map(Call::Hello),
        1 => (1..30_u64).prop_map(Call::Bye),
        1 => Just(Call::LinkUp),
        1 => Just(Call::LinkDown),
        20 => (0..4 * SECOND).prop_map(Call::Wait),
    ];
    prop::collection::vec(call, 0..200)
}

#[derive(Default)]
struct ModelEntry {
    is_peer: bool,
    has_said_bye: bool,
    unheard_ns: u64,
}

fn settled_ns(up_since_ns: Option<u64>, from_ns: u64, to_ns: u64) -> u64 {
    let Some(since_ns) = up_since_ns else { return 0 };
    to_ns.saturating_sub(from_ns.max(since_ns + 10 * SECOND))
}

#[derive(Default)]
struct KnownPeers {
    peers: BTreeSet<NodeId>,
    silent: BTreeSet<NodeId>,
}

impl KnownPeers {
    fn fold(&mut self, event: &PeerEvent) {
        let is_right = match event {
            PeerEvent::Joined(id) => self.peers.insert(*id),
            PeerEvent::Silent(id) => self.peers.contains(id) && self.silent.insert(*id),
            PeerEvent::Back(id) => self.silent.remove(id),
            PeerEvent::Missed(id) => self.peers.contains(id) && !self.silent.contains(id),
            PeerEvent::Gone(id, _) => {
                self.silent.remove(id);
                self.peers.remove(id)
            }
            _ => false,
        };
        assert!(is_right, "{event:?}");
    }
}

proptest! {
    #[test]
    fn node_is_gone_after_30_reachable_seconds_of_silence(
        calls in calls(),
        seed: u64,
    ) {
        let mut peers = Peers::new(ME, "me", PeersConfig::default(), seed);
        let mut model: BTreeMap<u64, ModelEntry> = BTreeMap::new();
        let mut told = KnownPeers::default();
        let (mut now_ns, mut up_since_ns) = (0, None);
        for call in calls {
            match call {
                Call::Beat(id) | Call::Hello(id) => {
                    match call {
                        Call::Beat(_) => peers.heard(&beat(NodeId(id)), now_ns, UNIX),
                        _ => {
                            let hello = Hello { beat: beat(NodeId(id)), settings: vec![] };
                            peers.hello(&hello, now_ns, UNIX);
                        }
                    }
                    let it = model.entry(id).or_default();
                    it.is_peer = !it.has_said_bye;
                    it.unheard_ns = 0;
                }
                Call::Bye(id) => {
                    peers.bye(NodeId(id), now_ns);
                    let it = model.entry(id).or_default();
                    (it.is_peer, it.has_said_bye) = (false, true);
                }
                Call::LinkUp => {
                    peers.link_up(now_ns);
                    up_since_ns = Some(now_ns);
                }
                Call::LinkDown => {
                    peers.link_down(now_ns);
                    up_since_ns = None;
                }
                Call::Wait(more) => {
                    let unheard_ns = settled_ns(up_since_ns, now_ns, now_ns + more);
                    model.values_mut().for_each(|it| it.unheard_ns += unheard_ns);
                    now_ns += more;
                }
            }
            let was_due = peers.next_ns().is_some_and(|it| it <= now_ns);
            let is_beat_due = peers.beat_due(now_ns);
            peers.tick(now_ns);
            model.values_mut().for_each(|it| it.is_peer &= it.unheard_ns < 30 * SECOND);
            let mut changed = is_beat_due;
            while let Some(event) = peers.poll_event() {
                changed |= matches!(
                    event,
                    PeerEvent::Silent(_) | PeerEvent::Gone(_, GoneReason::Silent)
                );
                told.fold(&event);
            }
            prop_assert!(was_due || !changed, "it was not due");
            prop_assert!(peers.next_ns().is_none_or(|it| it > now_ns), "nothing is left to do");
            let all = || model.iter().filter(|(_, it)| it.is_peer);
            prop_assert!(told.peers.iter().copied().eq(all().map(|it| NodeId(*it.0))));
            prop_assert!(peers.iter().map(Peer::id).eq(told.peers.iter().copied()));
            let silent = all().filter(|(_, it)| it.unheard_ns >= 10 * SECOND);
            prop_assert!(told.silent.iter().copied().eq(silent.map(|it| NodeId(*it.0))));
            let is_silent = |it: &&Peer| it.is_silent;
            prop_assert_eq!(peers.iter().filter(is_silent).count(), told.silent.len());
        }
    }
}
