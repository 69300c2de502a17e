//! A sweep as one HTML file: the table, and its charts as SVG. It has no scripts or references.

use std::fmt::Write as _;

use simurgh_page::svg::{Chart, escaped};

use super::sweep::{Row, Sweep};
use super::text;

impl Sweep {
    /// The page. `title` names the measurement, `facts` describe how it was made.
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
        // The measurements may contain any text, so they come last and are not replaced again.
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
        let mut chart = self.chart("Requests per second against connections");
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            chart.grid(share, &format!("{:.0}", most * share));
        }
        self.line(&mut chart, "c1", |row| Some(row.outcome.requests_per_second / most));
        chart.finish()
    }

    fn latency_chart(&self) -> String {
        let all = || self.rows().iter().flat_map(|row| [latency(row).0, latency(row).2]);
        let low = 10_f64.powf(all().fold(f64::INFINITY, f64::min).clamp(1.0, 1e12).log10().floor());
        let high = 10_f64.powf(all().fold(10.0, f64::max).log10().ceil()).max(low * 10.0);
        let y = |us: f64| (us.max(low) / low).log10() / (high / low).log10();
        let mut chart = self.chart("Latency against connections, both logarithmic");
        let mut mark = low;
        while mark <= high * 1.01 {
            chart.grid(y(mark), &format!("{} ms", mark / 1e3));
            mark *= 10.0;
        }
        self.line(&mut chart, "c1", |row| Some(y(latency(row).0)));
        self.line(&mut chart, "c3", |row| Some(y(latency(row).1)));
        self.line(&mut chart, "c2", |row| Some(y(latency(row).2)));
        self.line(&mut chart, "predicted", |row| row.prediction.map(|it| y(it.latency_us)));
        chart.finish()
    }

    /// The position of a number of connections: evenly spaced if each is twice the one before.
    fn x(&self, connections: usize) -> f64 {
        let place = |connections: usize| (connections.max(1) as f64).log2();
        let all = || self.rows().iter().map(|row| place(row.outcome.connections));
        let (first, last) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        (place(connections) - first) / (last - first).max(f64::MIN_POSITIVE)
    }

    fn chart(&self, label: &str) -> Chart {
        let mut chart = Chart::new(label, 320.0);
        for row in self.rows() {
            let connections = row.outcome.connections;
            chart.tick(self.x(connections), &connections.to_string());
        }
        if let Some(connections) = self.saturates_at() {
            chart.mark(self.x(connections));
        }
        chart
    }

    /// A line through the rows that have a value.
    fn line(&self, chart: &mut Chart, class: &str, y: impl Fn(&Row) -> Option<f64>) {
        let point = |row: &Row| Some((self.x(row.outcome.connections), y(row)?));
        chart.line(class, self.rows().iter().filter_map(point), true);
    }
}

fn latency(row: &Row) -> (f64, f64, f64) {
    let stats = &row.outcome.latency_us;
    (stats.mean, stats.p50 as f64, stats.p99 as f64)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::tests::page_benchmark;

    #[test]
    fn benchmark_page_is_complete_without_scripts_or_external_files() {
        let page = page_benchmark().page("127.0.0.1/<script>{{rows}}", "{{title}} & 10s each");
        assert_eq!(page.matches("<tr>").count() + page.matches("<tr class").count(), 10);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("class=\"saturates\"") && page.contains("class=\"predicted\""));
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
        assert!(!page.contains("{{style") && !page.contains("NaN") && !page.contains("\"inf"));
        assert!(!page.contains("http://") && !page.contains("https://"));
    }
}
