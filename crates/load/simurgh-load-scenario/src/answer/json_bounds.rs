//! Bounds of accepted JSON paths (RFC 9535): the cost of a path must be at most the size of the
//! text, times its depth and a factor. The text comes from servers, and nothing counts the work
//! while a path is followed.

pub(super) const LENGTH_MAX: usize = 1024;
/// Segments of a path in the short form: each passes through the text once.
pub(super) const SEGMENTS_MAX: usize = 32;
/// How often a path may have `..`: the second costs the depth of the text.
const DESCENTS_MAX: usize = 2;
/// The product of the sizes of a path's unions (`['a','b']`): each way passes through the text.
const WAYS_MAX: usize = 64;

/// Checks a path; an error says why it is not accepted.
pub(super) fn check(path: &str) -> Result<(), String> {
    // The number of selectors of each open bracket.
    let mut open: Vec<usize> = Vec::new();
    let (mut ways, mut descents) = (1_usize, 0);
    for (at, char) in outside_of_quotes(path) {
        let rest = path.get(at..).unwrap_or_default();
        match char {
            '[' | '(' => open.push(1),
            ',' => open.iter_mut().last().into_iter().for_each(|ways| *ways += 1),
            ']' => ways = ways.saturating_mul(open.pop().unwrap_or(1)),
            ')' => drop(open.pop()),
            '.' if rest.starts_with("..") => descents += 1,
            '$' if !open.is_empty() && !leads_to_one(rest) => {
                return Err("within a filter '$' must select one value".to_owned());
            }
            'm' | 's' if rest.starts_with("match(") || rest.starts_with("search(") => {
                return Err("patterns within a path are compiled for each element".to_owned());
            }
            _ => {}
        }
    }
    if descents > DESCENTS_MAX {
        return Err(format!("it has '..' more than {DESCENTS_MAX} times"));
    }
    if ways > WAYS_MAX {
        return Err(format!("its unions have more than {WAYS_MAX} combinations"));
    }
    Ok(())
}

fn outside_of_quotes(path: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut is_escaped) = (None, false);
    path.char_indices().filter(move |(_, char)| {
        let was = quote;
        match (quote, char) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), char) if open == *char => quote = None,
            (None, '"' | '\'') => quote = Some(*char),
            _ => {}
        }
        was.is_none() && quote.is_none()
    })
}

/// Whether this `$` begins a path of only names and numbers (§2.3.5.1, singular query).
fn leads_to_one(path: &str) -> bool {
    let mut rest = path.get(1..).unwrap_or_default();
    loop {
        if let Some(name) = rest.strip_prefix('.') {
            let is_part = |char: char| char.is_alphanumeric() || char == '_';
            let after = name.trim_start_matches(is_part);
            if after.len() == name.len() {
                return false;
            }
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('[') {
            let is_one = |char: char| char.is_alphanumeric() || "_-'\" ".contains(char);
            let Some(after) = inner.trim_start_matches(is_one).strip_prefix(']') else {
                return false;
            };
            rest = after;
        } else {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_paths_with_multiplying_cost_are_refused() {
        let wide = format!("${}", "[*,*]".repeat(7));
        for (path, word) in [
            ("$..*..*..*", "'..'"),
            ("$[?@..a[?@..b[?@..c]]]", "'..'"),
            (wide.as_str(), "64 combinations"),
            ("$[?@[*,*,*,*,*,*,*,*,*]][*,*,*,*,*,*,*,*]", "64 combinations"),
            ("$[?$[*] == 1]", "one value"),
            ("$[?$..a == 1]", "one value"),
            ("$[?$.a[?@.b] == 1]", "one value"),
            ("$[?match(@.a, 'a{999}')]", "patterns"),
            ("$..[?search(@, 'a')]", "patterns"),
        ] {
            let error = check(path).unwrap_err();
            assert!(error.contains(word), "{path}: {error}");
        }
    }

    #[test]
    fn json_paths_with_bounded_cost_are_accepted() {
        let many = format!("$[{}0]", "0,".repeat(63));
        for path in [
            "$..a..b",
            "$['a','b',0]",
            many.as_str(),
            "$['$..*..*..*','match(']",
            r#"$["\"..",'\'..','..']"#,
            "$[?@.a == $.b['c'][0]]",
            "$.match[?length(@.search) > 2]",
            "$[?count(@..*) > 2 && value(@..a) == 'x'][1:5:2]",
        ] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
    }
}
