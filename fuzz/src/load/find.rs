//! Any expression on any answer.
//!
//! The first byte chooses the language, a NUL ends the expression, and the answer may have a head.
use simurgh_load::answer::{AnswerText, CompiledFind, JsonPath, decode_html};
use simurgh_load::scenario::Find;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let [language, data @ ..] = data else { return };
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (expression, answer) = data.split_at(end);
    let Ok(expression) = std::str::from_utf8(expression) else { return };
    let answer = answer.get(1..).unwrap_or_default();
    html(expression);
    let expression = expression.to_owned();
    let find = match language % 5 {
        0 => Find::Regex(expression),
        1 => Find::Json(expression),
        3 => Find::Header(expression),
        _ => Find::FormField(expression),
    };
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let head_bytes = head.filter(|_| answer.starts_with(b"HTTP/1.")).map_or(0, |at| at + 4);
    let answer = AnswerText::http(answer, head_bytes);
    let compiled = match CompiledFind::new(&find) {
        Ok(compiled) => compiled,
        Err(error) => return assert!(!error.is_empty()),
    };
    let found = compiled.find(&answer);
    assert_eq!(found, compiled.clone().find(&answer), "the same each time");
    match find {
        Find::Header(_) if head_bytes == 0 => assert_eq!(found, [""; 0], "no head, no header"),
        Find::Json(path) => json(&path, answer.body(), &found),
        _ => {}
    }
}

/// Short paths must find what `serde_json` finds.
fn json(path: &str, body: &[u8], found: &[String]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        // serde_json has limits of numbers and depth that ours does not have.
        return;
    };
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    if !path.split('.').all(is_name) {
        return;
    }
    let there = path.split('.').try_fold(&value, |value, name| value.as_object()?.get(name));
    let all = JsonPath::new(path).expect("names are a path").find(body);
    assert_eq!(all.len(), usize::from(there.is_some()));
    if let Some(text) = there.and_then(|there| there.as_str()) {
        assert_eq!(found, [text]);
    }
    if let Some(array) = there.and_then(|there| there.as_array()) {
        assert_eq!(found.len(), array.len());
    }
}

/// Undoes escapes.
fn html(text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&#34;");
    assert_eq!(decode_html(&escaped), text);
    assert!(decode_html(text).len() <= 2 * text.len(), "references are longer than what they mean");
}
