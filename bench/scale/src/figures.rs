//! Formats figures for tables.

use simurgh_text::format::{number, scaled};

/// From ten thousand on with `k`, `M`, `G` or `T`.
pub fn count(value: f64) -> String {
    match value.abs() {
        9_995.0..f64::INFINITY => scaled(value, ""),
        _ => number(value),
    }
}

/// Bits a second.
pub fn bits(value: f64) -> String {
    scaled(value, "bit/s")
}

/// A number per second.
pub fn rate(value: f64) -> String {
    format!("{}/s", count(value))
}

/// A share in percent.
pub fn share(value: f64) -> String {
    format!("{} %", number(value * 100.0))
}

#[cfg(test)]
mod tests {
    use simurgh_text::format::{bytes, time};

    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let counts = [0.0, 0.1234, 7.0, 42.42, 999.0, 1234.0, 12_345.0, 1e8, 2.5e9];
        let shown = counts.map(count);
        let expected = ["0", "0.123", "7", "42.4", "999", "1,234", "12.3 k", "100 M", "2.5 G"];
        assert_eq!(shown, expected);
        assert_eq!((count(f64::INFINITY), count(f64::NAN)), ("∞".into(), "–".into()));
        assert_eq!((count(3e-7), count(9_999_999.0)), ("0.0000003".into(), "10 M".into()));
    }

    #[test]
    fn bytes_times_and_shares() {
        assert_eq!([bytes(153.0), bytes(4.2e9), bytes(2048.0)], ["153 B", "4.2 GB", "2.05 kB"]);
        let times = [0.0, 0.000_01, 0.25, 1.0, 59.94, 130.0, 1e5].map(time);
        let expected = ["0 s", "10 µs", "250 ms", "1 s", "59.9 s", "2 min 10 s", "1 d 3 h"];
        assert_eq!(times, expected);
        assert_eq!((share(0.5), share(0.000_04)), ("50 %".into(), "0.004 %".into()));
    }
}
