//! `junit.xml`, in which CI systems show each condition as a test, and `figures.csv`, for
//! spreadsheets and scripts.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use simurgh_load_record::{Record, Summary};
use simurgh_page::svg::escaped;

use crate::outputs::Exporter;
use crate::text::measured;
use crate::whole::write_whole;

/// Writes both files at the end of the run.
#[derive(Debug)]
pub(crate) struct FigureFiles {
    dir: PathBuf,
}

impl FigureFiles {
    /// Files in `dir`; nothing is written yet.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
}

impl Exporter for FigureFiles {
    fn finish(&mut self, record: &Record) -> io::Result<()> {
        let summary = record.summary();
        write_whole(&self.dir.join("junit.xml"), junit(&summary).as_bytes())?;
        write_whole(&self.dir.join("figures.csv"), csv(&summary).as_bytes())
    }

    fn name(&self) -> &str {
        "junit.xml, figures.csv"
    }
}

fn junit(summary: &Summary) -> String {
    let Summary { verdicts, live, .. } = summary;
    let name = attribute(&summary.scenario);
    let failures = verdicts.iter().filter(|verdict| !verdict.passed).count();
    // Writing to a text does not fail.
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
    let _ = writeln!(
        out,
        "<testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" \
         time=\"{:.3}\">",
        verdicts.len(),
        live.at_s
    );
    for verdict in verdicts {
        let condition = attribute(&format!("{} {}", verdict.figure, verdict.condition));
        let _ = write!(out, "  <testcase classname=\"{name}\" name=\"{condition}\"");
        let _ = match verdict.passed {
            true => writeln!(out, "/>"),
            false => {
                let why = attribute(&format!("measured {}", measured(verdict)));
                writeln!(out, "><failure message=\"{why}\"/></testcase>")
            }
        };
    }
    out.push_str("</testsuite>\n");
    out
}

/// A text for an attribute; XML has no control characters.
fn attribute(text: &str) -> String {
    escaped(&text.replace(char::is_control, " "))
}

/// A line for each figure that was measured, with the names of conditions.
fn csv(summary: &Summary) -> String {
    let live = &summary.live;
    let mut out = "figure,value,unit\n".to_owned();
    let mut line = |name: &str, value: f64, unit: &str| {
        let name = name.replace('"', "\"\"");
        let quote = if name.contains(['"', ',', '\n', '\r']) { "\"" } else { "" };
        let _ = writeln!(out, "{quote}{name}{quote},{value},{unit}");
    };
    line("duration", (live.at_s * 1e6).round(), "us");
    line("cpu", (live.cpu_s * 1e6).round(), "us");
    line("users", live.users_peak as f64, "");
    line("connected", live.connected_peak as f64, "");
    for (count, n) in live.counts.iter() {
        line(count.name(), n as f64, "");
    }
    line("errors", live.errors_total as f64, "");
    for error in &live.errors {
        line(&format!("errors_{}", error.kind), error.count as f64, "");
    }
    for metric in &live.metrics {
        let stats = metric.stats;
        line(&format!("{}_count", metric.name), stats.count as f64, "");
        for (measure, us) in [
            ("min", stats.min as f64),
            ("mean", stats.mean),
            ("p50", stats.p50 as f64),
            ("p90", stats.p90 as f64),
            ("p95", stats.p95 as f64),
            ("p99", stats.p99 as f64),
            ("p99.9", stats.p99_9 as f64),
            ("max", stats.max as f64),
        ] {
            line(&format!("{}_{measure}", metric.name), us, "us");
        }
    }
    out
}
