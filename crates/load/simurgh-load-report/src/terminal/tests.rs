//! Tests of the view and the keys.

use ratatui::buffer::Buffer;
use simurgh_load_record::{
    Count, Ending, ErrorKind, Meta, Metric, Names, Recorder, Warning, WorkerId,
};

use super::*;
use crate::control::Command;

const HOSTILE: &str = "lob\x1b[2Jby\n\u{9b}31m";

/// A run of this many seconds, with one more user in each.
fn options(seconds: u64) -> (Options, Receiver<Command>) {
    let plan = |name: &str, starts_s| PhasePlan {
        name: name.to_owned(),
        starts_s,
        duration_s: 10.0,
        rate_from: 1.0,
        rate_to: 1.0,
        ..PhasePlan::default()
    };
    let names = Names { phases: vec!["ramp".into(), "hold".into()], ..Names::default() };
    let mut worker = Recorder::new(WorkerId::default(), &names, false);
    let meta = Meta {
        scenario: HOSTILE.into(),
        targets: vec!["127.0.0.1:4000".into()],
        phases: vec![plan("ramp", 0.0), plan("hold", 10.0)],
        names,
        ..Meta::default()
    };
    let mut record = Record::new(meta);
    for second in 1..=seconds {
        worker.user_started(0, 0, 5);
        worker.count(Count::UsersDue, 1);
        worker.count(Count::FramesInText, 1234);
        worker.time(Metric::Join, 1500);
        worker.gauges(second, second);
        if second == 3 {
            worker.error_with(ErrorKind::JoinRefused, 0, || HOSTILE.to_owned());
            worker.warn(Warning::Other { text: HOSTILE.into() });
        }
        record.merge(worker.take(0).unwrap());
        record.close_second(second * 1000);
    }
    let (control, commands) = Control::new();
    let dashboard = Some(([127, 0, 0, 1], 8091).into());
    (Options { record: Arc::new(Mutex::new(record)), control, dashboard }, commands)
}

fn text(block: &Buffer) -> String {
    let width = usize::from(block.area.width);
    let symbols: Vec<&str> = block.content().iter().map(ratatui::buffer::Cell::symbol).collect();
    symbols.chunks(width).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
}

#[test]
fn the_block_tells_how_it_goes() {
    let (options, _commands) = options(12);
    let all = text(&block::render(&Shown::of(&options, false), 100, 20, true));
    for part in [
        "running",
        "12 s of 20 s",
        "phase hold",
        "127.0.0.1:4000",
        " 60 %",
        "12 users  12 connected",
        "1/s arrivals (asked 1/s)",
        "frames in 1,234/s",
        "join        p50 1.5 ms",
        "1  join_refused 1",
        "! lob",
        "p pause   r resume   + - rate   q stop",
        "http://127.0.0.1:8091",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{all:?}");
}

#[test]
fn a_small_window_gets_what_matters_most() {
    let (options, _commands) = options(12);
    let shown = Shown::of(&options, false);
    for (columns, rows) in [(1, 1), (20, 4), (40, 0), (300, 100), (0, 10)] {
        let block = block::render(&shown, columns, rows, true);
        assert!(block.area.width <= columns && block.area.height <= rows);
    }
    let four = text(&block::render(&shown, 80, 4, true));
    assert!(four.contains("running") && four.contains("users") && four.contains("errors"));
    assert!(four.contains("q stop"), "{four}");
}

#[test]
fn a_long_warning_keeps_its_advice() {
    let (options, _commands) = options(1);
    let text_of = |thread| Warning::CpuBound { host: "local".into(), thread, percent: 97 };
    options.record.lock().unwrap().warn(text_of(1));
    options.record.lock().unwrap().warn(text_of(2));
    let all = text(&block::render(&Shown::of(&options, false), 60, 30, true));
    let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(all.contains("use more workers, more hosts, or a lower rate"), "{all}");
    assert_eq!(all.matches("CPU-bound").count(), 1, "one of a kind");
}

#[test]
fn states_and_the_question_show() {
    let (options, _commands) = options(2);
    options.control.pause();
    options.control.rate(2.5);
    let paused = text(&block::render(&Shown::of(&options, false), 100, 20, false));
    assert!(paused.contains("paused") && paused.contains("rate ×2.5"), "{paused}");
    assert!(!paused.contains("q stop"), "no keys without a keyboard");
    let asking = text(&block::render(&Shown::of(&options, true), 100, 20, true));
    assert!(asking.contains("Stop the run?"), "{asking}");
    options.record.lock().unwrap().finish(2500, Ending::Stopped);
    let over = text(&block::render(&Shown::of(&options, false), 100, 20, true));
    assert!(over.contains("stopped by the operator"), "{over}");
}

#[test]
fn keys_steer_and_stop_is_asked_for() {
    let (control, commands) = Control::new();
    let mut asked = None;
    let mut type_in = |keys: &[u8]| {
        for key in keys {
            asked = press(*key, &control, asked);
        }
        asked.is_some()
    };
    assert!(!type_in(b"pr+-y"));
    assert!(type_in(b"q"));
    assert!(!type_in(b"x"));
    assert!(type_in(b"q"));
    assert!(!type_in(b"Y"));
    assert!(!type_in(b"q"), "who stops twice is not asked again");
    let all: Vec<Command> = commands.try_iter().collect();
    let rates = [Command::Rate { factor: 1.25 }, Command::Rate { factor: 1.0 }];
    let expected = [Command::Pause, Command::Resume, rates[0], rates[1], Command::Stop];
    assert_eq!(all, [&expected[..], &[Command::Stop]].concat());
}

#[test]
fn plain_lines_come_now_and_then() {
    let (options, _commands) = options(7);
    let mut log = plain::PlainLog::new(5000);
    assert!(log.is_due(moment(&options)));
    let first = log.lines(&Shown::of(&options, false));
    let [warning, line] = first.lines().collect::<Vec<_>>()[..] else { panic!("{first}") };
    assert!(warning.starts_with("warning: lob"), "{warning:?}");
    assert!(line.contains("7 s  ramp  users 7  connected 7  arrivals 1/s"), "{line}");
    assert!(line.contains("errors 1  join p99 1.5 ms"), "{line}");
    assert!(!first.contains(|c: char| c.is_control() && c != '\n'), "{first:?}");
    assert!(!log.is_due(moment(&options)), "nothing is new");

    options.control.pause();
    assert!(log.is_due(moment(&options)));
    let state = log.lines(&Shown::of(&options, false));
    assert_eq!(state, "paused: no new users\n");

    options.record.lock().unwrap().finish(7500, Ending::Stopped);
    assert!(log.is_due(moment(&options)));
    assert!(log.lines(&Shown::of(&options, false)).contains("users 7"));
    assert!(!log.is_due(moment(&options)), "the end is told once");
    assert_eq!(log.lines(&Shown::of(&options, false)), "");
}

#[test]
fn without_a_terminal_it_ends_when_told() {
    let (options, _commands) = options(7);
    let (stop, stopped) = channel::<()>();
    drop(stop);
    let mut out = Vec::new();
    print_lines(&options, &stopped, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("dashboard on http://127.0.0.1:8091\n"), "{text}");
    assert!(text.contains("users 7"), "{text}");
}
