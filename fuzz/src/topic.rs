//! Any two lines as a topic pattern and a topic.
use simurgh_proto::topic::Pattern;

/// Runs the target over one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (pattern, topic) = text.split_once('\n').unwrap_or((&text, &text));
    let stars = pattern.matches('*').count();
    let Ok(parsed) = Pattern::parse(pattern) else {
        assert!(stars > 1 || stars == 1 && !pattern.ends_with('*'), "{pattern}");
        return;
    };
    assert_eq!(parsed.to_string(), pattern);
    let expected = match pattern.strip_suffix('*') {
        Some(prefix) => topic.get(..prefix.len()) == Some(prefix),
        None => topic == pattern,
    };
    assert_eq!(parsed.matches(topic), expected, "{pattern} {topic}");
    assert!(Pattern::parse("*").expect("a prefix of everything").matches(topic));
}
