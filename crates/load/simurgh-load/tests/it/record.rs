//! Recording, merging, thresholds and warnings, from outside.

use crate::support::made_up::{self, Hand, names};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use simurgh_load::record::figures::{self, lookup, nothing_worked, parse_threshold, verdicts};
use simurgh_load::record::{
    BroadcastPart, Count, Delta, Ending, ErrorKind, Hist, Live, Meta, Metric, MetricId, Record,
    Recorder, Seen, Warning, WorkerId,
};
use simurgh_load::scenario::Overrides;

#[derive(Clone, Debug)]
enum Event {
    Time(u16, u64),
    Count(usize, u64),
    Error(usize, u16, u8),
    Start(u16, u16, u64),
    Finish(u16, u16, u64),
    Abort(u16, u16, u64),
    Status(u16),
    Publish(u32, u32, u32),
    Deliver(u32, u32, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let us = prop_oneof![0..5_000_u64, 0..4_000_000_000_u64, Just(u64::MAX)];
    let user = (0..2_u16, 0..2_u16, us.clone());
    prop_oneof![
        (0..19_u16, us).prop_map(|(metric, us)| Event::Time(metric, us)),
        (0..Count::ALL.len(), 0..1_000_000_u64).prop_map(|(count, n)| Event::Count(count, n)),
        (0..ErrorKind::PLAIN.len(), 0..2_u16, 0..3_u8).prop_map(|(k, p, t)| Event::Error(k, p, t)),
        user.clone().prop_map(|(phase, session, us)| Event::Start(phase, session, us)),
        user.clone().prop_map(|(phase, session, us)| Event::Finish(phase, session, us)),
        user.prop_map(|(phase, session, us)| Event::Abort(phase, session, us)),
        (100..600_u16).prop_map(Event::Status),
        (1..4_u32, 0..4_u32, 0..9_u32).prop_map(|(p, s, expected)| Event::Publish(p, s, expected)),
        (1..4_u32, 0..4_u32, 0..5_000_000_u64).prop_map(|(p, s, ns)| Event::Deliver(p, s, ns)),
    ]
}

fn play(recorder: &mut Recorder, event: &Event) {
    match *event {
        Event::Time(metric, us) => recorder.time(MetricId(metric), us),
        Event::Count(count, n) => recorder.count(Count::ALL[count], n),
        Event::Error(kind, phase, text) => {
            recorder.error_with(ErrorKind::PLAIN[kind], phase, || text.to_string());
        }
        Event::Start(phase, session, us) => recorder.user_started(phase, session, us),
        Event::Finish(phase, session, us) => recorder.user_finished(phase, session, us),
        Event::Abort(phase, session, us) => recorder.user_aborted(phase, session, us),
        Event::Status(status) => recorder.status(status),
        Event::Publish(publisher, seq, expected) => {
            recorder.published(publisher, seq, 1_000_000, expected);
        }
        Event::Deliver(publisher, seq, ns) => {
            recorder.delivery(publisher, seq, 1_000_000, ns, None);
        }
    }
}

/// A record of several workers' events, merged in the given order, all in one second.
fn record_of(workers: &[Vec<Event>], order: &[usize], wire: bool) -> Record {
    let mut record = Record::new(made_up::meta());
    for &index in order {
        let mut recorder =
            Recorder::new(WorkerId { host: 0, thread: index as u16 }, &names(), false);
        for event in &workers[index] {
            play(&mut recorder, event);
        }
        let Some(delta) = recorder.take(0) else { continue };
        if wire {
            let text = serde_json::to_string(&delta).unwrap();
            let read: Delta = serde_json::from_str(&text).unwrap();
            assert_eq!(read, delta);
            record.merge(read);
        } else {
            record.merge(delta);
        }
    }
    record.finish(1000, Ending::Finished);
    record
}

fn without_workers(record: &Record) -> Live {
    Live { workers: Vec::new(), ..record.live() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// However events are split, merged and sent, the record is that of one worker with all.
    #[test]
    fn merging_records_is_lossless_in_any_order(
        events in prop::collection::vec((event(), 0..4_usize), 0..120),
        order in Just([0, 1, 2, 3]).prop_shuffle(),
    ) {
        let mut workers = vec![Vec::new(); 4];
        for (event, worker) in &events {
            workers[*worker].push(event.clone());
        }
        let alone = [events.into_iter().map(|(event, _)| event).collect::<Vec<_>>()];
        let alone = record_of(&alone, &[0], false);
        let split = record_of(&workers, &order, true);
        prop_assert_eq!(without_workers(&split), without_workers(&alone));
        let straight = record_of(&workers, &[0, 1, 2, 3], false);
        prop_assert_eq!(split.live(), straight.live());
        prop_assert_eq!(split.all_times(), straight.all_times());
    }

    /// The percentiles of a histogram are those of a sorted list, to three digits.
    #[test]
    fn percentiles_are_exact_to_three_digits(
        mut times in prop::collection::vec(0..3_600_000_000_u64, 1..300),
        percent in 0.1..100.0_f64,
    ) {
        let mut hist: Hist = Hist::new();
        for &us in &times {
            hist.record(us);
        }
        times.sort_unstable();
        let rank = (percent / 100.0 * times.len() as f64).ceil().max(1.0) as usize;
        let exact = times[rank - 1] as f64;
        let found = hist.percentile(percent) as f64;
        prop_assert!((found - exact).abs() <= exact * 0.001 + 1.0, "{} for {}", found, exact);
    }

    /// A histogram with changed bytes is read or refused, and does not allocate what it claims.
    #[test]
    fn a_forged_histogram_is_harmless(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        high in any::<bool>(),
    ) {
        let mut hist: Hist = Hist::new();
        for us in 0..200 {
            hist.record(us * us);
        }
        let text = serde_json::to_value(&hist).unwrap();
        let mut bytes = STANDARD.decode(text.as_str().unwrap()).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = if high { 0xFF } else { byte };
        }
        let text = STANDARD.encode(bytes);
        if let Ok(mut read) = serde_json::from_value::<Hist>(text.into()) {
            read.add(&hist);
            read.record(5);
            prop_assert!(read.count() > hist.count());
        }
    }

    /// Whatever bytes an agent or a journal has: an error, never a panic.
    #[test]
    fn any_text_is_parsed_without_a_panic(text in ".{0,80}") {
        let _ = serde_json::from_value::<Hist>(text.clone().into());
        let _ = parse_threshold("join_p99", &text);
        let _ = parse_threshold(&text, "< 5ms");
        let _ = text.parse::<ErrorKind>();
    }
}

#[test]
fn a_damaged_histogram_is_refused() {
    let mut hist: Hist = Hist::new();
    for us in 0..500 {
        hist.record(us * us);
    }
    let whole = serde_json::to_value(&hist).unwrap();
    assert_eq!(serde_json::from_value::<Hist>(whole.clone()).unwrap(), hist);
    let text = whole.as_str().unwrap();
    for end in 0..text.len() {
        assert!(serde_json::from_value::<Hist>(text[..end].into()).is_err(), "cut at {end}");
    }
}

#[test]
fn histogram_that_claims_gigabytes_is_refused_without_allocation() {
    let whole = serde_json::to_value(Hist::<u32>::new()).unwrap();
    let whole = STANDARD.decode(whole.as_str().unwrap()).unwrap();
    // Length of the counts, digits, first and last value, each as large as possible.
    for (at, bytes) in [(4, 4), (12, 4), (16, 8), (24, 8)] {
        let mut forged = whole.clone();
        forged[at..at + bytes].fill(0xFF);
        let read = serde_json::from_value::<Hist>(STANDARD.encode(forged).into());
        assert!(read.unwrap_err().to_string().contains("another range"));
    }
    let mut forged = whole.clone();
    forged.extend([0xFF; 9]);
    forged[7] += 9;
    let read = serde_json::from_value::<Hist>(STANDARD.encode(forged).into());
    assert!(read.unwrap_err().to_string().contains("another range"));
}

#[test]
fn recorder_without_changes_returns_no_delta() {
    let mut hand = Hand::new(0, 0, 1);
    assert!(hand.work(1000).is_some());
    assert!(hand.recorder.take(5).is_none());
    hand.recorder.gauges(0, 0);
    assert!(hand.recorder.take(6).is_some(), "the gauges have changed");
    hand.recorder.gauges(0, 0);
    assert!(hand.recorder.take(7).is_none());
    hand.recorder.count(Count::PingsIn, 1);
    // CPU time of the silent seconds is not lost.
    assert_eq!(hand.recorder.take(106).map(|delta| delta.cpu_ns), Some(100));
}

#[test]
fn duplicate_and_reordered_messages_are_each_counted_once() {
    let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
    let mut seen = Seen::default();
    for (seq, received_ns) in [(1, 5000), (2, 6000), (2, 9000), (1, 9500), (3, 100)] {
        recorder.delivery(4, seq, 1000, received_ns, Some(&mut seen));
    }
    let delta = recorder.take(0).unwrap();
    assert_eq!(delta.counts[Count::Deliveries], 5);
    assert_eq!(delta.counts[Count::DeliveriesDuplicate], 1);
    assert_eq!(delta.counts[Count::DeliveriesOutOfOrder], 1);
    assert_eq!(delta.counts[Count::DeliveriesBeforeSent], 1);
    let of = |seq| *delta.broadcasts.iter().find(|part| part.seq == seq).unwrap();
    assert_eq!((of(1).receivers, of(1).first_ns, of(1).last_ns), (2, 5000, 9500));
    assert_eq!((of(2).receivers, of(2).last_ns), (1, 6000));
}

fn part(seq: u32, first_ns: u64, last_ns: u64, receivers: u32, expected: u32) -> Delta {
    let sent_ns = 1_000_000;
    let part = BroadcastPart { publisher: 1, seq, sent_ns, first_ns, last_ns, receivers, expected };
    Delta { broadcasts: vec![part], ..Delta::default() }
}

#[test]
fn broadcast_is_complete_after_two_seconds_without_deliveries() {
    let mut record = Record::new(made_up::meta());
    record.merge(part(1, u64::MAX, 0, 0, 0));
    record.merge(part(1, 3_000_000, 4_000_000, 10, 0));
    record.close_second(1000);
    record.merge(part(1, 2_000_000, 9_000_000, 5, 0));
    record.close_second(2000);
    assert!(record.times(Metric::LastReceiver).is_none(), "still under way");
    record.close_second(3000);
    let tick = record.close_second(4000);
    assert_eq!(record.counts()[Count::BroadcastsComplete], 1);
    assert_eq!(record.times(Metric::FirstReceiver).unwrap().max(), 1000);
    let last = record.times(Metric::LastReceiver).unwrap();
    assert_eq!((last.count(), last.percentile(50.0)), (1, 8003), "8 ms, to three digits");
    assert_eq!((tick.broadcasts[0].receivers, tick.broadcasts[0].last_us), (15, 8000));
    record.merge(part(1, 9_000_000, 9_000_000, 3, 0));
    record.close_second(5000);
    assert_eq!(record.counts()[Count::DeliveriesAfterwards], 3);
    assert_eq!(record.counts()[Count::BroadcastsComplete], 1);
}

#[test]
fn undelivered_broadcasts_count_as_missing_deliveries() {
    let mut record = Record::new(made_up::meta());
    record.merge(part(1, 2_000_000, 3_000_000, 7, 10));
    record.merge(part(2, 2_000_000, 3_000_000, 10, 10));
    for second in 1..=5 {
        record.close_second(second * 1000);
    }
    assert_eq!(record.counts()[Count::BroadcastsComplete], 1, "one waits for the missing");
    record.finish(5500, Ending::Stopped);
    assert_eq!(record.counts()[Count::BroadcastsComplete], 2);
    assert_eq!(record.counts()[Count::DeliveriesMissing], 3);
}

#[test]
fn a_lost_agent_is_reported_and_its_users_counted() {
    let mut record = Record::new(made_up::meta());
    for host in [0, 1] {
        let worker = WorkerId { host, thread: 0 };
        record.merge(Delta { worker, users: 40, connected: 30, ..Delta::default() });
    }
    record.close_second(1000);
    assert_eq!((record.users(), record.connected()), (80, 60));
    assert_eq!(record.host_lost(1), 40);
    assert_eq!(record.host_lost(1), 0, "once");
    record.close_second(2000);
    assert_eq!((record.users(), record.connected()), (40, 30));
    assert_eq!(record.errors().of_kind(ErrorKind::WorkerLost), 40);
    assert!(record.live().workers[1].worker.lost);
    let text = record.warnings()[0].to_string();
    assert!(text.contains("agent.example:9000") && text.contains("40 users"), "{text}");
    record.close_second(3000);
    assert_eq!(record.errors().total(), 40);
}

#[test]
fn a_busy_worker_makes_a_run_untrustworthy() {
    let mut record = Record::new(made_up::meta());
    let second = |cpu_ns| {
        let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
        recorder.count(Count::PingsIn, 1);
        recorder.take(cpu_ns).unwrap()
    };
    for (at_ms, cpu_ns) in [(1000, 950_000_000), (2000, 980_000_000), (3000, 500_000_000)] {
        record.merge(second(cpu_ns));
        record.close_second(at_ms);
    }
    assert!(record.live().trustworthy, "two seconds are no lasting state");
    for at_ms in [4000, 5000, 6000, 7000] {
        record.merge(second(990_000_000));
        record.close_second(at_ms);
    }
    assert!(!record.live().trustworthy);
    assert_eq!(record.warnings().len(), 1, "{:?}", record.warnings());
}

#[test]
fn lasting_late_arrivals_cause_a_warning() {
    let mut record = Record::new(made_up::meta());
    for second in 1..=3 {
        let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
        recorder.user_started(0, 0, 25_000);
        record.merge(recorder.take(0).unwrap());
        record.close_second(second * 1000);
        // A second without arrivals neither ends nor lengthens it.
        assert_eq!(record.warnings().len(), usize::from(second == 3));
    }
    assert_eq!(record.warnings()[0].code(), "arrivals_late");
    assert_eq!(lookup(&record, "late_arrivals"), Some(1.0));
}

/// The warning names the generator if its workers were busy, and the machine if they were not.
#[test]
fn late_steps_make_a_run_untrustworthy() {
    for (cpu_ns, remedy) in [(950_000_000, "use more workers"), (300_000_000, "30 % of a core")] {
        let mut record = Record::new(made_up::meta());
        for second in 1..=3 {
            let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
            recorder.step_lag(25_000);
            record.merge(recorder.take(cpu_ns).unwrap());
            record.close_second(second * 1000);
        }
        let late = record.warnings().iter().find(|it| it.code() == "steps_late");
        let text = late.map(Warning::to_string).unwrap_or_default();
        assert!(text.starts_with("3 of 3 timed steps") && text.contains(remedy), "{text}");
        assert!(!record.live().trustworthy);
    }
}

/// A single stall is enough; short delays have to last.
#[test]
fn stalled_load_generator_makes_a_run_untrustworthy() {
    for (lag_us, seconds) in [(1_000_000, 1), (25_000, 3)] {
        let mut record = Record::new(made_up::meta());
        for second in 1..=seconds {
            assert!(record.live().trustworthy, "{lag_us} µs, second {second}");
            let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
            recorder.tick_lag(lag_us);
            record.merge(recorder.take(0).unwrap());
            record.close_second(second * 1000);
        }
        let late = record.warnings().iter().find(|it| it.code() == "generator_late");
        let text = late.map(Warning::to_string).unwrap_or_default();
        assert!(
            text.contains(&format!("more than 10 ms late (up to {} ms)", lag_us / 1000)),
            "{text}"
        );
        assert!(!record.live().trustworthy);
    }
}

#[test]
fn unanswered_requests_at_the_end_cause_a_warning() {
    for (open, warned) in [(1, 0), (2, 1)] {
        let mut record = Record::new(made_up::meta());
        let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
        recorder.count(Count::Requests, 100);
        recorder.count(Count::RequestsOpen, open);
        record.merge(recorder.take(0).unwrap());
        record.close_second(1000);
        assert_eq!(record.warnings().len(), 0);
        record.finish(1500, Ending::Duration);
        assert_eq!(record.warnings().len(), warned, "{open}");
        assert!(record.live().trustworthy);
    }
}

#[test]
fn failed_checks_are_in_the_summary() {
    let mut record = Record::new(made_up::meta());
    assert!(simurgh_load::report::summary(&record).contains("No errors."));
    let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
    recorder.count(Count::NoMatches, 7);
    record.merge(recorder.take(0).unwrap());
    record.close_second(1000);
    let text = simurgh_load::report::summary(&record);
    assert!(text.contains("checks failed") && !text.contains("No errors."), "{text}");
}

#[test]
fn exhausted_load_generator_makes_a_run_untrustworthy() {
    for kind in [ErrorKind::NoDescriptors, ErrorKind::NoPorts, ErrorKind::NoMemory] {
        let mut record = Record::new(made_up::meta());
        let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
        recorder.error(kind, 0);
        record.merge(recorder.take(0).unwrap());
        record.close_second(1000);
        assert!(!record.live().trustworthy, "{kind:?}");
    }
}

#[test]
fn run_with_only_errors_counts_as_nothing_worked() {
    let errors = |worked: Option<Count>| {
        let mut record = Record::new(made_up::meta());
        let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
        recorder.error(ErrorKind::ConnectRefused, 0);
        worked.into_iter().for_each(|count| recorder.count(count, 1));
        record.merge(recorder.take(0).unwrap());
        record.close_second(1000);
        nothing_worked(&record)
    };
    assert!(errors(None) && errors(Some(Count::Connects)));
    for worked in [Count::Upgrades, Count::HttpAnswers, Count::UsersFinished] {
        assert!(!errors(Some(worked)), "{worked:?}");
    }
    assert!(!nothing_worked(&Record::new(made_up::meta())), "no error");
    let mut record = Record::new(made_up::meta());
    let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
    recorder.count(Count::RequestsUnanswered, 1);
    record.merge(recorder.take(0).unwrap());
    record.close_second(1000);
    assert!(nothing_worked(&record), "no answer");
    record.finish(1500, Ending::Stopped);
    assert!(!nothing_worked(&record), "stopped before an answer could come");
}

#[test]
fn exhausted_resource_is_reported_with_the_connection_count() {
    let mut record = Record::new(made_up::meta());
    let mut recorder = Recorder::new(WorkerId::default(), &names(), false);
    for kind in [ErrorKind::NoDescriptors, ErrorKind::NoPorts, ErrorKind::ConnectRefused] {
        recorder.error(kind, 0);
    }
    recorder.gauges(9, 1234);
    record.merge(recorder.take(0).unwrap());
    record.close_second(1000);
    let said: Vec<String> = record.warnings().iter().map(Warning::to_string).collect();
    assert_eq!(said.len(), 3);
    assert!(said[0].contains("descriptor limit reached at 1234") && said[0].contains("ulimit -n"));
    assert!(said[1].contains("ports exhausted at 1234") && said[1].contains("--source"));
    assert!(said[2].contains("refused 1 connections"), "{}", said[2]);
}

#[test]
fn thresholds_are_parsed_and_evaluated() {
    let table = [
        // figure, condition, value as read, holds in the run of seed 1
        ("join_p99", "< 50ms", 50_000.0, false),
        ("join_p99", "<= 10 s", 10_000_000.0, true),
        ("join_p99.9", ">1us", 1.0, true),
        ("join_p99_9", "< 2min", 120_000_000.0, true),
        ("connect_max", "< 1h", 3_600_000_000.0, true),
        ("connect_count", "> 0", 0.0, true),
        ("request_p50", "< 10s", 10_000_000.0, true),
        ("tr_login_max", "< 90.1ms", 90_100.0, true),
        ("tr_unknown_max", "< 1s", 1_000_000.0, false),
        ("http_p99", "< 1s", 1_000_000.0, false),
        ("http_count", "== 0", 0.0, true),
        ("errors", "== 0", 0.0, false),
        ("errors", "= 0", 0.0, false),
        ("errors_connect_refused", "!= 0", 0.0, true),
        ("errors_tls", "== 0", 0.0, true),
        ("errors_closed_1011", ">= 1", 1.0, true),
        ("connected", ">= 100_000", 100_000.0, false),
        ("connected", "> 0.1k", 100.0, true),
        ("users", "< 1M", 1_000_000.0, true),
        ("messages_per_second", "> 1", 1.0, true),
        ("frames_in_per_second", "> 100k/s", 0.0, false),
        ("late_arrivals", "< 0.5%", 0.005, true),
        ("late_arrivals", "< 0.005", 0.005, true),
        ("arrivals_in_time", ">= 99.5%", 0.995, true),
        ("error_share", "< 50%", 0.5, true),
        ("http_503", "> 0", 0.0, true),
        ("deliveries_duplicate", "== 0", 0.0, true),
        ("delivery_p99.9", "< 50ms", 50_000.0, true),
        ("duration", "== 25.4s", 25_400_000.0, true),
        ("cpu", "> 1ms", 1000.0, true),
    ];
    let record = made_up::run(1);
    for (figure, text, value, holds) in table {
        let read = parse_threshold(figure, text);
        if text.ends_with("k/s") {
            assert!(read.is_err(), "{figure} {text}");
            continue;
        }
        let threshold = read.unwrap();
        assert!((threshold.value - value).abs() <= value * 1e-12, "{figure} {text}: {threshold:?}");
        let verdict = verdicts(&record, &[threshold]).remove(0);
        assert_eq!(verdict.passed, holds, "{verdict:?}");
    }
}

#[test]
fn meaningless_threshold_is_refused_with_advice() {
    let table = [
        ("join_p99", "50ms", "compares nothing"),
        ("join_p99", "< 50", "needs a unit"),
        ("join_p99", "", "\"join_p99\" compares nothing"),
        ("join_p99", "<", "the value is missing"),
        ("join_p99", "< soon", "\"soon\" is not a number"),
        ("join_p99", "< 5 parsecs", "is not a unit"),
        ("errors", "== 5ms", "is not a unit"),
        ("errors", "== -1", "is not a number"),
        ("late_arrivals", "< 5", "0 to 1"),
        ("join_99", "< 5ms", "did you mean \"join_p99\""),
        ("conected", "> 5", "did you mean \"connected\""),
        ("join_p101", "< 5ms", "there is no figure"),
        ("join_pNaN", "< 5ms", "there is no figure"),
        ("tr__max", "< 5ms", "there is no figure"),
        ("errors_nonsense", "== 0", "there is no figure"),
        ("", "== 0", "there is no figure"),
    ];
    for (figure, text, says) in table {
        let error = parse_threshold(figure, text).expect_err(figure);
        assert!(error.contains(says), "{figure} {text}: {error}");
    }
}

#[test]
fn every_listed_figure_name_is_valid() {
    for name in figures::names() {
        let name = name
            .replace("NAME", "login")
            .replace("KIND", "connect_refused")
            .replace("STATUS", "200");
        assert!(figures::unit(&name).is_some(), "{name}");
    }
}

#[test]
fn record_lists_the_names_of_a_scenario_in_order() {
    let text = r#"<?xml version="1.0"?>
<!DOCTYPE tsung SYSTEM "tsung-1.0.dtd">
<tsung loglevel="notice">
  <clients><client host="localhost" use_controller_vm="true"/></clients>
  <servers><server host="127.0.0.1" port="4000" type="tcp"/></servers>
  <load>
    <arrivalphase phase="1" duration="1" unit="minute">
      <users arrivalrate="1" unit="second"/>
    </arrivalphase>
    <user session="b" start_time="3" unit="second"/>
  </load>
  <sessions>
    <session name="a" probability="50" type="ts_websocket">
      <transaction name="outer">
        <for from="1" to="2" var="i">
          <transaction name="inner"><request><websocket type="connect"/></request></transaction>
        </for>
      </transaction>
    </session>
    <session name="b" probability="50" type="ts_websocket">
      <transaction name="outer"><request><websocket type="connect"/></request></transaction>
      <transaction name="last"><request><websocket type="close"/></request></transaction>
    </session>
  </sessions>
</tsung>"#;
    let loaded = simurgh_load::tsung::read(text, ".".as_ref(), &Overrides::default());
    let scenario = loaded.unwrap_or_else(|faults| panic!("{faults}")).scenario;
    let meta = Meta::of(&scenario, vec!["local".to_owned()], std::time::UNIX_EPOCH);
    assert_eq!(meta.names.transactions, ["outer", "inner", "last"]);
    assert_eq!(meta.names.sessions, ["a", "b"]);
    assert_eq!(meta.names.phases, ["1", "appointments"]);
    assert_eq!(meta.names.appointments(&scenario), Some(1));
    assert_eq!(meta.names.metric("join"), Some(Metric::Join.into()));
    let inner = meta.names.metric("tr_inner").unwrap();
    assert_eq!(usize::from(inner.0), Metric::ALL.len() + 1);
    assert_eq!(meta.names.metric_name(inner), "tr_inner");
    assert_eq!(meta.names.metric("tr_nothing"), None);
    // Users with an appointment have a row, too.
    assert_eq!(Record::new(meta).live().phases.len(), 2);
}
