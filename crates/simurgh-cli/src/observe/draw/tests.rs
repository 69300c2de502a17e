//! What keys do, and what is drawn then.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use simurgh::observe::view::{ErrorRow, Kept, List, Members, ShardRow, TopicRow};

use super::super::app::{Action, Wanted};
use super::super::fetch::News;
use super::*;

const HOSTILE: &str = "rooms:\x1b[2J<b>\u{202e}";

fn app() -> App {
    let shard = |shard, connections| ShardRow { shard, connections, ..ShardRow::default() };
    let overview = Overview {
        server: "simurgh".into(),
        version: "1.2.3".into(),
        can_disconnect: true,
        now: Point { at_unix_s: 10.0, connections: 123_456, ..Point::default() },
        shards: vec![shard(0, 5), shard(1, 9), shard(2, 7)],
        errors: vec![ErrorRow { kind: "errors_utf8".into(), total: 4, ..ErrorRow::default() }],
        history: (1..10)
            .map(|at| Point { at_unix_s: f64::from(at), connections: 7, ..Point::default() })
            .collect(),
        ..Overview::default()
    };
    let mut app = App::new("http://127.0.0.1:4000");
    app.news(News::Overview(Box::new(overview)));
    let topic =
        |topic: &str, members| TopicRow { topic: topic.into(), members, ..TopicRow::default() };
    app.news(News::Topics(List {
        rows: vec![topic("rooms:a", 40), topic(HOSTILE, 3)],
        total: 1_000_000,
        ..List::default()
    }));
    let row = |id: &str| ConnectionRow { id: id.into(), ..ConnectionRow::default() };
    let rows = vec![row("0.1.0"), row("1.7.2")];
    app.news(News::Connections(List { rows, total: 2, ..List::default() }));
    app
}

fn drawn(app: &App) -> String {
    let mut terminal = Terminal::new(TestBackend::new(150, 40)).unwrap();
    terminal.draw(|frame| draw(app, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let symbols: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    symbols.chunks(150).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
}

fn press(app: &mut App, keys: &str) -> Action {
    let mut last = Action::None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            'V' => KeyCode::Down,
            other => KeyCode::Char(other),
        };
        last = app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

#[track_caller]
fn shows(app: &App, parts: &[&str]) {
    let all = drawn(app);
    for part in parts {
        assert!(all.contains(part), "{part:?} is not in\n{all}");
    }
    assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{all:?}");
}

#[test]
fn each_view_is_a_key_away_and_shows_its_keys() {
    let mut app = app();
    assert_eq!(app.points.len(), 10);
    shows(
        &app,
        &["simurgh observe http://127.0.0.1:4000  live  version 1.2.3", "123,456", "q quit"],
    );
    press(&mut app, "2");
    shows(&app, &["shard ↑", "longest", "s sort   r reverse"]);
    press(&mut app, "\t");
    shows(&app, &["1,000,000 topics", "members ↓", "rooms:\\u{1b}[2J<b>\\u{202e}", "/ search"]);
    press(&mut app, "4");
    shows(&app, &["2 connections, by queue", "1.7.2", "d disconnect"]);
    press(&mut app, "5");
    shows(&app, &["errors_utf8", "in all ↓"]);
    assert_eq!(press(&mut app, "q"), Action::Quit);
}

#[test]
fn tables_are_sorted_by_any_column_both_ways() {
    let mut app = app();
    let order = |app: &App| -> Vec<String> {
        let all = drawn(app);
        let rows = all.lines().filter(|line| line.trim_start().starts_with(['0', '1', '2']));
        rows.filter(|line| !line.contains("overview") && !line.contains("Tab"))
            .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
            .collect()
    };
    press(&mut app, "2");
    assert_eq!(order(&app), ["0", "1", "2"]);
    press(&mut app, "s");
    assert_eq!(order(&app), ["1", "2", "0"]);
    press(&mut app, "r");
    assert_eq!(order(&app), ["0", "2", "1"]);
    press(&mut app, "3");
    assert_eq!(app.wanted(), Wanted::Topics("by=members&most=100&search=".into()));
    press(&mut app, "s/a b\n");
    assert_eq!(app.wanted(), Wanted::Topics("by=deliveries&most=100&search=a%20b".into()));
    shows(&app, &["with \"a b\" in the name", "deliveries/s ↓"]);
    press(&mut app, "s");
    assert_eq!(app.wanted(), Wanted::Topics("by=kept&most=100&search=a%20b".into()));
    shows(&app, &["kept ↓"]);
    press(&mut app, "s");
    assert_eq!(app.wanted(), Wanted::Topics("by=members&most=100&search=a%20b".into()));
    press(&mut app, "4ss");
    assert_eq!(app.wanted(), Wanted::Connections("by=age&most=100&peer=".into()));
}

#[test]
fn a_row_is_opened_and_disconnected_only_after_a_question() {
    let mut app = app();
    press(&mut app, "3V");
    assert_eq!(press(&mut app, "\n"), Action::Members(HOSTILE.into()));
    let members = Members {
        topic: HOSTILE.into(),
        total: 700,
        kept: None,
        rows: vec![ConnectionRow { id: "0.9.9".into(), ..ConnectionRow::default() }],
    };
    app.news(News::Members(members));
    shows(&app, &["1 of 700 members of rooms:\\u{1b}", "0.9.9", "Esc back"]);
    assert_eq!(press(&mut app, "\n"), Action::Connection("0.9.9".into()));
    press(&mut app, "d");
    shows(&app, &["Disconnect 0.9.9? y does it"]);
    assert_eq!(press(&mut app, "n"), Action::None);
    assert_eq!(press(&mut app, "dy"), Action::Disconnect("0.9.9".into()));
    press(&mut app, "\x1b");
    assert!(app.detail.is_none());
    if let Some(overview) = &mut app.overview {
        overview.can_disconnect = false;
    }
    assert_eq!(press(&mut app, "4dy"), Action::None);
}

#[test]
fn what_is_kept_of_a_topic_is_told_with_its_members() {
    let mut app = app();
    let kept = Kept {
        messages: 1_234,
        bytes: 9_120,
        epoch: "k7ku80".into(),
        head: "k7ku80.61".into(),
        floor: "k7ku80.11".into(),
        lost: Some("over\x1b[2Jwritten".into()),
    };
    let topic =
        TopicRow { topic: "rooms:kept".into(), kept: Some(kept.clone()), ..TopicRow::default() };
    app.news(News::Topics(List { rows: vec![topic], total: 1, ..List::default() }));
    press(&mut app, "3");
    shows(&app, &["9.1", "rooms:kept"]);
    let members = Members { topic: "rooms:kept".into(), kept: Some(kept), ..Members::default() };
    app.news(News::Members(members));
    shows(&app, &["0 members of rooms:kept; 1,234 broadcasts kept", "(over\\u{1b}[2Jwritten)"]);
    shows(&app, &["from k7ku80.11", "to k7ku80.61"]);
}

#[test]
fn a_lost_server_is_told_and_found_again() {
    let mut app = app();
    app.news(News::Lost("http://x does not answer: \x1b[1mrefused".into()));
    shows(&app, &["LOST, trying again: http://x does not answer: \\u{1b}[1mrefused", "123,456"]);
    let overview = app.overview.clone().unwrap();
    app.news(News::Overview(Box::new(overview)));
    shows(&app, &["live"]);
}

#[test]
fn a_small_window_is_no_trouble() {
    for view in ["1", "2", "3", "4", "5"] {
        let mut app = app();
        press(&mut app, view);
        for (width, height) in [(1, 1), (20, 3), (80, 24)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(&app, frame)).unwrap();
        }
    }
}
