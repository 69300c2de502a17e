//! The log of notices on several nodes (B47): appends, followers, purges, and faults of the broker.

use simurgh_cluster::{LogCommand, LogEvent, NOTICES, SplitMix64};

use super::*;

/// A partition as a node has read it.
#[derive(Debug, Default)]
struct Seen {
    begun: usize,
    epochs: Vec<String>,
    places: Vec<u64>,
    records: Vec<String>,
    failed: usize,
}

impl Simulation {
    fn with_log(nodes: usize, seed: u64, config: NetworkConfig) -> Self {
        let mut it = Self::on(Network::new(seed, config), 0, 30 * SECOND);
        it.settings = vec![(NOTICES.into(), 1)];
        for _ in 0..nodes {
            it.starts("a");
        }
        it.advance(2 * SECOND);
        it
    }

    fn log(&mut self, at: usize, command: LogCommand) {
        let Node { cluster, heard } = self.node(at);
        cluster.log(command, heard);
    }

    fn append(&mut self, at: usize, partition: u8, records: impl Iterator<Item = usize>) {
        let records = records.map(|n| format!("{at}-{n}").into_bytes()).collect();
        self.log(at, LogCommand::Append(partition, records));
    }

    /// All that a node has read of a partition; the last `Begun` replaces what was before.
    fn seen(&mut self, at: usize, partition: u8) -> Seen {
        let mut seen = Seen::default();
        for event in &self.node(at).heard.log {
            match event {
                LogEvent::Begun { partition: of, epoch, records } if *of == partition => {
                    seen.begun += 1;
                    seen.epochs.push(epoch.to_string());
                    (seen.places, seen.records) = (Vec::new(), Vec::new());
                    records.iter().for_each(|(place, record)| seen.add(*place, record));
                }
                LogEvent::Next { partition: of, place, record } if *of == partition => {
                    seen.add(*place, record);
                }
                LogEvent::AppendFailed(of) if *of == partition => seen.failed += 1,
                _ => {}
            }
        }
        seen
    }

    fn again(&mut self, at: usize) -> Option<(Vec<(u64, Bytes)>, bool)> {
        self.node(at).heard.log.iter().rev().find_map(|event| match event {
            LogEvent::Again { records, is_all, .. } => Some((records.clone(), *is_all)),
            _ => None,
        })
    }
}

impl Seen {
    #[track_caller]
    fn add(&mut self, place: u64, record: &Bytes) {
        assert!(self.places.last().is_none_or(|last| *last < place), "places grow");
        self.places.push(place);
        self.records.push(String::from_utf8(record.to_vec()).unwrap());
    }
}

fn numbered(at: usize, numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|n| format!("{at}-{n}")).collect()
}

#[test]
fn b47_followers_read_one_log_in_order() {
    let mut it = Simulation::with_log(3, 1, NetworkConfig::default());
    it.log(0, LogCommand::Follow(3));
    it.log(1, LogCommand::Follow(3));
    it.advance(100 * MILLISECOND);
    assert_eq!((it.seen(0, 3).begun, it.seen(0, 3).records.len()), (1, 0));
    it.append(0, 3, 0..200);
    it.append(0, 3, 200..201);
    it.append(0, 4, 0..1);
    it.advance(100 * MILLISECOND);
    assert_eq!(it.seen(0, 3).records, numbered(0, 0..201));
    it.append(1, 3, 0..3);
    it.advance(1_100 * MILLISECOND);
    let all = [numbered(0, 0..201), numbered(1, 0..3)].concat();
    it.log(2, LogCommand::Follow(3));
    it.advance(100 * MILLISECOND);
    let places = it.seen(0, 3).places;
    for at in 0..3 {
        let seen = it.seen(at, 3);
        assert_eq!((&seen.records, &seen.places), (&all, &places));
        assert_eq!(seen.epochs, vec![it.seen(0, 3).epochs[0].clone(); seen.begun]);
        // An empty log has no place from which to go on.
        assert_eq!(seen.begun, [2, 2, 1][at]);
    }
    it.log(2, LogCommand::Leave(3));
    it.append(0, 3, 300..301);
    it.advance(2 * SECOND);
    assert_eq!((it.seen(2, 3).records.len(), it.seen(1, 3).records.len()), (204, 205));
}

#[test]
fn b48_purge_leaves_the_records_from_its_place_on() {
    let mut it = Simulation::with_log(2, 2, NetworkConfig::default());
    it.log(0, LogCommand::Follow(0));
    it.append(0, 0, 0..130);
    it.append(0, 0, 130..140);
    it.advance(SECOND);
    let before = it.seen(0, 0).places[130];
    it.log(0, LogCommand::Purge(0, before));
    it.append(0, 0, 140..141);
    it.advance(SECOND);
    it.log(1, LogCommand::Follow(0));
    it.advance(SECOND);
    assert_eq!(it.seen(1, 0).records, numbered(0, 130..141));
    let seen = it.seen(0, 0);
    assert_eq!((seen.begun, seen.records), (1, numbered(0, 0..141)), "it has read all of them");
}

/// Also for a node that has just appended: it reads its records back before the copy has them.
#[test]
fn b47_log_is_read_to_its_end_if_copies_lag_behind() {
    let lag_ns = SECOND / 2..=SECOND / 2;
    let mut it = Simulation::with_log(2, 9, NetworkConfig { lag_ns, ..NetworkConfig::default() });
    it.log(0, LogCommand::Follow(0));
    it.append(0, 0, 0..1);
    it.advance(SECOND);
    it.append(0, 0, 1..300);
    it.advance(10 * MILLISECOND);
    assert_eq!(it.seen(0, 0).records, numbered(0, 0..300));
    it.log(1, LogCommand::Follow(0));
    it.advance(10 * MILLISECOND);
    let seen = it.seen(1, 0);
    assert_eq!((seen.begun, seen.records), (1, numbered(0, 0..300)));
}

/// It would not know that another coordinator has taken the log.
#[test]
fn b47_follower_reads_the_log_again_if_unread_records_were_purged() {
    let mut it = Simulation::with_log(2, 3, NetworkConfig::default());
    (0..2).for_each(|at| it.log(at, LogCommand::Follow(0)));
    it.append(0, 0, 0..10);
    it.advance(2 * SECOND);
    it.network.cut(1, Direction::Both);
    it.append(0, 0, 10..20);
    it.append(0, 0, 20..21);
    it.advance(SECOND);
    let before = it.seen(0, 0).places[20];
    it.log(0, LogCommand::Purge(0, before));
    it.advance(SECOND);
    it.network.mend(1);
    it.advance(15 * SECOND);
    let seen = it.seen(1, 0);
    assert_eq!(seen.records, numbered(0, 20..21));
    assert_eq!(seen.begun, it.seen(0, 0).begun + 1);
}

#[test]
fn b57_appends_wait_while_the_broker_is_away() {
    let mut it = Simulation::with_log(1, 4, NetworkConfig::default());
    it.log(0, LogCommand::Follow(0));
    it.append(0, 0, 0..1);
    it.advance(SECOND);
    it.network.kill();
    it.advance(10 * SECOND);
    it.append(0, 0, 1..100);
    it.advance(60 * SECOND);
    it.network.restart(RestartData::Stays);
    it.advance(20 * SECOND);
    let seen = it.seen(0, 0);
    assert_eq!((seen.begun, seen.failed, seen.records), (1, 0, numbered(0, 0..100)));
}

/// What was in flight may be in the log; what was behind it is not.
#[test]
fn b47_append_without_an_answer_fails_with_all_that_follow() {
    let mut it = Simulation::with_log(1, 5, NetworkConfig::default());
    it.log(0, LogCommand::Follow(0));
    it.append(0, 0, 0..1);
    it.advance(SECOND);
    it.network.set_leader(false);
    it.append(0, 0, 1..200);
    it.append(0, 0, 200..300);
    it.advance(10 * SECOND);
    assert_eq!(it.seen(0, 0).failed, 1);
    it.network.set_leader(true);
    it.append(0, 0, 300..301);
    it.advance(10 * SECOND);
    let seen = it.seen(0, 0);
    assert_eq!((seen.begun, seen.failed), (1, 1));
    let late = seen.records.len() - 2;
    assert!(late == 0 || late == 64, "{late} late ones");
    assert_eq!(seen.records[seen.records.len() - 1], "0-300");
}

#[test]
fn b51_log_without_its_data_has_another_epoch() {
    let mut it = Simulation::with_log(2, 6, NetworkConfig::default());
    it.log(0, LogCommand::Follow(0));
    it.append(0, 0, 0..100);
    it.advance(SECOND);
    it.network.restart(RestartData::Stays);
    it.advance(10 * SECOND);
    assert_eq!(it.seen(0, 0).begun, 1);
    it.network.restart(RestartData::Lost);
    it.advance(10 * SECOND);
    let seen = it.seen(0, 0);
    assert_eq!((seen.begun, seen.records.len()), (2, 0));
    assert_ne!(seen.epochs[0], seen.epochs[1]);
    it.append(0, 0, 0..1);
    it.advance(SECOND);
    assert_eq!(it.seen(0, 0).records, numbered(0, 0..1));
}

#[test]
fn b57_records_are_read_again_in_parts() {
    let mut it = Simulation::with_log(1, 7, NetworkConfig::default());
    it.log(0, LogCommand::Follow(0));
    // A page has a thousand envelopes.
    for n in 0..1_200 {
        it.append(0, 0, 2 * n..2 * n + 2);
    }
    it.advance(3 * SECOND);
    let places = it.seen(0, 0).places;
    assert_eq!(places.len(), 2_400);
    let (mut from, mut parts) = (1_001, 0);
    loop {
        // A place within an envelope.
        it.log(0, LogCommand::Read(0, places[from - 1]));
        it.advance(100 * MILLISECOND);
        let (records, is_all) = it.again(0).unwrap();
        let found: Vec<u64> = records.iter().map(|(place, _)| *place).collect();
        assert_eq!(found, places[from..from + found.len()]);
        (from, parts) = (from + found.len(), parts + 1);
        if is_all {
            break;
        }
        assert_ne!(from, places.len());
    }
    assert_eq!((from, parts), (2_400, 1));
    it.log(0, LogCommand::Read(0, 0));
    it.advance(100 * MILLISECOND);
    let (records, is_all) = it.again(0).unwrap();
    assert_eq!((records.len(), is_all), (2_000, false));
}

#[test]
fn b46_other_nodes_are_reported_with_those_that_may_coordinate() {
    let mut it = Simulation::with_log(3, 8, NetworkConfig::default());
    it.settings.clear();
    // Without notices.
    it.starts("a");
    let last = |it: &mut Simulation| {
        let mut peers = it.node(0).heard.log.iter().rev().filter_map(|event| match event {
            LogEvent::Peers { peers, is_candidate } => Some((peers.clone(), *is_candidate)),
            _ => None,
        });
        let (peers, is_candidate) = peers.next().unwrap();
        let peers = peers.iter().map(|peer| (peer.id, &*peer.name == "node-1", peer.is_candidate));
        (peers.collect::<Vec<_>>(), is_candidate)
    };
    it.advance(2 * SECOND);
    assert_eq!(last(&mut it), (vec![(1001, true, true), (1002, false, true)], true));
    let of_later = it.node(2).heard.log.iter().rev().find_map(|event| match event {
        LogEvent::Peers { peers, .. } => Some(peers.iter().map(|peer| peer.id).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(of_later, Some(vec![1000, 1001]), "those that began before it");
    let (time, count) = (it.time(), it.node(0).heard.log.len());
    it.advance(10 * SECOND);
    assert_eq!(it.node(0).heard.log.len(), count + 10, "once a second");
    it.node(1).cluster.drain(time);
    it.bye(2);
    it.node(0).cluster.drain(time);
    it.advance(1_100 * MILLISECOND);
    assert_eq!(last(&mut it), (vec![(1001, true, false)], false));
    it.stop(1);
    it.advance(35 * SECOND);
    assert_eq!(last(&mut it), (vec![], false));
}

/// With lagging copies, broken links, restarts and elections: a follower has the whole log in the
/// end, in order. Records of one append are in order, and all are there unless a failure was
/// reported.
#[test]
fn b47_log_has_no_hole_through_all_faults() {
    for seed in 0..20 {
        let lag_ns = 0..=[0, 400 * MILLISECOND][seed as usize % 2];
        let config = NetworkConfig { lag_ns, ..NetworkConfig::default() };
        let mut it = Simulation::with_log(3, seed, config);
        let mut rng = SplitMix64::new(seed);
        (0..2).for_each(|at| it.log(at, LogCommand::Follow(0)));
        it.advance(2 * SECOND);
        let mut sent = [0; 2];
        for _ in 0..60 {
            let at = rng.within(&(0..=1)) as usize;
            let count = rng.within(&(1..=150)) as usize;
            match rng.within(&(0..=9)) {
                0 => it.network.cut(at, Direction::Both),
                1 => it.network.reset(at),
                2 => it.network.restart(RestartData::Stays),
                3 => it.network.set_leader(false),
                4 | 5 => {
                    it.network.mend(at);
                    it.network.set_leader(true);
                }
                _ => {
                    it.append(at, 0, sent[at]..sent[at] + count);
                    sent[at] += count;
                }
            }
            it.advance(rng.within(&(0..=2_000)) * MILLISECOND);
        }
        (0..2).for_each(|at| it.network.mend(at));
        it.network.set_leader(true);
        it.advance(40 * SECOND);
        it.log(2, LogCommand::Follow(0));
        it.advance(2 * SECOND);
        let all = it.seen(2, 0);
        for (at, sent) in sent.into_iter().enumerate() {
            let seen = it.seen(at, 0);
            assert_eq!((&seen.records, &seen.places), (&all.records, &all.places), "seed {seed}");
            let number = |record: &String| record.strip_prefix(&format!("{at}-"))?.parse().ok();
            let own: Vec<usize> = all.records.iter().filter_map(number).collect();
            assert!(own.is_sorted_by(|a, b| a < b), "seed {seed}: order");
            assert!(seen.failed > 0 || own.len() == sent, "seed {seed}: all or a failure");
        }
    }
}
