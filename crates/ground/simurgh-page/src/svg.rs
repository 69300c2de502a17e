//! Charts as SVG, for pages that run no script; `chart.js` draws live charts.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 40.0;

/// A chart. Coordinates are shares of its area, from 0 to 1, to the right and upwards.
#[derive(Clone, Debug)]
pub struct Chart {
    svg: String,
    height: f64,
}

impl Chart {
    /// An empty chart of this height in pixels; `label` describes it.
    pub fn new(label: &str, height: f64) -> Self {
        let label = escaped(label);
        let svg =
            format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">\n");
        Self { svg, height }
    }

    /// A horizontal line with its label.
    pub fn grid(&mut self, y: f64, label: &str) {
        let (at, right, label) = (self.y(y), WIDTH - RIGHT, escaped(label));
        let (text_x, text_y) = (LEFT - 8.0, at + 4.0);
        self.push(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{text_x}\" y=\"{text_y:.1}\" text-anchor=\"end\">{label}</text>"
        ));
    }

    /// A label below the chart.
    pub fn tick(&mut self, x: f64, label: &str) {
        let (at, y, label) = (self.x(x), self.height - 14.0, escaped(label));
        self.push(format_args!(
            "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
        ));
    }

    /// A vertical line.
    pub fn mark(&mut self, x: f64) {
        let (at, bottom) = (self.x(x), self.height - BOTTOM);
        self.push(format_args!(
            "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
        ));
    }

    /// A line through points; with `dots`, each is marked.
    pub fn line(&mut self, class: &str, points: impl IntoIterator<Item = (f64, f64)>, dots: bool) {
        let place = |(x, y)| (self.x(x), self.y(y));
        let points: Vec<(f64, f64)> = points.into_iter().map(place).collect();
        let path: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        self.push(format_args!("<polyline class=\"{class}\" points=\"{path}\"/>"));
        for (x, y) in points.into_iter().filter(|_| dots) {
            self.push(format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
            ));
        }
    }

    /// The element.
    pub fn finish(self) -> String {
        self.svg + "</svg>"
    }

    fn x(&self, share: f64) -> f64 {
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, share: f64) -> f64 {
        TOP + (1.0 - share.clamp(0.0, 1.0)) * (self.height - TOP - BOTTOM)
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _ = writeln!(self.svg, "{element}");
    }
}

/// A text escaped for HTML, including attributes.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_values_stay_within_the_chart() {
        let mut chart = Chart::new("a < \"b\"", 320.0);
        chart.grid(0.5, "1 & 2");
        chart.tick(1.0, "end");
        chart.mark(f64::NAN.max(0.0));
        chart.line("c1", [(0.0, 0.0), (2.0, -1.0)], true);
        let svg = chart.finish();
        assert!(svg.starts_with("<svg viewBox=\"0 0 960 320\"") && svg.ends_with("</svg>"));
        assert!(svg.contains("a &lt; &quot;b&quot;") && svg.contains(">1 &amp; 2<"), "{svg}");
        assert!(svg.contains("points=\"90.0,280.0 940.0,280.0 \""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }
}
