//! Tests: written scenarios are read as the same; mistakes are reported with their line; no panics.

mod reference;
mod rules;

use std::path::Path;

use super::{read, write};
use crate::*;

#[track_caller]
fn ok(text: &str) -> Scenario {
    match read(text, Path::new(""), &Overrides::default()) {
        Ok(loaded) => loaded.scenario,
        Err(diagnostics) => panic!("{diagnostics}\n{text}"),
    }
}

fn session(steps: &str) -> String {
    format!(
        "[target]\nurl = \"ws://127.0.0.1:4000\"\n[[phase]]\nduration = \"1s\"\nrate = 1\n\
         [[session]]\nprotocol = \"phoenix\"\nsteps = [\n{steps}\n]\n"
    )
}

#[track_caller]
fn steps(text: &str) -> Vec<Act> {
    let scenario = ok(&session(text));
    scenario.sessions[0].steps.iter().map(|step| step.act.clone()).collect()
}

#[track_caller]
fn diagnostics(text: &str) -> Vec<String> {
    match read(text, Path::new(""), &Overrides::default()) {
        Ok(_) => panic!("nothing is wrong with\n{text}"),
        Err(diagnostics) => diagnostics.0.iter().map(Diagnostic::to_string).collect(),
    }
}

/// Expects these diagnostics in order: how they begin, and a word of the advice.
#[track_caller]
fn refused(text: &str, expected: &[(&str, &str)]) {
    let found = diagnostics(text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (start, word)) in found.iter().zip(expected) {
        assert!(found.starts_with(start), "{found:?} does not begin with {start:?}");
        assert!(found.contains(word), "{word:?} is not in {found:?}");
    }
}

#[test]
fn example_of_the_scenario_language_is_parsed() {
    let scenario = ok(r#"
name = "lobby"
seed = 7
[target]
url = "ws://127.0.0.1:4000"
[[phase]]
duration = "100s"
rate = "60/min"
arrivals = "poisson"
max_users = 100_000
[[phase]]
duration = "10s"
users = [1, 50]
[[session]]
name = "lobby"
protocol = "phoenix"
heartbeat = "30s"
reconnect = { min = "1s", max = "30s", rejoin = true }
steps = [
  { connect = "/socket/websocket" },
  { join = "rooms:lobby", payload = { user = "{{user_id}}", n = [1, true, 2.5] } },
  { push = "new:msg", payload = '{"body":"{{stamp}}"}', reply = false },
  { think = ["1s", "5s"] },
  { receive = "end" },
  { loop = 10, every = "1s", steps = [{ think = { mean = "2s" } }] },
]
[pass]
join_p99 = "< 50ms"
errors = ["== 0", "< 5"]
"#);
    assert_eq!((scenario.name.as_str(), scenario.seed), ("lobby", 7));
    let target = &scenario.targets[0];
    assert_eq!((target.host.as_str(), target.address.port()), ("127.0.0.1", 4000));
    let open = Arrivals::Open { from: 1.0, to: 1.0, poisson: true };
    assert_eq!(scenario.load.phases[0].arrivals, open);
    assert_eq!(scenario.load.phases[1].arrivals, Arrivals::Closed { from: 1, to: 50 });
    assert_eq!(scenario.load.phases[1].name, "2");
    let steps = &scenario.sessions[0].steps;
    assert_eq!(steps.iter().map(|step| step.line).collect::<Vec<_>>(), [20, 21, 22, 23, 24, 25]);
    let Act::Join(join) = &steps[1].act else { panic!("{:?}", steps[1]) };
    let text = super::template::print(&join.payload, &scenario);
    assert_eq!(text, r#"{"user":"{{user_id}}","n":[1,true,2.5]}"#);
    assert_eq!((join.status.as_deref(), join.await_reply), (Some("ok"), true));
    let Act::Push(push) = &steps[2].act else { panic!("{:?}", steps[2]) };
    assert_eq!(push.topic, join.topic, "the topic of the last join");
    let pass: Vec<_> = scenario.pass.iter().map(|one| (one.text.as_str(), one.value)).collect();
    assert_eq!(pass, [("< 50ms", 50_000.0), ("== 0", 0.0), ("< 5", 5.0)]);
}

#[test]
fn url_has_the_default_port_of_its_scheme() {
    for (url, host, address, tls) in [
        ("ws://127.0.0.1", "127.0.0.1", "127.0.0.1:80", false),
        ("https://127.0.0.1/", "127.0.0.1", "127.0.0.1:443", true),
        ("wss://[::1]:9", "::1", "[::1]:9", true),
        ("http://[::1]", "::1", "[::1]:80", false),
        ("HTTPS://127.0.0.1", "127.0.0.1", "127.0.0.1:443", true),
        ("Ws://user:p%20w@127.0.0.1", "127.0.0.1", "127.0.0.1:80", false),
    ] {
        let text = session("").replace("ws://127.0.0.1:4000", url);
        let target = ok(&text).targets[0].clone();
        assert_eq!((target.host.as_str(), target.tls), (host, tls), "{url}");
        assert_eq!(target.address.to_string(), address);
    }
    for wrong in [
        "127.0.0.1:4000",
        "ftp://127.0.0.1",
        "ws://",
        "ws://:80",
        "ws://::1",
        "ws://[::1",
        "ws://127.0.0.1:0",
        "ws://127.0.0.1:99999",
        "ws://127.0.0.1/socket",
    ] {
        let found = diagnostics(&session("").replace("ws://127.0.0.1:4000", wrong));
        assert!(found[0].starts_with("line 2: url: "), "{wrong}: {found:?}");
    }
}

#[test]
fn flags_of_the_command_line_change_the_parsed_scenario() {
    let text = session("{ think = \"1s\", tag = \"slow\" }, { wait_server = true }")
        .replace("127.0.0.1:4000", "chat.invalid:4000")
        + "[[agent]]\naddress = \"a:1\"\ntoken = \"$T\"\n";
    let map = vec![("chat.invalid".to_owned(), "127.0.0.9".to_owned())];
    let overrides =
        Overrides { map, local: true, exclude_tags: vec!["slow".into()], ..Overrides::default() };
    let scenario = read(&text, Path::new(""), &overrides).unwrap().scenario;
    assert_eq!(scenario.targets[0].host, "chat.invalid");
    assert_eq!(scenario.targets[0].address.to_string(), "127.0.0.9:4000");
    assert_eq!(scenario.agents, []);
    assert_eq!(scenario.sessions[0].steps.len(), 1);
    refused(&text, &[("line 2: url: the host \"chat.invalid\" has no address", "--map chat.inv")]);
}

#[test]
fn switch_step_names_a_server_by_url_or_number() {
    let acts = steps(
        r#"{ switch = 1 }, { switch = "ws://127.0.0.1:4000" }, { switch = "wss://[::1]:5" }"#,
    );
    let targets: Vec<_> = acts
        .iter()
        .map(|act| match act {
            Act::Switch(switch) => switch.target,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(targets, [0, 0, 1]);
}

#[test]
fn every_mistake_in_the_tables_is_reported_with_its_line() {
    refused(
        r#"nme = "x"
seed = -1
duration = "5 potatoes"
[target]
url = "ws://127.0.0.1:4000"
wieght = 2
[[phase]]
duration = 5
rte = 7
[[phase]]
duration = "5s"
rate = "7/fortnight"
arrivals = "evenly"
[[phase]]
rate = 1
users = 2
weights = { loby = 1 }
[[session]]
name = "lobby"
protocol = "phenix"
steps = []
[pass]
errors = "0"
join_p99 = "< soon"
"#,
        &[
            ("line 1: nme: no such key in the top of the file", "did you mean name?"),
            ("line 2: seed: -1 is out of bounds", ""),
            ("line 3: duration: \"5 potatoes\": unknown time unit", "\"30s\""),
            ("line 6: wieght: no such key in [target]", "weight"),
            ("line 7: [[phase]]: rate is missing", "users = 100"),
            ("line 8: duration: is of the wrong type (integer)", "\"500ms\""),
            ("line 9: rte: no such key in [[phase]]", "did you mean rate?"),
            ("line 12: rate: \"fortnight\" is not a unit", "60/min"),
            ("line 13: arrivals: \"evenly\" is not allowed", "did you mean even?"),
            ("line 14: [[phase]]: duration is missing", ""),
            ("line 14: [[phase]]: rate and users exclude each other", ""),
            ("line 17: loby: there is no session \"loby\"", "did you mean lobby?"),
            ("line 20: protocol: \"phenix\"", "did you mean phoenix?"),
            ("line 23: errors: \"0\" compares nothing", "=="),
            ("line 24: join_p99: \"< soon\"", "50ms"),
        ],
    );
    refused(
        "",
        &[("line 1: the top of the file: target is missing", "[target]"), ("line 1", "steps")],
    );
    refused("a = \n[x\n", &[("line 1: not TOML", ""), ("line 2: not TOML", "")]);
}

#[test]
fn every_mistake_in_drop_settings_is_reported_with_its_line() {
    refused(
        r#"follow_stamps = "exactly"
[target]
url = "ws://127.0.0.1:4000"
[[phase]]
name = "calm"
duration = "1s"
rate = 1
[[session]]
resume = "yes"
drop = { every = "0s", for = "-2s", how = "rest", phase = "clam", evry = 1 }
steps = []
[[session]]
drop = { reconnect = "2-1s" }
steps = []
[[session]]
drop = { every = "1s", for = "1s", how = "rst", reconnect = "1" }
steps = []
[[session]]
drop = "10s"
steps = []
"#,
        &[
            ("line 1: follow_stamps: \"exactly\" is not allowed", "did you mean exact?"),
            ("line 9: resume: is of the wrong type (string)", "true or false"),
            ("line 10: every: must be longer than 0", ""),
            ("line 10: for: \"-2s\": ", "\"500ms\""),
            ("line 10: how: \"rest\" is not allowed", "did you mean rst?"),
            ("line 10: phase: there is no phase \"clam\"", "did you mean calm?"),
            ("line 10: evry: no such key in drop", "did you mean every?"),
            ("line 13: drop: every is missing", "10s"),
            ("line 13: drop: for is missing", "2s"),
            ("line 13: drop: how is missing", "silence"),
            ("line 13: reconnect: \"2-1s\" goes from a longer to a shorter time", "500ms-2s"),
            ("line 16: reconnect: \"1\": ", "0-1s"),
            ("line 19: drop: is of the wrong type (string)", "a table"),
        ],
    );
}

#[test]
fn drop_settings_are_written_with_their_phase() {
    let text = "[target]\nurl = \"ws://127.0.0.1:4000\"\n[[phase]]\nduration = \"1s\"\nrate = 1\n\
                [[phase]]\nname = \"b\"\nduration = \"1s\"\nrate = 1\n[[session]]\nsteps = []\n\
                drop = { every = \"9s\", for = \"1s\", how = \"both\", reconnect = \"0-1s\", \
                phase = \"b\" }\n";
    let scenario = ok(text);
    let (second, none) = (std::time::Duration::from_secs(1), std::time::Duration::ZERO);
    let expected = Drop {
        every: 9 * second,
        away: second,
        how: Cut::Both,
        reconnect: (none, second),
        phase: Some(1),
    };
    assert_eq!(scenario.sessions[0].drop, Some(expected));
    assert_eq!(scenario.follow_stamps(), Follow::Exactly);
    assert_eq!(ok(&write(&scenario)).sessions[0].drop, Some(expected));
}

#[test]
fn every_mistake_in_the_steps_is_reported_with_its_line() {
    refused(
        &session(
            r#"{ conect = "/" },
  { think = "1s", join = "a" },
  { think = ["5s", "1s"] },
  { send = "{{nam}}", reply = "hello" },
  { push = "x" },
  { join = "t", payload = '{"a":}' },
  { set = "name", value = "1" },
  { loop = 3, stepps = [] },
  { if = "name", steps = [] },
  "think",
  { wait = { contains = "a", regex = "b" } },
  { abort = "now" },
  { each = "e", in = "list", steps = [] },
  { wait = { presence = "joins" } },
  { wait = { presence = "here", key = "a" } }"#,
        ),
        &[
            ("line 9: conect: is not a step", "did you mean connect?"),
            ("line 10: steps: a step has one verb, not both", "two steps"),
            ("line 11: think: goes from a longer", ""),
            ("line 12: send: the variable \"nam\" is never set; did you mean name?", ""),
            ("line 12: reply: \"hello\" is not a match", "contains"),
            ("line 13: push: goes to no topic", "join one before"),
            ("line 14: payload: is not JSON", "bytes"),
            ("line 16: a loop step: steps is missing", "a list of steps"),
            ("line 16: stepps: no such key in a loop step", "did you mean steps?"),
            ("line 17: if: \"name\" is not a condition", "n >= 3"),
            ("line 18: steps: is of the wrong type (string)", "think"),
            ("line 19: wait: is not a match", "contains"),
            ("line 20: abort: \"now\" is not allowed", "user or run"),
            ("line 21: in: the variable \"list\" is never set", ""),
            ("line 22: wait: is not a match", "presence, key and topic"),
            ("line 23: presence: \"here\" is not allowed", "state, joins or leaves"),
        ],
    );
}

#[test]
fn xpath_is_refused_by_name() {
    let step = "{ get = \"/\", capture = { n = { xpath = \"//a\" } } }";
    refused(&session(step), &[("line 9: n: xpath is not supported", "regular expression")]);
}

#[test]
fn payload_must_be_json_after_its_variables_are_inserted() {
    steps(
        r#"{ set = "a", value = "1" },
        { join = "t", payload = '{"a":{{a}},"b":"x{{a}}y","c":[{{random_number 1 6}}]}' },
        { push = "e", payload = "{{a}}" },
        { push = "e", payload = '["{{stamp}}"]' },
        { push = "e", payload = "\u0000{", binary = true }"#,
    );
    for wrong in ["'{'", "'{\"a\":{{random_string 3}}}'", "'{{a}}{{a}},'", "''", "\"{}{{stamp}}\""]
    {
        let text =
            format!("{{ set = \"a\", value = \"1\" }}, {{ join = \"t\", payload = {wrong} }}");
        let found = diagnostics(&session(&text));
        assert!(found[0].contains("payload: is not JSON"), "{wrong}: {found:?}");
    }
}

#[test]
fn conditions_are_parsed_with_variable_and_value() {
    let set = "{ set = [\"n\", \"a b\"], target = true }, ";
    for (text, name, element, compare, value) in [
        ("n >= 3", 0, None, Compare::Gte, "3"),
        ("n[2]==ok", 0, Some(2), Compare::Eq, "ok"),
        ("n != ", 0, None, Compare::Neq, ""),
        (r#"\"a b\" < {{n}}"#, 1, None, Compare::Lt, "{{n}}"),
    ] {
        let acts = ok(&session(&format!("{set}{{ if = \"{text}\", steps = [] }}")));
        let Act::If { condition, .. } = &acts.sessions[0].steps[1].act else { panic!() };
        assert_eq!((condition.var, condition.element), (VarId(name), element), "{text}");
        assert_eq!(condition.compare, compare);
        assert_eq!(super::template::print(&condition.value, &acts), value);
    }
    for wrong in ["", "n", "n = 3", "n[x] == 3", "n[0 == 3", "m == 3", "== 3"] {
        let found = diagnostics(&session(&format!("{set}{{ if = \"{wrong}\", steps = [] }}")));
        assert!(found[0].starts_with("line 9: if: "), "{wrong}: {found:?}");
    }
}

#[test]
fn too_deeply_nested_steps_are_refused() {
    let lists = "[".repeat(100_000);
    let loops = format!("{}{}", "{ loop = 1, steps = [".repeat(5_000), "] }".repeat(5_000));
    for text in [lists, session(&loops)] {
        assert!(read(&text, Path::new(""), &Overrides::default()).is_err());
    }
}

#[test]
fn deepest_allowed_steps_can_be_written() {
    let nested = |depth: usize| {
        let mut steps = vec![Step { line: 0, act: Act::WaitServer }];
        for _ in 0..depth {
            let name = String::new();
            steps = vec![Step { line: 0, act: Act::Transaction { name, steps } }];
        }
        let mut scenario = ok(&session("{ connect = \"/\" }"));
        scenario.sessions[0].steps.extend(steps);
        scenario.without_lines()
    };
    let deepest = nested(32);
    check(&deepest).unwrap();
    assert_eq!(ok(&write(&deepest)).without_lines(), deepest);
    let error = check(&nested(33)).unwrap_err().to_string();
    assert!(error.contains("too deep"), "{error}");
}

fn against(targets: &str) -> String {
    format!(
        "{targets}[[phase]]\nduration = \"1s\"\nrate = 1\n\
         [[session]]\nprotocol = \"phoenix\"\nsteps = [{{ connect = \"/\" }}]\n"
    )
}

#[test]
fn mistakes_in_servers_and_spread_are_reported_with_their_lines() {
    let target = "[[target]]\nurl = \"ws://127.0.0.1:1\"\n";
    let two = format!("{target}[[target]]\nurl = \"ws://127.0.0.1:2\"\n");
    for (word, spread) in super::tables::SPREADS {
        let scenario = ok(&against(&format!("spread = \"{word}\"\n{two}")));
        assert_eq!((scenario.spread, scenario.targets.len()), (spread, 2));
        assert_eq!(super::spread(word), Ok(spread));
    }
    assert_eq!(ok(&against(&two)).spread, Spread::RoundRobin);
    assert!(super::spread("Sticky").unwrap_err().contains("round-robin, sticky, elsewhere"));
    let word = against(&format!("spread = \"stiky\"\n{two}"));
    refused(&word, &[("line 1: spread: \"stiky\" is not allowed", "did you mean sticky?")]);
    let kind = against(&format!("spread = 3\n{two}"));
    refused(&kind, &[("line 1: spread: is of the wrong type", "elsewhere")]);
    refused(&against(""), &[("line 1: the top of the file: target is missing", "[target]")]);
    refused(&against("target = []\n"), &[("line 1: target: names no server", "[[target]]")]);
    // The same server for two users is two targets.
    let users = ["a:b@", "c:d@"].map(|user| target.replace("//", &format!("//{user}"))).concat();
    let credentials = ok(&against(&users)).targets.into_iter().map(|target| target.credentials);
    assert_eq!(credentials.collect::<Vec<_>>(), [Some("a:b".into()), Some("c:d".into())]);
    let twice = against(&format!("{two}{target}"));
    refused(&twice, &[("line 6: url: the same server as on line 2", "more weight")]);
    // A server with another name, or with TLS, is another server.
    let others = format!("{target}[[target]]\nurl = \"wss://127.0.0.1:1\"\n");
    assert_eq!(ok(&against(&others)).targets.len(), 2);
    let elsewhere = ok(&against(&format!("spread = \"elsewhere\"\n{two}")));
    let error = check(&elsewhere).unwrap_err().to_string();
    assert!(error.contains("spread = \"elsewhere\": no session reconnects"), "{error}");
}

#[test]
fn target_flags_replace_the_servers_of_the_scenario() {
    let flags = |targets: &[&str]| Overrides {
        targets: targets.iter().map(|url| (*url).to_owned()).collect(),
        map: vec![("chat".to_owned(), "127.0.0.9".to_owned())],
        ..Overrides::default()
    };
    // The text may name no target, or one that cannot be resolved.
    for text in [against(""), against("target = { url = \"ws://no-such-host.invalid\" }\n")] {
        let flags = flags(&["ws://127.0.0.1:1", "wss://chat:2"]);
        let scenario = read(&text, Path::new(""), &flags).unwrap().scenario;
        let found = scenario.targets.iter().map(|it| (it.address.to_string(), it.tls, it.weight));
        let found: Vec<_> = found.collect();
        let expected = [("127.0.0.1:1", false, 1.0), ("127.0.0.9:2", true, 1.0)];
        assert_eq!(found, expected.map(|(addr, tls, weight)| (addr.to_owned(), tls, weight)));
    }
    let twice = flags(&["ws://127.0.0.1:1", "ws://127.0.0.1:2", "ws://127.0.0.1:1"]);
    let error = read(&against(""), Path::new(""), &twice).unwrap_err().to_string();
    assert_eq!(error, "--target ws://127.0.0.1:1: named twice");
    let secret = flags(&["ws://u:secret@127.0.0.1:1", "ws://u:secret@127.0.0.1:1"]);
    let error = read(&against(""), Path::new(""), &secret).unwrap_err().to_string();
    assert_eq!(error, "--target ws://127.0.0.1:1: named twice");
    for wrong in ["127.0.0.1:1", "ftp://a", "ws://a/path", "ws://", "ws://a:x"] {
        assert!(super::target_url(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn rows_of_a_file_may_be_a_range_of_numbers() {
    let text =
        format!("{}[files]\nrooms = {{ from = 9, to = 11 }}\n", session("{ leave = \"a\" }"));
    assert_eq!(ok(&text).files[0].rows, ["9", "10", "11"]);
    let files = |rows: &str| format!("{}[files]\nrooms = {rows}\n", session("{ leave = \"a\" }"));
    refused(&files("{ from = 2, to = 1 }"), &[("line 12: rooms: goes from 2 down to 1", "")]);
    refused(&files("{ from = 0, to = 1000000 }"), &[("line 12: rooms: has more than", "1000000")]);
    refused(&files("{ from = 1 }"), &[("line 12: the rows of rooms: to is missing", "whole")]);
    refused(
        &files("{ from = 1, to = 2, step = 1 }"),
        &[("line 12: step: no such key in the rows of rooms", "from or to")],
    );
    refused(&files("7"), &[("line 12: rooms: is of the wrong type", "from = 1, to = 600")]);
}

proptest::proptest! {
    #[test]
    fn any_text_can_be_quoted(
        text in "([{}\"'\\\\\\[\\]=>#\\n\\r\\t\u{1}\u{7f}\u{85}a ]|\\PC){0,9}",
    ) {
        let mut scenario = ok(&session("{ send = \"a\" }"));
        let Act::Send(message) = &mut scenario.sessions[0].steps[0].act else { panic!() };
        message.data = Template::literal(&text);
        let row = text.clone().into();
        scenario.files = vec![DataFile { name: text.clone(), path: None, rows: vec![row] }];
        scenario.name = text;
        let again = ok(&write(&scenario));
        proptest::prop_assert_eq!(again.without_lines(), scenario.without_lines());
    }

    #[test]
    fn server_url_is_parsed_exactly_or_refused(
        tls: bool,
        host in "[a-z][a-z0-9.-]{0,20}",
        port in 1_u16..,
        text in "\\PC{0,40}",
    ) {
        let scheme = if tls { "wss" } else { "ws" };
        let map = vec![(host.clone(), "127.0.0.1".to_owned())];
        let targets = vec![format!("{scheme}://{host}:{port}")];
        let flags = Overrides { targets, map: map.clone(), ..Overrides::default() };
        let scenario = read(&against(""), Path::new(""), &flags).unwrap().scenario;
        let target = &scenario.targets[0];
        proptest::prop_assert_eq!((&target.host, target.tls), (&host, tls));
        proptest::prop_assert_eq!(target.address.port(), port);
        // Any other input: no panic, and an accepted URL can be written and read again.
        if super::target_url(&text).is_ok() {
            let flags = Overrides { targets: vec![text], map, ..Overrides::default() };
            if let Ok(loaded) = read(&against(""), Path::new(""), &flags) {
                let again = ok(&write(&loaded.scenario));
                proptest::prop_assert_eq!(again.targets, loaded.scenario.targets);
            }
        }
    }
}
