//! Captures, matchers and checks of answers, from outside.

use proptest::prelude::*;
use simurgh_load::answer::{
    AnswerText, CompiledCheck, CompiledFind, CompiledMatcher, JsonPath, PatternCache, run_checks,
};
use simurgh_load::scenario::{Action, Check, Find, Matcher, Part, Template, VarId};
use simurgh_proto::message::{Message, Payload, Ref};
use simurgh_proto::serializer::{Frame, Serializer};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Set-Cookie: session=s1; Path=/\r\n\r\n";
const BODY: &str = r#"{"token":"abc123","users":[{"id":1,"name":"x"},{"id":22,"name":"y"}]}"#;

fn find(what: Find, head: &str, body: &str) -> Vec<String> {
    let whole = format!("{head}{body}");
    let answer = AnswerText::http(whole.as_bytes(), head.len());
    CompiledFind::new(&what).unwrap().find(&answer)
}

fn words(text: &str) -> Template {
    Template { parts: vec![Part::Literal(text.as_bytes().to_vec())] }
}

fn template(before: &str, after: &str) -> Template {
    let literal = |text: &str| Part::Literal(text.as_bytes().to_vec());
    Template { parts: vec![literal(before), Part::Var(VarId(0)), literal(after)] }
}

fn expand_to(value: &str) -> impl FnMut(&Template, &mut Vec<u8>) {
    move |template, out| {
        for part in &template.parts {
            match part {
                Part::Literal(literal) => out.extend_from_slice(literal),
                _ => out.extend_from_slice(value.as_bytes()),
            }
        }
    }
}

#[test]
fn captures_of_the_full_tsung_dialect_find_their_values() {
    let json = |path: &str| Find::Json(path.to_owned());
    let regex = |pattern: &str| Find::Regex(pattern.to_owned());
    let header = |path: &str| Find::Header(path.to_owned());
    let reply = r#"{"topic":"rooms:lobby","event":"phx_reply","ref":"1",
        "payload":{"status":"ok","response":{}}}"#;
    let table: [(Find, &str, &str, &[&str]); 10] = [
        // Those of shared/tsung/dialect-full.xml.
        (json("token"), HEAD, BODY, &["abc123"]),
        (regex(r#""id":(\d+)"#), HEAD, BODY, &["1", "22"]),
        (header("content-type"), HEAD, BODY, &["application/json"]),
        (regex("(o)k"), "HTTP/1.1 200 \r\n\r\n", "ok", &["o"]),
        (json("payload.status"), "", reply, &["ok"]),
        // Further examples of Tsung's manual.
        (header("set-cookie/session"), HEAD, BODY, &["s1"]),
        (regex("<title>(.*)</title>"), HEAD, "<title>A</title>\n<title>B</title>", &["A", "B"]),
        (
            Find::FormField("random_num".into()),
            HEAD,
            r#"<hidden name="random_num" value="42">"#,
            &["42"],
        ),
        (Find::FormField("f".into()), "", "<input name=f value='1'>", &["1"]),
        (
            Find::FormField("f".into()),
            HEAD,
            "<script>if (a < b) '<p name=f value=0>'</script><input name=f value=\"&quot;1\">",
            &["\"1"],
        ),
    ];
    for (what, head, body, wanted) in table {
        assert_eq!(find(what.clone(), head, body), wanted, "{what:?}");
    }
}

#[test]
fn regular_expression_captures_its_group_or_the_whole_match() {
    let table: [(&str, &[&str]); 6] = [
        (r"\d+", &["1", "2", "3"]),
        (r"\d(a)?(b)?", &["a", "", ""]),
        (r"x(\d)", &["1", "2"]),
        (r"(?:x)(?P<n>\d)", &["1", "2"]),
        ("z", &[]),
        ("HTTP/1.1 (200)", &[]),
    ];
    for (pattern, wanted) in table {
        assert_eq!(find(Find::Regex(pattern.into()), "", "x1a x2b y3"), wanted, "{pattern}");
    }
    assert_eq!(find(Find::Regex("HTTP/1.1 (200)".into()), HEAD, BODY), ["200"]);
    assert_eq!(find(Find::Header("location".into()), "", BODY), [""; 0]);
}

#[test]
fn form_fields_are_found_in_every_html_notation() {
    let find = |html| find(Find::FormField("t".into()), "", html);
    assert_eq!(find("<input value='a&amp;b' type=hidden name=t>"), ["a&b"]);
    assert_eq!(
        find("<INPUT NAME=t VALUE=1><input name=T value=2><input name=t value=3>"),
        ["1", "3"]
    );
    assert_eq!(
        find("<!-- <input name=t value=1> --><script>'<input name=t value=2>'</script>"),
        [""; 0]
    );
    assert_eq!(find("<input name=t>"), [""; 0]);
}

#[test]
fn json_paths_of_tsung_and_the_standard_find_their_values() {
    let text = r#"{"a":{"b":[{"c":1,"name":"x"},{"c":"two\n","name":"y"},{"c":null,"name":3}]},
        "0":5,"f":1.50,"t":true,"o":{"k":1, "j":"\ud800"},"list":["p","q"],"a b":7,
        "dup":1,"dup":2,"e":[]}"#;
    let table: [(&str, &[&str]); 36] = [
        ("a.b[0].c", &["1"]),
        ("$.a.b[0].c", &["1"]),
        ("a.b.0.c", &["1"]),
        ("a.b[1].c", &["two\n"]),
        ("a.b[2].c", &["null"]),
        ("a.b[*].c", &["1", "two\n", "null"]),
        ("a.b.*.name", &["x", "y", "3"]),
        ("a.b[?name=x].c", &["1"]),
        ("a.b[?name=3].c", &["null"]),
        ("a.b[?c=1].name", &["x"]),
        ("a.b[?name='y'].c", &["two\n"]),
        ("a.b[?name=z].c", &[]),
        ("a.b[5].c", &[]),
        ("0", &["5"]),
        ("f", &["1.50"]),
        ("t", &["true"]),
        ("o", &[r#"{"k":1,"j":"\ud800"}"#]),
        ("o.j", &[r"\ud800"]),
        ("o[*]", &["1", r"\ud800"]),
        ("list", &["p", "q"]),
        ("list[1]", &["q"]),
        ("list[0].x", &[]),
        ("list.name", &[]),
        ("e", &[]),
        ("a b", &["7"]),
        ("dup", &["2"]),
        ("nope", &[]),
        ("$['a']['b'][0]['c']", &["1"]),
        ("a['b'][0].name", &["x"]),
        // Paths of the standard.
        ("$..c", &["1", "two\n", "null"]),
        ("..c", &["1", "two\n", "null"]),
        ("a.b[-1].name", &["3"]),
        ("a.b[0:2].name", &["x", "y"]),
        ("a.b[?@.name=='y'].c", &["two\n"]),
        ("$.a.b[?(@.c==1)].name", &["x"]),
        ("$.list", &["p", "q"]),
    ];
    for (path, wanted) in table {
        // The standard's parser, which reads the whole text, rejects the lone surrogate.
        let text = if path.contains(['@', ':', '-']) || path.contains("..") {
            text.replace(r"\ud800", "")
        } else {
            text.to_owned()
        };
        assert_eq!(find(Find::Json(path.into()), HEAD, &text), wanted, "{path}");
    }
    for path in ["", "a..", "a[", "a]", "a[?]", "a[?=1]", ".", "a.b[?name==]"] {
        assert!(JsonPath::new(path).is_err(), "{path}");
    }
    for none in ["", "{", "[1,]", "\u{feff}{}", "{\"a\":1}x", "nul"] {
        assert_eq!(find(Find::Json("a".into()), "", none), [""; 0], "{none}");
    }
    assert_eq!(find(Find::Json("$".into()), "", "[1, 2]"), ["1", "2"]);
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\\u{e9}\n]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-c]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn segment() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "[0]", "[1]", "[*]"])
}

proptest! {
    /// The short form, which builds no tree, against the crate that does.
    #[test]
    fn fast_json_search_agrees_with_the_standard_crate(
        value in any_json(),
        segments in prop::collection::vec(segment(), 1..4),
        is_pretty in any::<bool>(),
    ) {
        let mut path = String::from("$");
        for segment in &segments {
            path += if segment.starts_with('[') { "" } else { "." };
            path += segment;
        }
        let text = if is_pretty { format!("{value:#}") } else { value.to_string() };
        let short = JsonPath::new(&path).unwrap().find(text.as_bytes());
        let standard = serde_json_path::JsonPath::parse(&path).unwrap();
        let wanted: Vec<String> = standard.query(&value).iter().map(|value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        }).collect();
        prop_assert_eq!(short, wanted);
    }
}

/// The same message in each serializer: text in both, and binary where there is one.
fn frames(topic: &str, event: &str, payload: &str) -> Vec<(Vec<u8>, bool)> {
    let message = |payload| Message {
        join_ref: Ref::Null,
        msg_ref: Ref::Null,
        topic: topic.into(),
        event: event.into(),
        payload,
    };
    let mut all = Vec::new();
    for serializer in [Serializer::V1, Serializer::V2] {
        let mut out = Vec::new();
        serializer.message(&mut out, &message(Payload::from_json(payload.to_owned()))).unwrap();
        all.push((out, false));
    }
    // As Tsung gets it from servers that answer in kind.
    all.push((all[0].0.clone(), true));
    let mut out = Vec::new();
    Serializer::V2
        .broadcast(&mut out, topic, event, &Payload::from_bytes(payload.as_bytes()))
        .unwrap();
    all.push((out, true));
    all
}

fn matches(matcher: &Matcher, (bytes, is_binary): &(Vec<u8>, bool), value: &str) -> bool {
    let frame = match is_binary {
        true => Frame::Binary(bytes),
        false => Frame::Text(std::str::from_utf8(bytes).unwrap()),
    };
    let matcher = CompiledMatcher::new(matcher).unwrap();
    let mut patterns = PatternCache::default();
    let alone = matcher.matches(frame, None, &mut patterns, &mut expand_to(value));
    for serializer in [Serializer::V1, Serializer::V2] {
        if let Ok(message) = serializer.decode_server(frame) {
            let expand = &mut expand_to(value);
            let told = matcher.matches(frame, Some(&message), &mut patterns, expand);
            assert_eq!(alone, told, "{matcher:?} {}", String::from_utf8_lossy(bytes));
        }
    }
    alone
}

#[test]
fn events_are_matched_in_both_serializers() {
    let event = |topic: Option<Template>, event| Matcher::Event { topic, event };
    for frame in frames("rooms:1", "new_msg", r#"{"body":"hi"}"#) {
        let is = |matcher: Matcher| matches(&matcher, &frame, "1");
        assert!(is(event(None, words("new_msg"))));
        assert!(is(event(Some(words("rooms:1")), words("new_msg"))));
        assert!(is(event(Some(template("rooms:", "")), words("new_msg"))));
        assert!(!is(event(Some(words("rooms:2")), words("new_msg"))));
        assert!(!is(event(None, words("new_ms"))));
        assert!(is(Matcher::Any));
        assert!(is(Matcher::Is(words(&String::from_utf8_lossy(&frame.0)))));
        assert!(!is(Matcher::Is(words("new_msg"))));
        assert!(is(Matcher::Contains(words(r#"{"body":"#))));
        assert!(is(Matcher::Contains(template("rooms:", ""))));
        assert!(!is(Matcher::Contains(words("bye"))));
        assert!(is(Matcher::Regex(words(r#"{"body":"h.""#))));
        assert!(!is(Matcher::Regex(words("^hi"))));
        let json = |path: &str, value| Matcher::Json { path: path.into(), is: value };
        assert!(is(json("topic", template("rooms:", ""))));
        assert!(is(json("event", words("new_msg"))));
        assert!(!is(json("event", words("other"))));
        // A binary broadcast's payload is not JSON.
        let is_opaque = frame.1 && frame.0.first() != Some(&b'{');
        assert_eq!(is(json("payload.body", words("hi"))), !is_opaque);
        assert!(!is(json("payload.body", words("ho"))));
    }
}

#[test]
fn values_in_a_regular_expression_are_literal_text() {
    let frame = (b"42[\"room\",\"a.b\"]".to_vec(), false);
    let is = |before: &str, value: &str, after: &str| {
        matches(&Matcher::Regex(template(before, after)), &frame, value)
    };
    assert!(is("^42.*\"", "a.b", "\"]$"));
    assert!(!is("^42.*\"", "a.c", "\"]$"));
    for sign in [".*", "a|b", "a?.b", "(", "[a].b", "\\w", "{", "a.b\\"] {
        assert!(!is("\"", sign, "\"]"), "{sign}");
        let frame = (format!("<{sign}>").into_bytes(), false);
        assert!(matches(&Matcher::Regex(template("^<", ">$")), &frame, sign), "{sign}");
    }
}

proptest! {
    #[test]
    fn any_value_in_a_regular_expression_matches_only_itself(
        value in "\\PC{0,12}",
        other in "\\PC{0,12}",
    ) {
        let frame = (format!("<{value}>").into_bytes(), false);
        let matcher = Matcher::Regex(template("^<", ">$"));
        prop_assert!(matches(&matcher, &frame, &value));
        prop_assert_eq!(matches(&matcher, &frame, &other), other == value);
    }

    #[test]
    fn json_documents_in_a_frame_are_found_with_any_separator(
        ids in proptest::collection::vec(any::<u16>(), 0..6),
        separator in "[ \n\r\t]{0,3}",
    ) {
        let documents: Vec<_> = ids.iter().map(|id| format!("{{\"id\":{id}}}")).collect();
        let text = documents.join(&separator);
        let found = JsonPath::new("id").unwrap().find(text.as_bytes());
        prop_assert_eq!(found, ids.iter().map(u16::to_string).collect::<Vec<_>>());
    }
}

#[test]
fn json_match_searches_all_documents_of_a_frame() {
    let json = |path: &str, value: &str| Matcher::Json { path: path.into(), is: words(value) };
    let lines = (b"{\"id\":1}\n{\"id\":2,\"a\":[{\"b\":\"x\"}]}\n{}\n".to_vec(), false);
    for (path, value, found) in [
        ("id", "1", true),
        ("id", "2", true),
        ("id", "3", false),
        ("$.a[?@.b == 'x'].b", "x", true),
        ("$..id", "2", true),
        ("$", "{}", true),
        ("$", "{ }", false),
    ] {
        for is_binary in [false, true] {
            let frame = (lines.0.clone(), is_binary);
            assert_eq!(matches(&json(path, value), &frame, ""), found, "{path} {value}");
        }
    }
    let find = CompiledFind::new(&Find::Json("id".into())).unwrap();
    assert_eq!(find.find(&AnswerText::body_only(&lines.0)), ["1", "2"]);
    // Not JSON as a whole: nothing is found.
    for broken in ["{\"id\":1}\n{\"id\":", "{\"id\":1} x", "x\n{\"id\":1}", ""] {
        assert!(!matches(&json("id", "1"), &(broken.into(), false), ""), "{broken}");
    }
}

#[test]
fn replies_are_matched_in_both_serializers() {
    let (join_ref, msg_ref) = (Ref::from_text("1"), Ref::from_text("2"));
    let payloads = [Payload::from_json(r#"{"n":[1]}"#), Payload::from_bytes(&b"\x01\x02"[..])];
    for (serializer, payload) in [
        (Serializer::V1, &payloads[0]),
        (Serializer::V2, &payloads[0]),
        (Serializer::V2, &payloads[1]),
    ] {
        let mut bytes = Vec::new();
        serializer.reply(&mut bytes, &join_ref, &msg_ref, "t", "ok", payload).unwrap();
        let frame = (bytes, payload.binary().is_some());
        let json = |path: &str, value| Matcher::Json { path: path.into(), is: words(value) };
        assert!(matches(&json("payload.status", "ok"), &frame, ""));
        assert!(!matches(&json("payload.status", "error"), &frame, ""));
        assert_eq!(matches(&json("payload.response.n[0]", "1"), &frame, ""), !frame.1);
        let event = Matcher::Event { topic: Some(words("t")), event: words("phx_reply") };
        assert!(matches(&event, &frame, ""));
    }
}

#[test]
fn frames_of_other_protocols_match_no_event() {
    let event = Matcher::Event { topic: None, event: words("") };
    for text in ["", "[]", "{}", "hello", "[1,2,3]", "{\"topic\":1}"] {
        let frame = (text.as_bytes().to_vec(), false);
        assert!(!matches(&event, &frame, ""), "{text}");
        assert!(matches(&Matcher::Any, &frame, ""));
    }
    let array = (br#"[{"a":"x"}]"#.to_vec(), false);
    assert!(matches(&Matcher::Json { path: "[0].a".into(), is: words("x") }, &array, ""));
}

fn check(pattern: Template, when_found: bool, action: Action) -> CompiledCheck {
    let name = "-".to_owned();
    CompiledCheck::new(&Check { name, pattern, when_found, action, skip_headers: false }).unwrap()
}

#[test]
fn checks_run_until_one_does_more_than_log() {
    let answer = AnswerText::http(b"HTTP/1.1 200 OK\r\n\r\nWelcome, 7!", 19);
    let checks = [
        check(words("Welcome"), true, Action::Log),
        check(words("Welcome"), false, Action::Abort),
        check(template("Welcome, ", "!"), true, Action::Dump),
        check(words("Error"), false, Action::AbortRun),
        check(words("Welcome"), true, Action::Continue),
    ];
    let mut heard = Vec::new();
    let mut patterns = PatternCache::default();
    let done =
        run_checks(&checks, &answer, &mut patterns, &mut expand_to("7"), |index, verdict| {
            heard.push((index, verdict.found, verdict.action.is_some()));
        });
    assert_eq!(done, Some((3, Action::AbortRun)));
    assert_eq!(heard, [(0, true, true), (1, true, false), (2, true, true), (3, false, true)]);
}

#[test]
fn checks_skip_the_headers_on_request() {
    let answer = AnswerText::http(b"HTTP/1.1 200 OK\r\n\r\nbody", 19);
    for (pattern, skip_headers, found) in [
        ("200", false, true),
        ("200", true, false),
        ("^body", true, true),
        (r"OK\r\n\r\nbody$", false, true),
    ] {
        let check = Check {
            name: String::new(),
            pattern: words(pattern),
            when_found: true,
            action: Action::Continue,
            skip_headers,
        };
        let check = CompiledCheck::new(&check).unwrap();
        let verdict = check.verdict(&answer, &mut PatternCache::default(), &mut expand_to(""));
        assert_eq!(verdict.found, found, "{pattern}");
    }
}

#[test]
fn values_that_break_a_pattern_are_reported() {
    let check = check(template("a", ""), true, Action::Abort);
    let answer = AnswerText::body_only(b"a1a2");
    let mut patterns = PatternCache::default();
    let mut verdict = |value: &str| check.verdict(&answer, &mut patterns, &mut expand_to(value));
    let broken = verdict("(");
    assert!(broken.is_broken && !broken.found && broken.action.is_none());
    // More values than are cached, each twice.
    for number in (0..200).chain(0..200) {
        let found = verdict(&number.to_string());
        assert_eq!((found.found, found.is_broken), (matches!(number, 1 | 2), false), "{number}");
    }
}

#[test]
fn uncompilable_search_is_reported() {
    for (find, word) in [
        (Find::Regex("(".into()), "regular expression"),
        (Find::Json("a[".into()), "JSON path"),
        (Find::Header("/".into()), "header"),
    ] {
        let error = CompiledFind::new(&find).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    assert!(CompiledMatcher::new(&Matcher::Regex(words("["))).is_err());
}

/// As Tsung does: the next request sends them as they came.
#[test]
fn regular_expressions_preserve_bytes_that_are_not_utf8() {
    for pattern in ["name=(.+?);", "(?-u:[\\xe9a-z]+);"] {
        let find = CompiledFind::new(&Find::Regex(pattern.into())).unwrap();
        let found = find.find_bytes(&AnswerText::body_only(b"name=caf\xe9;"));
        assert_eq!(found.len(), 1, "{pattern}");
        assert!(found[0].starts_with(b"caf\xe9"), "{pattern}: {found:?}");
    }
}
