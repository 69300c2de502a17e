//! The chart of a run: p99 at each share of the sustained rate, a panel for each workload.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use simurgh_bench_kit::stats;

use super::SHARES;

const PANELS: [(&str, &str); 4] = [
    ("room", "one room of 5,000"),
    ("rooms", "rooms of 20"),
    ("own", "a topic for each client"),
    ("two", "two topics of 8 for each client"),
];
/// Names of figures, of servers, and colours that show on light and on dark pages.
const SERVERS: [(&str, &str, &str); 4] = [
    ("simurgh", "Simurgh", "#d9480f"),
    ("uws", "uWebSockets", "#1c7ed6"),
    ("centrifugo", "Centrifugo", "#2b8a3e"),
    ("anycable", "AnyCable", "#9c36b5"),
];
const PANEL: (f64, f64) = (480.0, 270.0);
/// Room beside the area of a panel: left, top, right, bottom.
const EDGES: (f64, f64, f64, f64) = (70.0, 30.0, 14.0, 32.0);
/// Decades of milliseconds.
const DECADES: [i32; 6] = [-1, 0, 1, 2, 3, 4];
const STYLE: &str = "text{font:12px sans-serif;fill:#868e96}.name{font-weight:bold}\
    line{stroke:#868e96;stroke-opacity:.4}polyline{fill:none;stroke-width:2}";

/// Deliveries per second and p99 in ms.
type Points = Vec<(f64, f64)>;

/// The chart of raw files of this suite, as SVG; with several rounds, of their medians.
pub(crate) fn draw(files: &[PathBuf]) -> Result<String> {
    let mut samples = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let raw: Value = serde_json::from_str(&text)?;
        samples.extend(raw["samples"].as_array().context("no samples")?.iter().cloned());
    }
    let (width, height) = (PANEL.0 * 2.0, PANEL.1 * 2.0 + 24.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"p99 of the delivery latency by rate\">\n<style>{STYLE}</style>\n"
    );
    for (nth, (row, title)) in PANELS.into_iter().enumerate() {
        let of_row = samples.iter().filter(|sample| sample["row"] == row);
        let figures: Vec<&Value> = of_row.map(|sample| &sample["figures"]).collect();
        let lines: BTreeMap<&str, Points> =
            SERVERS.iter().map(|(name, _, _)| (*name, points(&figures, name))).collect();
        let (x, y) = (PANEL.0 * stats::per(nth % 2, 1), PANEL.1 * stats::per(nth / 2, 1));
        writeln!(svg, "<g transform=\"translate({x},{y})\">")?;
        panel(&mut svg, title, &lines)?;
        svg += "</g>\n";
    }
    for (nth, (_, name, colour)) in SERVERS.iter().enumerate() {
        let (x, y) = (EDGES.0 + 130.0 * stats::per(nth, 1), height - 8.0);
        writeln!(svg, "<text x=\"{x}\" y=\"{y}\" style=\"fill:{colour}\">● {name}</text>")?;
    }
    Ok(svg + "</svg>\n")
}

/// The medians of a server's samples.
fn points(figures: &[&Value], name: &str) -> Points {
    let median = |figure: String| {
        let values: Vec<f64> = figures.iter().filter_map(|all| all[&figure].as_f64()).collect();
        stats::median(&values)
    };
    let Some(rate) = median(format!("{name} rate")) else { return Vec::new() };
    let point = |share: u32| {
        Some((rate * f64::from(share) / 100.0, median(format!("{name} {share} p99"))?))
    };
    SHARES.into_iter().filter_map(point).collect()
}

fn panel(svg: &mut String, title: &str, lines: &BTreeMap<&str, Points>) -> Result<()> {
    let (left, top, right, bottom) = EDGES;
    let rates = || lines.values().flatten().map(|(rate, _)| rate.log10());
    let (low, high) = (rates().fold(9.0, f64::min) - 0.1, rates().fold(0.0, f64::max) + 0.1);
    let (first, last) = (f64::from(DECADES[0]), f64::from(DECADES[DECADES.len() - 1]));
    let x = |rate: f64| left + (rate.log10() - low) / (high - low) * (PANEL.0 - left - right);
    let y = |ms: f64| {
        let share = (ms.log10().clamp(first, last) - first) / (last - first);
        PANEL.1 - bottom - share * (PANEL.1 - top - bottom)
    };
    writeln!(svg, "<text class=\"name\" x=\"{left}\" y=\"16\">{title}</text>")?;
    for decade in DECADES {
        let (ms, end) = (10_f64.powi(decade), PANEL.0 - right);
        let (at, x, text_y) = (y(ms), left - 6.0, y(ms) + 4.0);
        writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{ms} ms</text>"
        )?;
    }
    for step in [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7] {
        let (at, y) = (x(step), PANEL.1 - bottom + 18.0);
        if (left..PANEL.0 - right).contains(&at) {
            let label = format!("{}k/s", step / 1e3);
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>")?;
        }
    }
    for (name, _, colour) in SERVERS {
        let points = lines.get(name).into_iter().flatten();
        let places: Vec<(f64, f64)> = points.map(|(rate, ms)| (x(*rate), y(*ms))).collect();
        let path: String = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        writeln!(svg, "<polyline stroke=\"{colour}\" points=\"{}\"/>", path.trim_end())?;
        for (x, y) in places {
            writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measured_share_is_a_point_of_its_panel() {
        let file = std::env::temp_dir().join(format!("latency-{}.json", std::process::id()));
        let figures = r#"{"simurgh rate": 1000, "simurgh 25 p99": 1, "simurgh 90 p99": 10}"#;
        fs::write(&file, format!(r#"{{"samples": [{{"row": "own", "figures": {figures}}}]}}"#))
            .unwrap();
        let svg = draw(std::slice::from_ref(&file)).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        let heights: Vec<&str> =
            svg.split("cy=\"").skip(1).filter_map(|rest| rest.get(..5)).collect();
        assert_eq!(heights, ["196.4", "154.8"], "1 and 10 ms: {svg}");
    }
}
