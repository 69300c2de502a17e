//! Answers, heartbeats, matches and subprotocols: what is read, written, refused and explained.

use super::{ok, refused, session, steps};
use crate::toml::write;
use crate::*;

fn raw(keys: &str) -> String {
    let steps = "{ connect = \"/\" }, { set = \"n\", value = \"1\" }";
    session(steps).replace("protocol = \"phoenix\"", keys)
}

#[test]
fn answers_and_heartbeats_are_parsed_and_written() {
    let scenario = ok(&raw(r#"
heartbeat = { every = "25s", send = "2", binary = true }
answer = [
  { when = "2", send = "3" },
  { when = "any", send = "{{n}}" },
  { when = { json = "ping", is = "{{n}}" }, send = "{}", binary = true },
]"#));
    let [session] = &scenario.sessions[..] else { panic!() };
    let text = |text: &str, binary| FrameOut { data: Template::literal(text), binary };
    let every = std::time::Duration::from_secs(25);
    assert_eq!(session.heartbeat, Some(Heartbeat { every, send: Some(text("2", true)) }));
    let n = Template::from(Part::Var(VarId(0)));
    let rules = [
        AnswerRule { when: Matcher::Is(Template::literal("2")), send: text("3", false) },
        AnswerRule { when: Matcher::Any, send: FrameOut { data: n.clone(), binary: false } },
        AnswerRule { when: Matcher::Json { path: "ping".into(), is: n }, send: text("{}", true) },
    ];
    assert_eq!(session.rules, rules);
    assert_eq!(ok(&write(&scenario)).without_lines(), scenario.clone().without_lines());
    let machine = Machine { workers: 1, descriptors: 99, memory_bytes: None };
    let explained = explain(&scenario, &machine);
    for line in [
        "sends \"2\" every 25 s",
        "answers { is = \"2\" } with \"3\"",
        "answers \"any\" with \"{{n}}\"",
    ] {
        assert!(explained.contains(line), "{line:?} is not in {explained}");
    }
    // One rule needs no list.
    assert_eq!(ok(&raw("answer = { when = \"2\", send = \"3\" }")).sessions[0].rules, rules[..1]);
    assert_eq!(ok(&raw("heartbeat = \"25s\"")).sessions[0].heartbeat.as_ref().unwrap().send, None);
}

#[test]
fn every_mistake_in_a_rule_is_reported_with_its_line() {
    refused(
        &raw(r#"heartbeat = { evry = "1s" }
answer = [
  { when = "2" },
  { send = "{{m}}", wen = "2" },
  { when = { is = "2", contains = "2" }, send = 3 },
  "2",
]"#),
        &[
            ("line 7: heartbeat: every is missing", "25s"),
            ("line 7: heartbeat: send is missing", "a text"),
            ("line 7: evry: no such key in heartbeat", "did you mean every?"),
            ("line 9: a rule such as", "send = \"3\""),
            ("line 10: a rule such as", "when is missing"),
            ("line 10: send: the variable \"m\" is never set", "n"),
            ("line 10: wen: no such key in a rule", "did you mean when?"),
            ("line 11: when: is not a match", "is, contains"),
            ("line 11: send: is of the wrong type (integer)", "a text"),
            ("line 12: answer: is of the wrong type (string)", "a table"),
        ],
    );
}

#[test]
fn subprotocols_are_a_list_or_one_string() {
    for text in [r#"["a", "b.c"]"#, r#""a, b.c""#, r#""a,b.c""#, r#"["a,b.c"]"#] {
        let acts = steps(&format!("{{ connect = \"/\", subprotocols = {text} }}"));
        let [Act::Connect(connect)] = &acts[..] else { panic!("{acts:?}") };
        assert_eq!(connect.subprotocols, ["a", "b.c"], "{text}");
    }
    for wrong in [r#""""#, r#""a,""#, r#""a b""#, r#"["a", "b/c"]"#, r#""a\r\nx: y""#] {
        let text = session(&format!("{{ connect = \"/\", subprotocols = {wrong} }}"));
        refused(&text, &[("line 9: subprotocols: ", "is not the name of a subprotocol")]);
    }
}
