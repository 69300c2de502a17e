//! Numbers, sizes and times as people read them.

/// Microseconds with the unit that suits them.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1.0 && us > 0.0 => format!("{us:.2} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e5 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => span(us / 1e6),
    }
}

/// Seconds, as a length of time.
pub fn span(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..100 => format!("{seconds:.2} s"),
        100..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// A number with its digits in groups of three: `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with the unit that suits them.
pub fn bytes(n: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n;
    for unit in units {
        if value < 1000.0 {
            let digits = usize::from(unit != "B" && value < 100.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

/// A rate or another number that need not be whole.
pub fn decimal(n: f64) -> String {
    if n < 100.0 { format!("{n:.1}") } else { grouped(n.round() as u64) }
}

/// Rows of cells as lines, with columns two spaces apart; `is_right` says which are aligned to the
/// right.
pub fn table(rows: &[Vec<String>], is_right: &[bool]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..is_right.len()).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).zip(is_right);
        let cells = cells.map(|((cell, &width), is_right)| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Text from elsewhere, with control characters and those that turn the direction of writing as
/// escapes, so that it cannot move the terminal's cursor or pass for something else.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// At most `most` characters; a longer text ends in `…`.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// The words of a text in lines of at most `width` characters, the first of which begins with
/// `first` and the others with `rest`; a longer word has a line for itself. Each line is ended.
pub fn wrapped(text: &str, first: &str, rest: &str, width: usize) -> String {
    let (mut out, mut line) = (String::new(), first.to_owned());
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > width {
            out.push_str(&line);
            out.push('\n');
            line = rest.to_owned();
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown_by_its_number() {
        assert_eq!(visible("a\x1b[2J\n\u{202e}<b>é"), "a\\u{1b}[2J\\u{a}\\u{202e}<b>é");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrapped("aa bb  cc dddddd e", "# ", "", 7), "# aa bb\ncc\ndddddd\ne\n");
    }
}
