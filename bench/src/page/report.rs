//! From the figures of all runs to the table, and to the raw file that is kept.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::{CONNECTIONS, Figures, Options, Sizes};
use simurgh_bench_kit::wrk::Measured;
use simurgh_bench_kit::{report, stats};

/// Lower limit of requests per CPU second, relative to nginx.
const RATIO_MIN: f64 = 0.8;
/// Upper limit of server CPU per request, µs.
const CPU_US_MAX: f64 = 15.0;
/// Upper limit of p99 ÷ p50, relative to nginx.
const SPREAD_MAX: f64 = 1.2;

/// The figures for one number of connections: each list has a value per run, in their order.
#[derive(Debug, Serialize)]
struct Row {
    connections: u32,
    nginx_cpu_us: Vec<f64>,
    page_cpu_us: Vec<f64>,
    /// Requests per CPU second, the page's ÷ nginx's.
    ratio: Vec<f64>,
    nginx_spread: Vec<f64>,
    page_spread: Vec<f64>,
    /// p99 ÷ p50, the page's ÷ nginx's.
    spread_ratio: Vec<f64>,
}

fn rows(figures: &[Figures]) -> Vec<Row> {
    CONNECTIONS
        .into_iter()
        .map(|connections| {
            let of = |server: &str, figure: fn(&Figures) -> f64| -> Vec<f64> {
                let own = figures.iter().filter(|it| it.connections == connections);
                own.filter(|it| it.server == server).map(figure).collect()
            };
            let pairs = |page: &[f64], nginx: &[f64]| -> Vec<f64> {
                page.iter().zip(nginx).map(|(page, nginx)| page / nginx).collect()
            };
            let rate = Figures::requests_per_cpu_s;
            let (nginx_spread, page_spread) =
                (of("nginx", Figures::spread), of("hello_page", Figures::spread));
            Row {
                connections,
                nginx_cpu_us: of("nginx", Figures::cpu_us_per_request),
                page_cpu_us: of("hello_page", Figures::cpu_us_per_request),
                ratio: pairs(&of("hello_page", rate), &of("nginx", rate)),
                spread_ratio: pairs(&page_spread, &nginx_spread),
                nginx_spread,
                page_spread,
            }
        })
        .collect()
}

fn text(rows: &[Row], figures: &[Figures], sizes: &Sizes, options: &Options) -> String {
    let mut text = format!(
        "{}; {} runs of {} s a row; both answer {} bytes, {} of them body.\n\n",
        match options.is_shared {
            true => "Server and client on both cores",
            false => "Server on one core, client on the other",
        },
        options.runs,
        options.seconds,
        sizes.response_bytes,
        sizes.body_bytes,
    );
    let head = [
        "connections",
        "nginx, µs CPU",
        "page, µs CPU",
        "requests per CPU s ÷ nginx's",
        "p99 ÷ p50, nginx",
        "page",
        "page ÷ nginx",
    ];
    let cells = |row: &Row| {
        vec![
            row.connections.to_string(),
            report::cell(&row.nginx_cpu_us, 1, ""),
            report::cell(&row.page_cpu_us, 1, ""),
            report::cell(&row.ratio, 2, ""),
            report::cell(&row.nginx_spread, 2, ""),
            report::cell(&row.page_spread, 2, ""),
            report::cell(&row.spread_ratio, 2, ""),
        ]
    };
    text += &report::table(&head, rows.iter().map(cells));
    let speed = |row: &Row, server: &str| {
        let of_row = figures.iter().filter(|it| it.connections == row.connections);
        let own: Vec<&Measured> =
            of_row.filter(|it| it.server == server).map(|it| &it.timed).collect();
        let middle = |value: fn(&Measured) -> f64| {
            let values: Vec<f64> = own.iter().map(|it| value(it)).collect();
            stats::median(&values).unwrap_or(f64::NAN)
        };
        let (rate, p50, p99) =
            (middle(|it| it.requests_per_s), middle(|it| it.p50_us), middle(|it| it.p99_us));
        format!("{rate:.0}, {p50:.0}, {p99:.0}")
    };
    let speeds = |row: &Row| {
        vec![row.connections.to_string(), speed(row, "nginx"), speed(row, "hello_page")]
    };
    text.push('\n');
    let head = ["connections", "nginx: requests/s, p50, p99 µs", "page"];
    text += &report::table(&head, rows.iter().map(speeds));
    for (what, missed) in verdicts(rows) {
        text += &match missed.as_slice() {
            [] => format!("\n{what}: yes\n"),
            missed => format!("\n{what}: **NO** at {missed:?} connections\n"),
        };
    }
    text
}

/// The three limits, and the rows that miss each by their median.
fn verdicts(rows: &[Row]) -> [(String, Vec<u32>); 3] {
    let missed = |values: fn(&Row) -> &Vec<f64>, keeps: &dyn Fn(f64) -> bool| {
        let misses = |row: &&Row| !stats::median(values(row)).is_some_and(keeps);
        rows.iter().filter(misses).map(|row| row.connections).collect()
    };
    [
        (
            format!("requests per CPU second ≥ {RATIO_MIN} × nginx's"),
            missed(|row| &row.ratio, &|value| value >= RATIO_MIN),
        ),
        (
            format!("≤ {CPU_US_MAX} µs of server CPU a request"),
            missed(|row| &row.page_cpu_us, &|value| value <= CPU_US_MAX),
        ),
        (
            format!("p99 ÷ p50 ≤ {SPREAD_MAX} × nginx's"),
            missed(|row| &row.spread_ratio, &|value| value <= SPREAD_MAX),
        ),
    ]
}

pub(crate) fn publish(
    options: &Options,
    figures: &[Figures],
    sizes: &Sizes,
    config: &str,
) -> Result<()> {
    let rows = rows(figures);
    let cores = if options.is_shared { 2 } else { 1 };
    let command = format!(
        "simurgh-bench page --runs {} --seconds {} --cores {cores}",
        options.runs, options.seconds
    );
    let order =
        "each row nginx, hello_page; in every other run the other way round; ratios within a row";
    let fields = [
        ("command", json!(command)),
        ("order", json!(order)),
        ("sizes", json!(sizes)),
        ("nginx_conf", json!(config)),
        ("table", json!(rows)),
        ("runs", json!(figures)),
    ];
    let text = text(&rows, figures, sizes, options);
    report::publish(options.paths.out.as_deref(), "issue6-page", fields, &text)
}
