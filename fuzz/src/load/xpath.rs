//! Any expression of XPath on any page; a NUL ends the expression.
//!
//! The results must obey the rules of the language: the count, the union with itself, and a second
//! search agree with the first search.
use simurgh_load::answer::{AnswerText, CompiledFind};
use simurgh_load::scenario::Find;

/// Longer expressions are refused; the target builds longer ones of the input.
const LENGTH_MAX: usize = 300;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (expression, page) = data.split_at(end);
    let Ok(text) = std::str::from_utf8(expression) else { return };
    let page = AnswerText::body_only(page.get(1..).unwrap_or_default());
    let compiled = |text: String| CompiledFind::new(&Find::XPath(text));
    let Ok(xpath) = compiled(text.to_owned()) else { return };
    let found = xpath.find(&page);
    assert_eq!(found, xpath.find(&page), "the same each time");
    if text.len() > LENGTH_MAX {
        return;
    }
    // In brackets it may be nested too deep.
    let Ok(bracketed) = compiled(format!("({text})")) else { return };
    assert_eq!(found, bracketed.find(&page), "brackets change nothing");
    let Ok(counted) = compiled(format!("count({text})")) else {
        assert!(found.len() <= 1, "what are no nodes is one value");
        return;
    };
    let numbers = counted.find(&page);
    if found.is_empty() {
        // Nothing was found, or the search took too many steps.
        return;
    }
    assert_eq!(numbers, [found.len().to_string()], "it is counted");
    assert_eq!(boolean(&compiled, text, &page), Some(true));
    if let Ok(united) = compiled(format!("({text}) | ({text})")) {
        let united = united.find(&page);
        assert!(united.is_empty() || united == found, "united with itself it is the same");
    }
    if let Ok(first) = compiled(format!("({text})[1]")) {
        let first = first.find(&page);
        assert!(first.is_empty() || first == found[..1], "the first comes first");
    }
}

fn boolean(
    compiled: &dyn Fn(String) -> Result<CompiledFind, String>,
    text: &str,
    page: &AnswerText<'_>,
) -> Option<bool> {
    let found = compiled(format!("boolean({text})")).ok()?.find(page);
    found.first().map(|word| word == "true")
}
