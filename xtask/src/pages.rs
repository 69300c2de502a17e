//! Tables in documents: each is between two comments that name its source.

use anyhow::{Context, Result};

/// How a table begins; the rest of the line is its source, and [`CLOSE`].
const BEGIN: &str = "<!-- table: ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end of table -->";

/// The text with each table made by `content` from its source, which it may change.
pub(crate) fn with_fresh_tables(
    text: &str,
    mut content: impl FnMut(&mut String) -> Result<String>,
) -> Result<String> {
    let (mut fresh, mut rest) = (String::new(), text);
    while let Some((before, from)) = rest.split_once(BEGIN) {
        let line = from.lines().next().unwrap_or_default();
        let source =
            line.strip_suffix(CLOSE).with_context(|| format!("no end of {BEGIN}{line}"))?;
        let (_, behind) = from.split_once(END).with_context(|| format!("no {END} of {source}"))?;
        let mut source = source.to_owned();
        let table = content(&mut source)?;
        fresh += &format!("{before}{BEGIN}{source}{CLOSE}\n{table}{END}");
        rest = behind;
    }
    Ok(fresh + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_by_hand_stays() {
        let text = "before\n<!-- table: a -->\nold\n<!-- end of table -->\nbetween\n\
                    <!-- table: b -->\nold\n<!-- end of table -->\nbehind\n";
        let fresh = with_fresh_tables(text, |source| {
            source.push('2');
            Ok(format!("new from {source}\n"))
        });
        assert_eq!(
            fresh.unwrap(),
            "before\n<!-- table: a2 -->\nnew from a2\n<!-- end of table -->\nbetween\n\
             <!-- table: b2 -->\nnew from b2\n<!-- end of table -->\nbehind\n"
        );
    }

    #[test]
    fn a_damaged_page_is_refused() {
        let fresh = |text| with_fresh_tables(text, |_| Ok(String::new()));
        assert!(fresh("<!-- table: x -->\nno end").is_err());
        assert!(fresh("<!-- table: x\n<!-- end of table -->").is_err());
    }
}
