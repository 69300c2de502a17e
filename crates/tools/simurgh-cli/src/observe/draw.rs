//! Draws the state of the observer.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use simurgh::observe::view::{ConnectionRow, Kept, Memory, Overview, Point};
use simurgh_text::format::{bytes, grouped, time};
use simurgh_text::visible;

use super::app::{App, Detail, Prompt, View};
use super::columns::{self, Column, Sort, cells, sorted};
use super::facts;

/// Columns of the label before a figure.
const LABEL: usize = 14;
/// Columns between two columns of a table.
const SPACING: usize = 2;
/// Width of a text that has its own line in a table.
const TEXT_MAX: usize = 40;

pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let headline = headline(app);
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(height(headline.width(), frame.area().width)),
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headline).wrap(Wrap { trim: true }), head);
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

/// Lines that a text of this width takes, with one to spare if words move to the next line.
fn height(width: usize, area: u16) -> u16 {
    let lines = width.div_ceil(usize::from(area.max(1)));
    u16::try_from(lines + usize::from(lines > 1)).unwrap_or(1).clamp(1, 4)
}

fn kept(kept: Option<&Kept>) -> String {
    let Some(Kept { messages, bytes: amount, head, floor, lost, .. }) = kept else {
        return String::new();
    };
    let (messages, amount) = (grouped(*messages), bytes(*amount as f64));
    let lost = lost.as_deref().unwrap_or("nothing removed");
    let (head, floor, lost) = (visible(head), visible(floor), visible(lost));
    format!("; history: {messages} broadcasts, {amount}, from {floor} ({lost}) to {head}")
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
            let title = "p50 and p99 are turns of the last second, longest is since the start";
            let sort = app.shards_sort;
            let rows = sorted(&overview.shards, columns::SHARDS, sort);
            table(frame, area, title, columns::SHARDS, &rows, app.selected, Some(sort));
        }
        View::Errors => {
            let (title, sort) = ("named as in /metrics", app.errors_sort);
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
                "queue" => ": no client has a queue",
                "rate" => ": no messages since you opened this view",
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
        facts.into_iter().flat_map(|(name, value)| fact(name, &value, area.width)).collect();
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
    let title = format!("{} nodes{more} (* is the node that answers)", cluster.nodes.len());
    let sort = app.nodes_sort;
    let rows = sorted(&cluster.nodes, columns::NODES, sort);
    table(frame, figures, &title, columns::NODES, &rows, app.selected, Some(sort));
    let title = "heartbeats that it receives";
    table(frame, beats, title, columns::BEATS, &rows, app.selected, None);
}

fn falling(column: usize) -> Option<Sort> {
    Some(Sort { column, is_falling: true })
}

/// How often a list is made, if less than about once a second.
fn pace(next_in_s: f64) -> String {
    if next_in_s > 1.5 { format!(", updated every {}", time(next_in_s)) } else { String::new() }
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
    let title = Line::from(title.to_owned().dim());
    let title_height = Constraint::Length(height(title.width(), area.width));
    let [name, body] = Layout::vertical([title_height, Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(title).wrap(Wrap { trim: true }), name);
    let texts: Vec<Vec<String>> = rows.iter().map(|row| cells(columns, row)).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let cells = texts.iter().filter_map(|cells| cells.get(at));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.min(TEXT_MAX).max(column.label.len() + 2)
        })
        .collect();
    let shown = fitting(columns, &widths, usize::from(area.width));
    // The last column gets the rest of the width, and takes several lines if it has to.
    let taken: usize = shown.iter().rev().skip(1).map(|(_, width)| width + SPACING).sum();
    let rest = usize::from(area.width).saturating_sub(taken);
    let last = shown.last().map(|(at, _)| *at);
    let width_of = |(at, width): &(usize, usize)| if Some(*at) == last { rest } else { *width };
    let heads = shown.iter().filter_map(|(at, _)| Some((at, columns.get(*at)?))).map(|(at, it)| {
        let mark = match sort.filter(|sort| sort.column == *at) {
            Some(sort) if sort.is_falling => " ↓",
            Some(_) => " ↑",
            None => "",
        };
        aligned(vec![format!("{}{mark}", it.label)], it.is_number)
    });
    let lines = texts.iter().map(|texts| {
        let cells: Vec<(Vec<String>, bool)> = shown
            .iter()
            .filter_map(|it| Some((texts.get(it.0)?, columns.get(it.0)?, width_of(it))))
            .map(|(text, column, width)| (broken(text, width), column.is_number))
            .collect();
        let height = cells.iter().map(|(lines, _)| lines.len()).max().unwrap_or(1);
        let row = Row::new(cells.into_iter().map(|(lines, is_number)| aligned(lines, is_number)));
        row.height(u16::try_from(height).unwrap_or(1))
    });
    let heads = Row::new(heads).style(Style::new().bold());
    let widths =
        shown.iter().map(|it| Constraint::Length(u16::try_from(width_of(it)).unwrap_or(u16::MAX)));
    let widget = Table::new(lines, widths)
        .header(heads)
        .column_spacing(SPACING as u16)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(selected));
    frame.render_stateful_widget(widget, body, &mut state);
}

/// The places of the columns that fit, with their widths: those to spare go first.
fn fitting<T>(columns: &[Column<T>], widths: &[usize], width: usize) -> Vec<(usize, usize)> {
    let mut shown: Vec<(usize, usize)> = widths.iter().copied().enumerate().collect();
    let spare = |at: usize| columns.get(at).map_or(0, |column| column.spare);
    while shown.iter().map(|(_, width)| width + SPACING).sum::<usize>() > width + SPACING {
        let most = shown.iter().map(|(at, _)| spare(*at)).max().unwrap_or(0);
        if most == 0 {
            break;
        }
        shown.retain(|(at, _)| spare(*at) < most);
    }
    shown
}

fn aligned(lines: Vec<String>, is_number: bool) -> Cell<'static> {
    let line = |text| {
        let line = Line::from(text);
        if is_number { line.right_aligned() } else { line }
    };
    Cell::from(lines.into_iter().map(line).collect::<Vec<_>>())
}

fn figures(app: &App, overview: &Overview, frame: &mut Frame<'_>, area: Rect) {
    let facts = facts::server(overview).into_iter();
    let mut lines: Vec<Line<'static>> =
        facts.flat_map(|(name, value)| fact(name, &value, area.width)).collect();
    lines.extend(memory(&overview.memory));
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [facts, _, charts] =
        Layout::vertical([Constraint::Length(height), Constraint::Length(1), Constraint::Fill(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(lines), facts);
    history(&app.points, frame, charts);
}

/// A value that is too long continues on the next lines.
fn fact(name: &str, value: &str, width: u16) -> Vec<Line<'static>> {
    let parts = broken(value, usize::from(width).saturating_sub(LABEL)).into_iter();
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    let line = |(name, part): (&str, String)| {
        Line::from(vec![format!("{name:<LABEL$}").dim(), part.into()])
    };
    names.zip(parts).map(line).collect()
}

/// A text in lines of at most `width` characters, broken at spaces where there are any.
fn broken(text: &str, width: usize) -> Vec<String> {
    let (mut lines, mut line, width) = (Vec::new(), String::new(), width.max(1));
    let mut length = 0;
    for word in text.split_inclusive(' ') {
        let word_length = word.trim_end().chars().count();
        if length > 0 && length + word_length > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        for character in word.chars() {
            if length == width {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            line.push(character);
            length += 1;
        }
    }
    lines.push(line);
    lines
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
    let facts = [
        ("address", text(&row.peer)),
        ("path", format!("{} {}", visible(&row.path), visible(&row.wire))),
        ("state", visible(&row.state)),
        ("socket id", text(&row.socket_id)),
        ("age", columns::age(row)),
        ("quiet for", time(row.quiet_s)),
        ("queued", bytes(row.queued_bytes as f64)),
        ("over limit", columns::limit_met(row)),
        ("channels", grouped(row.channels)),
    ];
    let topics = row.topics.iter().map(|topic| ("  topic", visible(topic)));
    let facts = facts.into_iter().chain(topics);
    let mut lines = vec![Line::from(format!("connection {}", visible(&row.id)).bold())];
    lines.extend(facts.flat_map(|(name, value)| fact(name, &value, area.width)));
    frame.render_widget(Paragraph::new(lines), area);
}

fn footer(app: &App) -> Paragraph<'static> {
    let first = match (&app.prompt, &app.note) {
        (Some(Prompt::Search(text)), _) => {
            let what = if app.view == View::Connections { "address" } else { "name contains" };
            Line::from(format!("{what}: {}▏  Enter searches, Esc cancels", visible(text)).bold())
        }
        (Some(Prompt::Disconnect(id)), _) => {
            let text = format!("Disconnect {id}? y: yes, any other key: no.");
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
