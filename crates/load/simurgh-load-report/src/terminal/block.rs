//! Renders the block of lines of the live view.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::symbols;
use ratatui::text::{Line, Span};
use ratatui::widgets::{LineGauge, Sparkline, Widget};
use simurgh_load_record::{Live, Metric, TimePoint};
use simurgh_text::format::{bytes, grouped, micros, plain, rate, time};

use super::Shown;

/// Wider lines would be harder to read.
const COLUMNS_MAX: u16 = 110;

const LABEL_COLUMNS: usize = 12;

/// Warnings shown at a time, and lines of each: its end says what to do.
const WARNINGS_MAX: usize = 2;
const WARNING_LINES_MAX: usize = 3;

const METRICS_MAX: usize = 4;

const HEADLINES: [Metric; 9] = [
    Metric::Delivery,
    Metric::Join,
    Metric::PresenceDiff,
    Metric::PresenceState,
    Metric::Push,
    Metric::Message,
    Metric::Http,
    Metric::Upgrade,
    Metric::Connect,
];

enum Row {
    Text(Line<'static>),
    Progress(f64),
    History,
}

/// Metrics of the last second, the most important first.
pub(super) fn headlines(live: &Live) -> impl Iterator<Item = (&str, &TimePoint)> {
    let known = HEADLINES.iter().filter_map(|metric| live.point_times.get_key_value(metric.name()));
    let named = live.point_times.iter().filter(|(name, _)| name.starts_with("tr_"));
    known.chain(named).map(|(name, row)| (name.as_str(), row))
}

/// Renders the block in `columns` and at most `rows_max` rows, the least important dropped.
pub(super) fn render(shown: &Shown, columns: u16, rows_max: u16, keyed: bool) -> Buffer {
    let columns = columns.min(COLUMNS_MAX);
    let mut rows = rows(shown, usize::from(columns), keyed);
    while rows.len() > usize::from(rows_max) {
        let least = rows.iter().enumerate().max_by_key(|(_, (rank, _))| *rank);
        let Some(index) = least.map(|(index, _)| index) else { break };
        rows.remove(index);
    }
    let height = u16::try_from(rows.len()).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, columns, height);
    let mut block = Buffer::empty(area);
    for (place, (_, row)) in area.rows().zip(rows) {
        draw(row, shown, place, &mut block);
    }
    block
}

fn draw(row: Row, shown: &Shown, place: Rect, block: &mut Buffer) {
    match row {
        Row::Text(line) => line.render(place, block),
        Row::Progress(part) => LineGauge::default()
            .ratio(part)
            .label(format!("{:3.0} %", part * 100.0))
            .filled_symbol(symbols::line::THICK_HORIZONTAL)
            .unfilled_symbol(symbols::line::HORIZONTAL)
            .filled_style(Style::new().cyan())
            .unfilled_style(Style::new().dim())
            .render(place, block),
        Row::History => {
            let [name, chart] =
                Layout::horizontal([Constraint::Length(LABEL_COLUMNS as u16), Constraint::Fill(1)])
                    .areas(place);
            Line::from(label("users")).render(name, block);
            let width = usize::from(chart.width);
            Sparkline::default()
                .data(squeezed(&shown.history, width))
                .style(Style::new().cyan())
                .render(chart, block);
        }
    }
}

/// The rows with their ranks: without room, the highest rank is dropped first.
fn rows(shown: &Shown, columns: usize, keyed: bool) -> Vec<(u8, Row)> {
    let mut rows = vec![(0, Row::Text(head(shown)))];
    if let Some(ends_s) = shown.ends_s {
        rows.push((3, Row::Progress((shown.live.at_s / ends_s).clamp(0.0, 1.0))));
    }
    if shown.history.len() > 1 {
        rows.push((6, Row::History));
    }
    rows.push((0, Row::Text(users(shown))));
    rows.push((2, Row::Text(traffic(shown))));
    let own = [(Metric::ArrivalLag.name(), shown.live.point_times.get(Metric::ArrivalLag.name()))];
    let own = own.into_iter().filter_map(|(name, row)| Some((name, row?)));
    for (name, row) in headlines(&shown.live).take(METRICS_MAX).chain(own) {
        rows.push((5, Row::Text(metric(name, row))));
    }
    rows.push((1, Row::Text(errors(&shown.live))));
    for line in warnings(&shown.live, columns) {
        rows.push((4, Row::Text(Line::from(line.yellow()))));
    }
    rows.push((1, Row::Text(foot(shown, keyed))));
    rows
}

fn head(shown: &Shown) -> Line<'static> {
    let live = &shown.live;
    let state = match (live.ending, shown.control.stopping, shown.control.paused) {
        (Some(ending), ..) => ending.describe().bold(),
        (None, true, _) => "stopping".yellow().bold(),
        (None, false, true) => "paused".yellow().bold(),
        (None, false, false) => "running".green().bold(),
    };
    let mut spans = vec![
        plain(&shown.scenario).bold(),
        "  ".into(),
        state,
        format!("  {}", time(live.at_s)).into(),
    ];
    if let Some(ends_s) = shown.ends_s {
        spans.push(format!(" of {}", time(ends_s)).dim());
    }
    if let Some(phase) = shown.phase() {
        spans.push(format!("  phase {}", plain(&phase.name)).into());
    }
    spans.push(format!("  {}", plain(&shown.targets)).dim());
    spans.into()
}

fn users(shown: &Shown) -> Line<'static> {
    let live = &shown.live;
    let due = shown.rate("due");
    let mut spans = vec![
        label("now"),
        grouped(live.users).bold(),
        " users  ".into(),
        grouped(live.connected).bold(),
        " connected  ".into(),
        rate(shown.rate("arrivals")).bold(),
        " arrivals".into(),
    ];
    if due > 0.0 {
        spans.push(format!(" (asked {})", rate(due)).dim());
    }
    let factor = shown.control.rate;
    if (factor - 1.0).abs() > f64::EPSILON {
        spans.push(format!("  rate \u{d7}{factor}").yellow());
    }
    spans.into()
}

fn traffic(shown: &Shown) -> Line<'static> {
    let per_second = |column| rate(shown.rate(column));
    let bytes_of = |column| format!("{}/s", bytes(shown.rate(column)));
    Line::from(vec![
        label("traffic"),
        per_second("requests").bold(),
        " requests  frames in ".into(),
        per_second("frames_in").bold(),
        format!(" ({})", bytes_of("bytes_in")).dim(),
        " out ".into(),
        per_second("frames_out").bold(),
        format!(" ({})", bytes_of("bytes_out")).dim(),
        format!("  CPU {:.0} %", shown.rate("cpu_s") * 100.0).into(),
    ])
}

fn metric(name: &str, row: &TimePoint) -> Line<'static> {
    let mut spans = vec![label(&plain(name))];
    for (percentile, us) in [("p50", row.p50), ("p90", row.p90), ("p99", row.p99), ("max", row.max)]
    {
        spans.push(format!("{percentile} ").dim());
        spans.push(format!("{:<10}", micros(us as f64)).into());
    }
    spans.push(format!("{} in the last second", grouped(row.count)).dim());
    spans.into()
}

fn errors(live: &Live) -> Line<'static> {
    if live.errors_total == 0 {
        return vec![label("errors"), "none".green()].into();
    }
    let kinds: Vec<String> =
        live.errors.iter().map(|row| format!("{} {}", row.kind, grouped(row.count))).collect();
    let mut spans = vec![label("errors"), grouped(live.errors_total).red().bold()];
    spans.push(format!("  {}", kinds.join(", ")).into());
    spans.into()
}

/// The newest warnings, one of each kind, in lines that fit.
fn warnings(live: &Live, columns: usize) -> Vec<String> {
    let mut codes: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for warning in live.warnings.iter().rev() {
        if codes.contains(&warning.code) || codes.len() >= WARNINGS_MAX {
            continue;
        }
        codes.push(warning.code);
        lines.extend(folded(&format!("! {}", plain(&warning.text)), columns));
    }
    lines
}

fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.truncate(WARNING_LINES_MAX);
    lines
}

fn foot(shown: &Shown, keyed: bool) -> Line<'static> {
    if shown.asking {
        return "Stop the run? y or q stops it, any other key does not.".yellow().bold().into();
    }
    let mut spans = Vec::new();
    if keyed {
        let stop = if shown.control.stopping { "stop at once" } else { "stop" };
        let keys = [("p", "pause"), ("r", "resume"), ("+ -", "rate"), ("q", stop)];
        for (key, meaning) in keys {
            spans.push(key.bold());
            spans.push(format!(" {meaning}   ").dim());
        }
    }
    if let Some(address) = shown.dashboard {
        spans.push(format!("http://{address}").cyan());
    }
    spans.into()
}

fn label(name: &str) -> Span<'static> {
    let mut name = name.to_owned();
    if let Some((cut, _)) = name.char_indices().nth(LABEL_COLUMNS - 1) {
        name.truncate(cut);
    }
    format!("{name:<LABEL_COLUMNS$}").dim()
}

/// All values in at most `width` columns, each the maximum of its values.
fn squeezed(values: &[u64], width: usize) -> Vec<u64> {
    if values.len() <= width {
        return values.to_vec();
    }
    let places = (0..width).map(|place| {
        let from = place * values.len() / width;
        let to = (place + 1) * values.len() / width;
        values.get(from..to.max(from + 1)).and_then(|part| part.iter().max()).copied().unwrap_or(0)
    });
    places.collect()
}
