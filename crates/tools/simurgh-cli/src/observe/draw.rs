//! Draws the state of the observer.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};
use simurgh::observe::view::{ConnectionRow, Kept, Memory, Overview, Point};
use simurgh_text::format::{bytes, grouped, time};
use simurgh_text::visible;

use super::app::{App, Detail, Prompt, View};
use super::columns::{self, Column, Sort, cells, sorted};
use super::facts;

/// Columns of the label before a figure.
const LABEL: usize = 14;

pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    frame.render_widget(headline(app), head);
    frame.render_widget(tab_line(app), tabs);
    match (&app.overview, &app.detail) {
        (None, _) => {}
        (Some(overview), None) => view(app, overview, frame, body),
        (Some(_), Some(Detail::Connection(row))) => connection(row, frame, body),
        (Some(_), Some(Detail::Members(members))) => {
            let (shown, total) = (members.rows.len() as u64, members.total);
            let shown = if shown < total { format!("{shown} of ") } else { String::new() };
            let title = format!("{shown}{} members of {}", grouped(total), visible(&members.topic));
            let title = title + &columns::places(&members.nodes) + &kept(members.kept.as_ref());
            let rows: Vec<&ConnectionRow> = members.rows.iter().collect();
            table(frame, body, &title, columns::CONNECTIONS, &rows, app.selected, None);
        }
    }
    frame.render_widget(footer(app), foot);
}

fn kept(kept: Option<&Kept>) -> String {
    let Some(Kept { messages, bytes: amount, head, floor, lost, .. }) = kept else {
        return String::new();
    };
    let (messages, amount) = (grouped(*messages), bytes(*amount as f64));
    let lost = lost.as_deref().unwrap_or("nothing lost");
    let (head, floor, lost) = (visible(head), visible(floor), visible(lost));
    format!("; {messages} broadcasts kept, {amount}, from {floor} ({lost}) to {head}")
}

fn headline(app: &App) -> Line<'static> {
    let mut words = vec!["simurgh observe ".bold(), visible(&app.base).into()];
    match (&app.unreachable, &app.overview) {
        (Some(why), _) => {
            words.push("  LOST, trying again: ".red().bold());
            words.push(visible(why).red());
        }
        (None, Some(overview)) => {
            words.push("  live".green().bold());
            let version = visible(&overview.version);
            words.push(format!("  version {version}, up for {}", time(overview.uptime_s)).dim());
        }
        (None, None) => words.push("  waiting".yellow()),
    }
    words.into()
}

fn tab_line(app: &App) -> Line<'static> {
    let tabs = app.views().iter().enumerate().flat_map(|(at, (view, name))| {
        let text = format!(" {} {name} ", at + 1);
        let tab = if *view == app.view { text.reversed() } else { text.into() };
        [tab, " ".into()]
    });
    tabs.collect::<Vec<Span<'static>>>().into()
}

fn view(app: &App, overview: &Overview, frame: &mut Frame<'_>, area: Rect) {
    match app.view {
        View::Overview => figures(app, overview, frame, area),
        View::Shards => {
            let title = "turns: of the last second; longest: since the start";
            let sort = app.shards_sort;
            let rows = sorted(&overview.shards, columns::SHARDS, sort);
            table(frame, area, title, columns::SHARDS, &rows, app.selected, Some(sort));
        }
        View::Errors => {
            let (title, sort) = ("as under /metrics", app.errors_sort);
            let rows = sorted(&overview.errors, columns::ERRORS, sort);
            table(frame, area, title, columns::ERRORS, &rows, app.selected, Some(sort));
        }
        View::Cluster => cluster(app, frame, area),
        View::Topics => {
            let Some(list) = &app.topics else { return };
            let named = match app.search.as_str() {
                "" => String::new(),
                search => format!(" with {:?} in the name", visible(search)),
            };
            let title = format!("{} topics{named}{}", grouped(list.total), pace(list.next_in_s));
            let rows: Vec<_> = list.rows.iter().collect();
            let sort = falling(app.topics_by.at);
            table(frame, area, &title, columns::TOPICS, &rows, app.selected, sort);
        }
        View::Connections => {
            let Some(list) = &app.connections else { return };
            let from = match app.peer.as_str() {
                "" => String::new(),
                peer => format!(" from {}", visible(peer)),
            };
            let by = app.connections_by.word();
            let none = match by {
                _ if !list.rows.is_empty() => "",
                "queue" => ": nothing waits for any to read",
                "rate" => ": none has said anything since you look",
                _ => "",
            };
            let title = format!(
                "{} connections{from}, by {by}{none}{}",
                grouped(list.total),
                pace(list.next_in_s)
            );
            let rows: Vec<_> = list.rows.iter().collect();
            let sort = falling(app.connections_by.at);
            table(frame, area, &title, columns::CONNECTIONS, &rows, app.selected, sort);
        }
    }
}

fn cluster(app: &App, frame: &mut Frame<'_>, area: Rect) {
    let Some(cluster) = &app.cluster else { return };
    let facts = facts::cluster(cluster);
    let lines: Vec<Line<'static>> =
        facts.into_iter().map(|(name, value)| fact(name, value)).collect();
    // There may be many warnings, so they get at most half of the height.
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(area.height / 2);
    let parts = [
        Constraint::Length(height),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
    ];
    let [facts, _, figures, beats] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(lines), facts);
    let more = match cluster.more_nodes {
        0 => String::new(),
        more => format!(", {} more", grouped(more)),
    };
    let title = format!("{} nodes{more}; * is the one that is asked", cluster.nodes.len());
    let sort = app.nodes_sort;
    let rows = sorted(&cluster.nodes, columns::NODES, sort);
    table(frame, figures, &title, columns::NODES, &rows, app.selected, Some(sort));
    let title = "as the one that is asked hears them";
    table(frame, beats, title, columns::BEATS, &rows, app.selected, None);
}

fn falling(column: usize) -> Option<Sort> {
    Some(Sort { column, is_falling: true })
}

/// How often a list is made, if less than about once a second.
fn pace(next_in_s: f64) -> String {
    if next_in_s > 1.5 { format!(", anew every {}", time(next_in_s)) } else { String::new() }
}

fn table<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    columns: &[Column<T>],
    rows: &[&T],
    selected: usize,
    sort: Option<Sort>,
) {
    let [name, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Line::from(title.to_owned().dim()), name);
    let texts: Vec<Vec<String>> = rows.iter().map(|row| cells(columns, row)).collect();
    let widths: Vec<Constraint> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let widest =
                texts.iter().filter_map(|cells| cells.get(at)).map(|cell| cell.chars().count());
            let width = widest.chain([column.label.len() + 2]).max().unwrap_or(0);
            let is_last = at + 1 == columns.len();
            let width = u16::try_from(width).unwrap_or(u16::MAX);
            if is_last { Constraint::Min(width.min(20)) } else { Constraint::Length(width.min(40)) }
        })
        .collect();
    let heads = columns.iter().enumerate().map(|(at, column)| {
        let mark = match sort.filter(|sort| sort.column == at) {
            Some(sort) if sort.is_falling => " ↓",
            Some(_) => " ↑",
            None => "",
        };
        aligned(format!("{}{mark}", column.label), column.is_number)
    });
    let lines = texts.into_iter().map(|texts| {
        Row::new(texts.into_iter().zip(columns).map(|(text, it)| aligned(text, it.is_number)))
    });
    let widget = Table::new(lines, widths)
        .header(Row::new(heads).style(Style::new().bold()))
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(selected));
    frame.render_stateful_widget(widget, body, &mut state);
}

fn aligned(text: String, is_number: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if is_number { line.right_aligned() } else { line })
}

fn figures(app: &App, overview: &Overview, frame: &mut Frame<'_>, area: Rect) {
    let facts = facts::server(overview).into_iter();
    let mut lines: Vec<Line<'static>> = facts.map(|(name, value)| fact(name, value)).collect();
    lines.extend(memory(&overview.memory));
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [facts, _, charts] =
        Layout::vertical([Constraint::Length(height), Constraint::Length(1), Constraint::Fill(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(lines), facts);
    history(&app.points, frame, charts);
}

fn fact(name: &str, value: String) -> Line<'static> {
    vec![format!("{name:<LABEL$}").dim(), value.into()].into()
}

fn memory(memory: &Memory) -> Vec<Line<'static>> {
    let all = memory.resident.max(1) as f64;
    let line = |(name, amount, note): (&str, u64, &'static str)| {
        let part = (amount as f64 / all).min(1.0);
        let bar = "━".repeat((part * 30.0).round() as usize);
        let words: Vec<Span<'static>> = vec![
            format!("{name:<LABEL$}").dim(),
            format!("{:>9}  ", bytes(amount as f64)).into(),
            bar.cyan(),
            note.dim(),
        ];
        Line::from(words)
    };
    facts::memory(memory).into_iter().map(line).collect()
}

fn history(points: &[Point], frame: &mut Frame<'_>, area: Rect) {
    type Read = fn(&Point) -> f64;
    let charts: [(&str, Read); 4] = [
        ("connections", |point| point.connections as f64),
        ("messages in", |point| point.messages_in_per_s),
        ("messages out", |point| point.messages_out_per_s),
        ("CPU", |point| point.cpu_cores * 1000.0),
    ];
    let rows = Layout::vertical([Constraint::Length(2); 4]).split(area);
    for ((name, read), row) in charts.into_iter().zip(rows.iter()) {
        let [label, chart] =
            Layout::horizontal([Constraint::Length(LABEL as u16), Constraint::Fill(1)]).areas(*row);
        let shown = points.len().saturating_sub(usize::from(chart.width));
        let data: Vec<u64> =
            points.iter().skip(shown).map(|point| read(point).round() as u64).collect();
        frame.render_widget(Line::from(name.dim()), label);
        frame.render_widget(Sparkline::default().data(data).style(Style::new().cyan()), chart);
    }
}

fn connection(row: &ConnectionRow, frame: &mut Frame<'_>, area: Rect) {
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "none".to_owned(), visible);
    let mut lines = vec![
        Line::from(format!("connection {}", visible(&row.id)).bold()),
        fact("peer", text(&row.peer)),
        fact("path", format!("{} {}", visible(&row.path), visible(&row.wire))),
        fact("state", visible(&row.state)),
        fact("socket id", text(&row.socket_id)),
        fact("age", columns::age(row)),
        fact("quiet for", time(row.quiet_s)),
        fact("queued", bytes(row.queued_bytes as f64)),
        fact("limit met", columns::limit_met(row)),
        fact("channels", grouped(row.channels)),
    ];
    lines.extend(row.topics.iter().map(|topic| fact("  topic", visible(topic))));
    frame.render_widget(Paragraph::new(lines), area);
}

fn footer(app: &App) -> Paragraph<'static> {
    let first = match (&app.prompt, &app.note) {
        (Some(Prompt::Search(text)), _) => {
            let what = if app.view == View::Connections { "address" } else { "name holds" };
            Line::from(format!("{what}: {}▏  Enter looks, Esc does not", visible(text)).bold())
        }
        (Some(Prompt::Disconnect(id)), _) => {
            let text = format!("Disconnect {id}? y does it, any other key does not.");
            Line::from(text.yellow().bold())
        }
        (None, Some(note)) => Line::from(visible(note).yellow()),
        (None, None) => Line::default(),
    };
    let has_rows = app.view != View::Overview;
    let keys = [
        (true, if app.views().len() > 5 { "1-6 Tab" } else { "1-5 Tab" }, "views"),
        (has_rows, "↑↓", "choose"),
        (has_rows, "s", "sort"),
        (matches!(app.view, View::Shards | View::Errors | View::Cluster), "r", "reverse"),
        (matches!(app.view, View::Topics | View::Connections), "/", "search"),
        (matches!(app.view, View::Topics | View::Connections), "Enter", "more"),
        (matches!(app.view, View::Topics | View::Connections), "d", "disconnect"),
        (app.detail.is_some(), "Esc", "back"),
        (true, "q", "quit"),
    ];
    let shown = keys.into_iter().filter(|(is_shown, ..)| *is_shown);
    let words: Vec<Span<'static>> =
        shown.flat_map(|(_, key, what)| [key.bold(), format!(" {what}   ").dim()]).collect();
    Paragraph::new(vec![first, words.into()])
}

#[cfg(test)]
mod tests;
