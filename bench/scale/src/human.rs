//! Figures as people read them: three digits, and a unit.

/// Three digits of a figure, without zeros that say nothing.
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        it if it >= 100.0 => 0,
        it if it >= 10.0 => 1,
        it if it >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// With thousands, millions and so on as `k`, `M`, `G`, `T`.
pub fn count(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "–".to_owned() } else { "∞".to_owned() };
    }
    let scales = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")];
    match scales.into_iter().find(|(scale, _)| value.abs() >= *scale * 0.9995) {
        Some((1e4, unit)) => digits(value / 1e3) + unit,
        Some((scale, unit)) => digits(value / scale) + unit,
        None if value.abs() >= 999.5 => format!("{},{:03}", (value.round() / 1000.0).floor(), {
            (value.round() % 1000.0).abs()
        }),
        None if value != 0.0 && value.abs() < 0.0005 => format!("{value:.1e}"),
        None => digits(value),
    }
}

/// Bytes.
pub fn bytes(value: f64) -> String {
    format!("{}B", spaced(count(value)))
}

/// Bits a second.
pub fn bits(value: f64) -> String {
    format!("{}bit/s", spaced(count(value)))
}

/// So many a second.
pub fn rate(value: f64) -> String {
    format!("{}/s", count(value))
}

/// A duration in seconds.
pub fn seconds(value: f64) -> String {
    match value {
        it if !it.is_finite() => "never".to_owned(),
        it if it >= 7200.0 => format!("{} h", digits(it / 3600.0)),
        it if it >= 120.0 => format!("{} min", digits(it / 60.0)),
        it if it >= 0.9995 || it == 0.0 => format!("{} s", digits(it)),
        it if it >= 0.000_999_5 => format!("{} ms", digits(it * 1e3)),
        it => format!("{} µs", digits(it * 1e6)),
    }
}

/// A share in percent.
pub fn share(value: f64) -> String {
    format!("{} %", digits(value * 100.0))
}

/// A blank before the unit where there is none.
fn spaced(text: String) -> String {
    if text.ends_with(|last: char| last.is_ascii_digit()) { text + " " } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let counts = [0.0, 0.1234, 7.0, 42.42, 999.0, 1234.0, 12_345.0, 1e8, 2.5e9];
        let shown = counts.map(count);
        let expected = ["0", "0.123", "7", "42.4", "999", "1,234", "12.3 k", "100 M", "2.5 G"];
        assert_eq!(shown, expected);
        assert_eq!((count(f64::INFINITY), count(f64::NAN)), ("∞".into(), "–".into()));
        assert_eq!((count(3e-7), count(9_999_999.0)), ("3.0e-7".into(), "10 M".into()));
    }

    #[test]
    fn bytes_times_and_shares() {
        assert_eq!([bytes(153.0), bytes(4.2e9), bytes(2048.0)], ["153 B", "4.2 GB", "2,048 B"]);
        let times = [0.0, 0.000_01, 0.25, 1.0, 59.94, 130.0, 1e5, f64::INFINITY].map(seconds);
        assert_eq!(
            times,
            ["0 s", "10 µs", "250 ms", "1 s", "59.9 s", "2.17 min", "27.8 h", "never"]
        );
        assert_eq!((share(0.5), share(0.000_04)), ("50 %".into(), "0.004 %".into()));
    }
}
