//! Numbers for people.
//!
//! One rule: three significant digits without zeros at the end, a space, and the unit with the
//! prefix that suits it (`12.3 MB`, `850 µs`). Counts are written in full, in groups of three
//! digits (`1,234,567`). From 100 s on, times are two units (`2 min 5 s`).

/// A count with its digits in groups of three: `1,234,567`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number that may have a fraction: `0.00123`, `12.3`, and from 1,000 on without a fraction.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "–".to_owned() } else { "∞".to_owned() };
    }
    let size = value.abs();
    if size >= 999.5 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped(size.round() as u64));
    }
    let places = if size > 0.0 { (2 - size.log10().floor() as i32).clamp(0, 9) } else { 0 };
    let text = format!("{value:.*}", places as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A rate per second: `12.3/s`.
pub fn rate(per_second: f64) -> String {
    format!("{}/s", number(per_second))
}

/// A number in the unit with the prefix that suits it: `12.3 MB`; without a unit, `12.3 M`.
pub fn scaled(value: f64, unit: &str) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let prefix = prefixes.into_iter().find(|(scale, _)| value.abs() >= scale * 0.9995);
    let (scale, prefix) = prefix.unwrap_or((1.0, ""));
    format!("{} {prefix}{unit}", number(value / scale)).trim_end().to_owned()
}

/// Bytes, in thousands: `12.3 kB`.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, "B")
}

/// A share, of 1, in percent to three places: `99.997 %`. Less than all is never shown as 100 %.
pub fn percent(share: f64) -> String {
    let percent = (share * 1e5).round() / 1e3;
    let percent = if share < 1.0 { percent.min(99.999) } else { percent };
    format!("{percent} %")
}

/// A time in seconds: `850 µs`, `12.3 ms`, `59.9 s`, `2 min 5 s`, `1 h`, `2 d 3 h`.
pub fn time(seconds: f64) -> String {
    match seconds {
        it if !it.is_finite() => return "no end".to_owned(),
        it if it < 0.0 => return format!("-{}", time(-it)),
        it if it >= 99.95 => {}
        it if it >= 0.999_5 || it == 0.0 => return format!("{} s", number(it)),
        it if it >= 0.000_999_5 => return format!("{} ms", number(it * 1e3)),
        it => return format!("{} µs", number(it * 1e6)),
    }
    let mut rest = seconds.round() as u64;
    let parts = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)].map(|(unit, length)| {
        let whole = rest / length;
        rest %= length;
        (whole, unit)
    });
    // The two largest units, the second only if it is not 0.
    let first = parts.iter().position(|(whole, _)| *whole > 0).unwrap_or(parts.len() - 1);
    let shown = parts.iter().skip(first).take(2).filter(|(whole, _)| *whole > 0);
    shown.map(|(whole, unit)| format!("{whole} {unit}")).collect::<Vec<_>>().join(" ")
}

/// A time in microseconds, as [`time`].
pub fn micros(us: f64) -> String {
    time(us / 1e6)
}

/// Rows of cells as lines with aligned columns, two spaces apart: columns for which `is_left`
/// returns true are aligned to the left, all others to the right.
pub fn aligned(rows: &[Vec<String>], is_left: impl Fn(usize) -> bool) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if is_left(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        let all = [0, 999, 1_000, 12_345, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.5, "0.5"),
            (1.0, "1"),
            (9.996, "10"),
            (12.34, "12.3"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1,000"),
            (-1_234.5, "-1,235"),
            (f64::INFINITY, "∞"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(rate(12.0), "12/s");
    }

    #[test]
    fn units_have_a_suitable_prefix() {
        let all = [0.0, 153.0, 2_048.0, 999_900.0, 4.25e9, 2e18].map(bytes);
        assert_eq!(all, ["0 B", "153 B", "2.05 kB", "1 MB", "4.25 GB", "2,000 PB"]);
        assert_eq!((scaled(1e8, ""), scaled(7.0, "")), ("100 M".into(), "7".into()));
    }

    #[test]
    fn share_slightly_below_100_percent_is_not_rounded_up() {
        let all = [0.0, 0.000_04, 0.29, 0.5, 0.999_999_9, 1.0].map(percent);
        assert_eq!(all, ["0 %", "0.004 %", "29 %", "50 %", "99.999 %", "100 %"]);
    }

    #[test]
    fn times_have_one_unit_or_two() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.000_000_5, "0.5 µs"),
            (0.000_85, "850 µs"),
            (0.000_999_9, "1 ms"),
            (0.25, "250 ms"),
            (1.0, "1 s"),
            (59.94, "59.9 s"),
            (99.99, "1 min 40 s"),
            (125.0, "2 min 5 s"),
            (3_599.6, "1 h"),
            (30_100.0, "8 h 21 min"),
            (100_000.0, "1 d 3 h"),
            (-0.02, "-20 ms"),
            (f64::INFINITY, "no end"),
        ] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(micros(12_345.0), "12.3 ms");
    }

    #[test]
    fn table_columns_are_aligned() {
        let rows = [["a", "1"], ["bcd", "20"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows, |column| column == 0), "a     1\nbcd  20\n");
    }
}
