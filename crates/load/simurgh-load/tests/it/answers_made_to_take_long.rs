//! Searches in answers must be fast whatever a server sends: a search that takes quadratic time in
//! an answer of a megabyte would block a worker, and all its users, for minutes. Each of these
//! takes seconds, even in an unoptimised build.

use std::time::{Duration, Instant};

use simurgh_load::answer::{AnswerText, CompiledFind, decode_html};
use simurgh_load::scenario::Find;

/// A quarter of the kept bytes of an answer.
const BYTES: usize = 1 << 18;
/// Many times what it takes on an idle machine.
const LONGEST: Duration = Duration::from_secs(60);

fn find(find: &Find, answer: &[u8]) -> Vec<String> {
    let start = Instant::now();
    let found = CompiledFind::new(find).unwrap().find(&AnswerText::body_only(answer));
    assert!(start.elapsed() < LONGEST, "{find:?} took {:?}", start.elapsed());
    println!("{find:?}: {:?}, {} found", start.elapsed(), found.len());
    found
}

fn filled(piece: &str) -> Vec<u8> {
    piece.repeat(BYTES / piece.len()).into_bytes()
}

#[test]
fn element_with_many_attributes_is_searched_quickly() {
    let mut page = b"<b".to_vec();
    let mut number = 0;
    while page.len() < BYTES {
        page.extend_from_slice(format!(" a{number}=1").as_bytes());
        number += 1;
    }
    page.extend_from_slice(b">text</b>");
    find(&Find::FormField("a".to_owned()), &page);
    let named = [b"<input name=a value=1 ".as_slice(), &page[2..]].concat();
    assert_eq!(find(&Find::FormField("a".to_owned()), &named), ["1"]);
}

#[test]
fn json_path_on_deep_or_long_json_ends_quickly() {
    let json = |text: &str| Find::Json(text.to_owned());
    let deep = format!("{}\"{}\"{}", "[".repeat(120), "x".repeat(BYTES), "]".repeat(120));
    let found = find(&json("$..*"), deep.as_bytes());
    assert!(found.iter().map(String::len).sum::<usize>() <= 16 << 20, "once for each level");
    find(&json("$..*..*"), deep.as_bytes());
    let long = format!("[{}0]", "[0],".repeat(BYTES / 4));
    for path in ["$..*..*", "[*][*]", "$[?@[0] == $[0][0]]", "[?a=b][*]"] {
        find(&json(path), long.as_bytes());
    }
    let endless = "[".repeat(BYTES);
    let stars = "[*]".repeat(32);
    assert_eq!(find(&json(&stars), endless.as_bytes()), [""; 0]);
    find(&json(&stars), format!("{endless}{}", "]".repeat(BYTES)).as_bytes());
    assert!(CompiledFind::new(&json(&"[*]".repeat(33))).is_err(), "each goes through it again");
    assert!(CompiledFind::new(&json(&"[*,*]".repeat(50))).is_err(), "twice as many at each level");
}

#[test]
fn pattern_that_scans_the_rest_for_each_match_ends_quickly() {
    let regex = |text: &str| Find::Regex(text.to_owned());
    let found = find(&regex(".*[^A-Z]|[A-Z]"), &filled("A"));
    assert!(!found.is_empty(), "those that were found in time are kept");
    find(&regex("(a|b)*a(a|b){2000}c"), &filled("ab"));
    find(&regex(r"(\w+\s*)+$"), &filled("a b "));
    let error = CompiledFind::new(&regex("((a{100}){100}){100}")).unwrap_err();
    assert!(error.contains("size limit"), "{error}");
}

#[test]
fn many_html_references_are_decoded_quickly() {
    for piece in ["&", "&amp", "&#", "&#x41;", "&notin;"] {
        let text = piece.repeat(BYTES / piece.len());
        let start = Instant::now();
        let decoded = decode_html(&text);
        assert!(decoded.len() <= text.len());
        assert!(start.elapsed() < LONGEST, "{piece} took {:?}", start.elapsed());
    }
}
