//! Foreign texts on a terminal, and texts in lines.

/// Text from elsewhere, with control characters and those that change the direction of writing as
/// escapes, so that it can neither move the terminal's cursor nor be mistaken for other text.
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
/// `first` and the others with `rest`; a longer word has its own line. Each line ends with a
/// newline.
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
    fn invisible_characters_are_shown_by_their_number() {
        assert_eq!(visible("a\x1b[2J\n\u{202e}<b>é"), "a\\u{1b}[2J\\u{a}\\u{202e}<b>é");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }

    #[test]
    fn texts_are_wrapped_between_words() {
        assert_eq!(wrapped("aa bb  cc dddddd e", "# ", "", 7), "# aa bb\ncc\ndddddd\ne\n");
    }
}
