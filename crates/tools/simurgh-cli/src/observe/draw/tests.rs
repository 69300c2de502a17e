//! Keys, and the screen after them.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use simurgh::observe::view::{
    ClusterOverview, ErrorRow, InterestsRow, Kept, LinkRow, List, Members, NamedCount, NodeFigures,
    NodeMembers, NodeRow, ShardRow, TlsFigures, TopicRow,
};

use super::super::fetch::{Action, Update, Wanted};
use super::*;

const HOSTILE: &str = "rooms:\x1b[2J<b>\u{202e}";

fn app() -> App {
    let shard = |shard, connections| ShardRow { shard, connections, ..ShardRow::default() };
    let overview = Overview {
        server: "simurgh".into(),
        version: "1.2.3".into(),
        can_disconnect: true,
        tls: Some(TlsFigures {
            under_way: 2,
            handshakes: 1_239,
            handshakes_1_2: 5,
            certificate: "chat.example.com".into(),
            expires_in_s: 1_900_800.0,
            ..TlsFigures::default()
        }),
        now: Point { at_unix_s: 10.0, connections: 123_456, ..Point::default() },
        shards: vec![shard(0, 5), shard(1, 9), shard(2, 7)],
        errors: vec![ErrorRow { kind: "errors_utf8".into(), total: 4, ..ErrorRow::default() }],
        history: (1..10)
            .map(|at| Point { at_unix_s: f64::from(at), connections: 7, ..Point::default() })
            .collect(),
        ..Overview::default()
    };
    let mut app = App::new("http://127.0.0.1:4000");
    app.update(Update::Overview(Box::new(overview)));
    let topic =
        |topic: &str, members| TopicRow { topic: topic.into(), members, ..TopicRow::default() };
    app.update(Update::Topics(List {
        rows: vec![topic("rooms:a", 40), topic(HOSTILE, 3)],
        total: 1_000_000,
        ..List::default()
    }));
    let row = |id: &str| ConnectionRow { id: id.into(), ..ConnectionRow::default() };
    let rows = vec![row("0.1.0"), row("1.7.2")];
    app.update(Update::Connections(List { rows, total: 2, ..List::default() }));
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
fn each_view_has_a_key_and_shows_its_keys() {
    let mut app = app();
    assert_eq!(app.points.len(), 10);
    shows(
        &app,
        &["simurgh observe http://127.0.0.1:4000  live  version 1.2.3", "123,456", "q quit"],
    );
    let tls =
        "2 handshakes under way, 1,234 done (TLS 1.3), 5 (1.2), 0 resumed, 0 failed, 0 refused;";
    shows(&app, &[tls, "chat.example.com expires in 22 d"]);
    press(&mut app, "2");
    shows(&app, &["shard ↑", "longest", "s sort   r reverse"]);
    press(&mut app, "\t");
    shows(&app, &["1,000,000 topics", "members ↓", "rooms:\\u{1b}[2J<b>\\u{202e}", "/ search"]);
    press(&mut app, "4");
    shows(&app, &["2 connections, by age", "1.7.2", "d disconnect"]);
    press(&mut app, "5");
    shows(&app, &["errors_utf8", "total ↓"]);
    assert_eq!(press(&mut app, "q"), Action::Quit);
}

#[test]
fn tables_are_sorted_by_any_column_in_both_directions() {
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
    shows(&app, &["history ↓"]);
    press(&mut app, "s");
    assert_eq!(app.wanted(), Wanted::Topics("by=members&most=100&search=a%20b".into()));
    press(&mut app, "4ss");
    assert_eq!(app.wanted(), Wanted::Connections("by=queue&most=100&peer=".into()));
}

#[test]
fn disconnect_of_a_row_needs_confirmation() {
    let mut app = app();
    press(&mut app, "3V");
    assert_eq!(press(&mut app, "\n"), Action::Members(HOSTILE.into()));
    let members = Members {
        topic: HOSTILE.into(),
        total: 700,
        kept: None,
        nodes: Vec::new(),
        rows: vec![ConnectionRow { id: "0.9.9".into(), ..ConnectionRow::default() }],
    };
    app.update(Update::Members(members));
    shows(&app, &["1 of 700 members of rooms:\\u{1b}", "0.9.9", "Esc back"]);
    assert_eq!(press(&mut app, "\n"), Action::Connection("0.9.9".into()));
    press(&mut app, "d");
    shows(&app, &["Disconnect 0.9.9? y: yes"]);
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
fn the_history_of_a_topic_is_shown_with_its_members() {
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
    app.update(Update::Topics(List { rows: vec![topic], total: 1, ..List::default() }));
    press(&mut app, "3");
    shows(&app, &["9.1", "rooms:kept"]);
    let members = Members { topic: "rooms:kept".into(), kept: Some(kept), ..Members::default() };
    app.update(Update::Members(members));
    shows(&app, &["0 members of rooms:kept; history: 1,234 broadcasts", "(over\\u{1b}[2Jwritten)"]);
    shows(&app, &["from k7ku80.11", "to k7ku80.61"]);
}

#[test]
fn observer_reports_a_lost_server_and_reconnects() {
    let mut app = app();
    app.update(Update::Unreachable("http://x does not answer: \x1b[1mrefused".into()));
    shows(&app, &["LOST, trying again: http://x does not answer: \\u{1b}[1mrefused", "123,456"]);
    let overview = app.overview.clone().unwrap();
    app.update(Update::Overview(Box::new(overview)));
    shows(&app, &["live"]);
}

#[test]
fn small_window_is_drawn_without_errors() {
    for view in ["1", "2", "3", "4", "5"] {
        let mut app = app();
        press(&mut app, view);
        for (width, height) in [(1, 1), (20, 3), (80, 24)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(&app, frame)).unwrap();
        }
    }
}

/// A server that is one of three nodes, one of which does not respond.
fn clustered() -> App {
    let mut app = app();
    if let Some(overview) = &mut app.overview {
        overview.cluster = Some("up".into());
    }
    let node = |name: &str, sockets| NodeRow {
        id: format!("{name:-<11.3}"),
        name: name.into(),
        version: "1.2.3".into(),
        state: "alive".into(),
        figures: Some(NodeFigures { sockets, channels: 2 * sockets, ..NodeFigures::default() }),
        ..NodeRow::default()
    };
    let link = LinkRow { state: "up".into(), for_s: 60.0, ..LinkRow::default() };
    app.update(Update::Cluster(Box::new(ClusterOverview {
        link,
        nodes: vec![
            NodeRow { is_here: true, ..node("amber", 30) },
            NodeRow { rtt_ms: Some(1.5), clock_offset_ms: Some(-20), ..node("birch", 500) },
            NodeRow {
                figures: None,
                sockets: 7,
                state: "silent".into(),
                has_namesake: true,
                differing: vec![HOSTILE.into()],
                ..node(HOSTILE, 0)
            },
        ],
        interests: InterestsRow { exact: 12, exact_max: 4096, ..InterestsRow::default() },
        dropped: vec![NamedCount { name: "bytes".into(), total: 3 }, NamedCount::default()],
        worst_buckets: vec![NamedCount { name: "0a7".into(), total: 9 }],
        ..ClusterOverview::default()
    })));
    app
}

#[test]
fn cluster_view_shows_all_nodes_and_their_problems() {
    let mut app = clustered();
    press(&mut app, "6");
    assert_eq!(app.wanted(), Wanted::Cluster);
    shows(
        &app,
        &[
            "6 cluster",
            "up for 60 s",
            "3 (1 did not answer), 537 sockets, 1,060 channels",
            "12 of 4,096 one by one",
            "bytes 3",
            "by bucket 0a7 9",
            "shares its name with another",
            "has other settings for rooms:\\u{1b}[2J<b>\\u{202e}",
            "amber *",
            "1.5 ms",
            "-20 ms",
            "presences",
            "1-6 Tab",
        ],
    );
    press(&mut app, "ssr");
    let rows = drawn(&app);
    let place = |name: &str| rows.lines().position(|it| it.starts_with(name)).unwrap();
    assert!(place("rooms:") < place("amber") && place("amber") < place("birch"), "{rows}");
    press(&mut app, "\t");
    assert_eq!(app.view, View::Overview, "the first is behind the last");
}

#[test]
fn single_server_has_no_cluster_view() {
    let mut app = app();
    press(&mut app, "56");
    assert_eq!(app.view, View::Errors);
    press(&mut app, "\t");
    assert_eq!(app.view, View::Overview);
    assert!(!drawn(&app).contains("cluster"));
    // A node that was restarted without the others shows only its own figures.
    let mut app = clustered();
    press(&mut app, "6");
    let alone = Overview { server: "simurgh".into(), ..Overview::default() };
    app.update(Update::Overview(Box::new(alone)));
    assert_eq!(app.view, View::Overview);
}

#[test]
fn a_topic_lists_the_nodes_of_its_members() {
    let mut app = clustered();
    press(&mut app, "3");
    let place =
        |name: &str, members| NodeMembers { name: name.into(), members, ..NodeMembers::default() };
    app.update(Update::Members(Members {
        topic: "rooms:a".into(),
        total: 30,
        nodes: vec![place("amber", Some(30)), place("birch", Some(0)), place("c\x1b", None)],
        ..Members::default()
    }));
    shows(&app, &["0 of 30 members of rooms:a; on amber 30, c\\u{1b} ?"]);
}

/// At 120 columns, with long names everywhere: each text is on the screen whole, maybe on several
/// lines, and a column is shown whole or left out.
#[test]
fn screen_of_120_columns_truncates_nothing() {
    let long = |what: &str| format!("{what}:{}", "0123456789".repeat(13));
    let mut app = clustered();
    let about = "meaning ".repeat(25) + "end-of-meaning";
    if let Some(overview) = &mut app.overview {
        overview.errors.push(ErrorRow { kind: "errors_x".into(), about, ..ErrorRow::default() });
    }
    let row = ConnectionRow {
        id: "12.345678.4294967295".into(),
        peer: Some("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535".into()),
        path: "/socket".into(),
        state: "open".into(),
        channels: 3,
        topics: vec!["rooms:first-of-three".into(), "b".repeat(39), "rooms:last".into()],
        age_s: 86_400,
        queued_bytes: 123_456_789,
        limit: Some("presence_calls".into()),
        limited: 1234,
        ..ConnectionRow::default()
    };
    let topic = TopicRow { topic: long("topic"), ..TopicRow::default() };
    app.update(Update::Topics(List { rows: vec![topic], total: 1, ..List::default() }));
    let rows = vec![row.clone()];
    app.update(Update::Connections(List { rows, total: 1, ..List::default() }));
    let screen = |app: &App| -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 60)).unwrap();
        terminal.draw(|frame| draw(app, frame)).unwrap();
        let symbols: Vec<_> =
            terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        symbols.chunks(120).map(|row| row.concat().trim_end().to_owned() + "\n").collect()
    };
    // Without the spaces and ends of lines between the parts of a broken text.
    let whole = |app: &App, parts: &[&str]| {
        let all = screen(app);
        let plain: String = all.split_whitespace().collect();
        for part in parts {
            let part: String = part.split_whitespace().collect();
            assert!(plain.contains(&part), "{part:?} is not whole in\n{all}");
        }
    };
    for (keys, parts) in [
        ("2", vec!["connections", "longest"]),
        ("3", vec!["deliveries/s", "history"]),
        ("4", vec!["12.345678.4294967295", "123 MB", "1 d", "rooms:last"]),
        ("5", vec!["end-of-meaning"]),
        ("6", vec!["amber *", "presences", "CPU %", "clock", "other settings"]),
    ] {
        press(&mut app, keys);
        whole(&app, &parts);
    }
    press(&mut app, "3");
    let digits = screen(&app).chars().filter(|it| *it == '7').count();
    assert!(digits >= 13, "the topic is broken, not truncated: {digits}\n{}", screen(&app));
    press(&mut app, "4");
    app.update(Update::Connection(Box::new(row)));
    whole(&app, &["[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535", "presence_calls x1,234"]);
    app.update(Update::Unreachable("no answer ".repeat(20) + "end-of-reason"));
    whole(&app, &["end-of-reason"]);
}
