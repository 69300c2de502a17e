//! A sweep as one HTML file: the table, and its charts as SVG. It fetches nothing and runs nothing.

use std::fmt::Write as _;

use super::sweep::{Row, Sweep};
use super::text;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 40.0;

impl Sweep {
    /// The page. `title` names what was measured, `facts` how.
    pub fn page(&self, title: &str, facts: &str) -> String {
        let mut body = String::new();
        for row in self.rows() {
            let at = self.saturates_at() == Some(row.outcome.connections);
            body += if at { "<tr class=\"saturates\">" } else { "<tr>" };
            for cell in text::cells(self, row) {
                let _ = write!(body, "<td>{}</td>", escaped(&cell));
            }
            body += "</tr>\n";
        }
        // What was measured may hold any text, so it comes last and is not looked at again.
        include_str!("../assets/sweep.html")
            .replace("{{style}}", simurgh_page::STYLE)
            .replace("{{verdict}}", &escaped(text::verdict(self).trim_end()))
            .replace("{{rate}}", &self.rate_chart())
            .replace("{{latency}}", &self.latency_chart())
            .replace("{{rows}}", &body)
            .replace("{{facts}}", &escaped(facts).replace('{', "&#123;"))
            .replace("{{title}}", &escaped(title))
    }

    fn rate_chart(&self) -> String {
        let most = self.greatest_rate().max(1.0);
        let y = |rate: f64| TOP + (1.0 - rate / most) * (HEIGHT - TOP - BOTTOM);
        let mut svg = self.frame("Requests per second against connections");
        for part in 0..=4 {
            let rate = most * f64::from(part) / 4.0;
            grid(&mut svg, y(rate), &format!("{rate:.0}"));
        }
        self.line(&mut svg, "c1", |row| Some(y(row.outcome.requests_per_second)));
        svg + "</svg>"
    }

    fn latency_chart(&self) -> String {
        let all = || self.rows().iter().flat_map(|row| [latency(row).0, latency(row).2]);
        let low = 10_f64.powf(all().fold(f64::INFINITY, f64::min).clamp(1.0, 1e12).log10().floor());
        let high = 10_f64.powf(all().fold(10.0, f64::max).log10().ceil()).max(low * 10.0);
        let y = |us: f64| {
            let share = (us.max(low) / low).log10() / (high / low).log10();
            TOP + (1.0 - share) * (HEIGHT - TOP - BOTTOM)
        };
        let mut svg = self.frame("Latency against connections, both logarithmic");
        let mut mark = low;
        while mark <= high * 1.01 {
            grid(&mut svg, y(mark), &format!("{} ms", mark / 1e3));
            mark *= 10.0;
        }
        self.line(&mut svg, "c1", |row| Some(y(latency(row).0)));
        self.line(&mut svg, "c3", |row| Some(y(latency(row).1)));
        self.line(&mut svg, "c2", |row| Some(y(latency(row).2)));
        self.line(&mut svg, "predicted", |row| row.prediction.map(|it| y(it.latency_us)));
        svg + "</svg>"
    }

    /// Where a number of connections stands: evenly spaced if each is twice the one before.
    fn x(&self, connections: usize) -> f64 {
        let place = |connections: usize| (connections.max(1) as f64).log2();
        let all = || self.rows().iter().map(|row| place(row.outcome.connections));
        let (first, last) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        let share = (place(connections) - first) / (last - first).max(f64::MIN_POSITIVE);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// The beginning of a chart: its axis of connections, and where the server saturates.
    fn frame(&self, label: &str) -> String {
        let mut svg =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">\n");
        for row in self.rows() {
            let connections = row.outcome.connections;
            let (x, y) = (self.x(connections), HEIGHT - 14.0);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{connections}</text>"
            );
        }
        if let Some(connections) = self.saturates_at() {
            let (x, bottom) = (self.x(connections), HEIGHT - BOTTOM);
            let _ = writeln!(
                svg,
                "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
            );
        }
        svg
    }

    /// A line through the rows that have a height.
    fn line(&self, svg: &mut String, class: &str, y: impl Fn(&Row) -> Option<f64>) {
        let point = |row: &Row| Some((self.x(row.outcome.connections), y(row)?));
        let points: Vec<(f64, f64)> = self.rows().iter().filter_map(point).collect();
        let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
        for (x, y) in &points {
            let _ = write!(svg, "{x:.1},{y:.1} ");
        }
        *svg += "\"/>\n";
        for (x, y) in points {
            let _ =
                writeln!(svg, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
    }
}

/// Mean, median and 99th percentile, µs.
fn latency(row: &Row) -> (f64, f64, f64) {
    let stats = &row.outcome.latency_us;
    (stats.mean, stats.p50 as f64, stats.p99 as f64)
}

/// A line across, with what it stands for.
fn grid(svg: &mut String, y: f64, label: &str) {
    let (right, text_x, text_y) = (WIDTH - RIGHT, LEFT - 8.0, y + 4.0);
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::sweep::tests::seeds;

    #[test]
    fn the_page_is_whole_runs_nothing_and_fetches_nothing() {
        let page = seeds().page("127.0.0.1/<script>{{rows}}", "{{title}} & 10s each");
        assert_eq!(page.matches("<tr>").count() + page.matches("<tr class").count(), 10);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("class=\"saturates\"") && page.contains("class=\"predicted\""));
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(!page.contains("{{style") && !page.contains("NaN") && !page.contains("\"inf"));
        assert!(!page.contains("http://") && !page.contains("https://"));
    }
}
