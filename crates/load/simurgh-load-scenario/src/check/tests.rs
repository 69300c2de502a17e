//! Tests of the checks: what is refused, and on which line.

use std::path::Path;

use super::*;
use crate::Overrides;

const HEAD: &str = "[target]\nurl = \"ws://127.0.0.1:1\"\n[[phase]]\nduration = \"1s\"\n\
                    rate = 1\n";

/// The mistakes of a text that can be parsed.
fn diagnostics(text: &str) -> String {
    let loaded = crate::toml::read(text, Path::new(""), &Overrides::default());
    match check(&loaded.unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}")).scenario) {
        Ok(()) => String::new(),
        Err(diagnostics) => diagnostics.to_string(),
    }
}

#[track_caller]
fn in_steps(protocol: &str, steps: &str, word: &str) {
    let text = format!("{HEAD}[[session]]\nprotocol = \"{protocol}\"\nsteps = [\n{steps}\n]\n");
    let found = diagnostics(&text);
    match word {
        "" => assert_eq!(found, "", "{steps}"),
        word => {
            assert!(found.contains(word), "{steps}: {word:?} is not in {found:?}");
            assert!(found.starts_with("line 9: session 1: "), "{found}");
        }
    }
}

#[test]
fn impossible_steps_are_refused() {
    for (protocol, steps, word) in [
        ("phoenix", r#"{ connect = "/" }, { join = "t" }, { push = "e" }"#, ""),
        ("phoenix", r#"{ join = "t" }"#, "needs a connection"),
        ("phoenix", r#"{ connect = "/" }, { push = "e", topic = "t" }"#, "nothing was joined"),
        ("phoenix", r#"{ connect = "/" }, { push = "heartbeat", topic = "phoenix" }"#, ""),
        ("raw", r#"{ connect = "/" }, { join = "t" }"#, "need a protocol with topics"),
        ("pusher", r#"{ connect = "/" }, { join = "t" }, { push = "e" }"#, "pusher has no reply"),
        ("graphql-ws", r#"{ connect = "/" }, { join = "t" }"#, "add reply = false"),
        ("socket.io", r#"{ connect = "/" }, { join = "t", presence = "u" }"#, "do not work"),
        ("actioncable", r#"{ connect = "/", payload = { a = 1 } }"#, "connect has no payload"),
        ("raw", r#"{ send = "x" }"#, "needs a connection"),
        ("raw", r#"{ receive = "1s" }"#, "needs a connection"),
        ("raw", r#"{ connect = "/" }, { close = true }, { send = "x" }"#, "needs a connection"),
        ("raw", r#"{ get = "/", headers = { "x y" = "1" } }"#, "\"x y\" has characters"),
        ("raw", r#"{ get = "/", cookies = { "a;b" = "1" } }"#, "\"a;b\" has characters"),
        ("raw", r#"{ connect = "/", headers = { "a:" = "1" } }"#, "\"a:\" has characters"),
        ("raw", r#"{ request = "/", method = "GE T" }"#, "\"GE T\" has characters"),
        ("raw", r#"{ connect = "/" }, { get = "/" }"#, "the socket to be closed first"),
        ("raw", r#"{ get = "/" }, { connect = "/" }, { close = true }, { get = "/" }"#, ""),
        (
            "raw",
            r#"{ connect = "/" }, { loop = 1, steps = [{ close = true }] }, { get = "/" }"#,
            "",
        ),
        ("tsung", r#"{ send = "x" }"#, ""),
        ("raw", r#"{ get = "/" }"#, ""),
        ("raw", r#"{ get = "/", check = "(" }"#, "is not a supported regular expression"),
        ("raw", r#"{ get = "/", capture = { a = { regex = "(?=a)" } } }"#, "look-around"),
        ("raw", r#"{ get = "/", capture = { a = "$[" } }"#, "session 1"),
        (
            "raw",
            r#"{ connect = "/" }, { wait = { regex = "[" } }"#,
            "is not a supported regular expression",
        ),
        (
            "raw",
            r#"{ connect = "/" }, { wait = { regex = "({{user_id}}" } }"#,
            "is not a supported regular expression",
        ),
        ("raw", r#"{ connect = "/" }, { wait = { regex = "a{{user_id}}" } }"#, ""),
        ("raw", r#"{ connect = "/" }, { wait = { event = "e" } }"#, "events are Phoenix's"),
        (
            "raw",
            r#"{ get = "/", capture = { a = { regex = "a{{user_id}}(.)" } } }"#,
            "{{user_id}} is not replaced",
        ),
        (
            "raw",
            r#"{ each = "e", in = "e", exclude = "{{e}}", steps = [] }"#,
            "{{e}} is not replaced",
        ),
        ("raw", r#"{ loop = 3, from = 5, steps = [] }"#, "leads from 5 to 3"),
        ("raw", r#"{ loop = 3, from = 5, at_least_once = true, steps = [] }"#, ""),
        ("raw", r#"{ loop = 3, step = 0, steps = [] }"#, "never ends"),
        ("raw", r#"{ loop = "forever", steps = [{ mark = "a" }] }"#, "takes time"),
        ("raw", r#"{ loop = "forever", steps = [{ mark = "a" }] }"#, "all of a core"),
        ("raw", r#"{ loop = "forever", every = "1s", steps = [{ mark = "a" }] }"#, ""),
        (
            "raw",
            r#"{ loop = "forever", steps = [{ transaction = "a", steps = [{ get = "/" }] }] }"#,
            "",
        ),
        ("raw", r#"{ set = [], value = "x" }"#, "sets no variable"),
    ] {
        in_steps(protocol, steps, word);
    }
}

#[test]
fn impossible_drop_and_resume_settings_are_refused() {
    let session = |keys: &str, steps: &str| {
        format!(
            "{HEAD}[[session]]\nprotocol = \"phoenix\"\n{keys}\n\
             steps = [{{ connect = \"/\" }}, {steps}]\n"
        )
    };
    let cut = |times: &str| format!("drop = {{ {times}, how = \"both\" }}");
    let (good, join) = (cut("every = \"9s\", for = \"1s\""), "{ join = \"t\" }");
    for (keys, steps, word) in [
        (good.clone(), join, ""),
        (good.clone() + "\nresume = true", r#"{ join = "t", payload = { a = 1 } }"#, ""),
        (cut("every = \"2s\", for = \"2s\""), join, "make `for` shorter than `every`"),
        (cut("every = \"2s\", for = \"9s\""), join, "would begin before this one ends"),
        (good.clone() + "\ntransport = \"longpoll\"", join, "drop works on WebSockets only"),
        (good.clone() + "\nreconnect = { rejoin = false }", join, "drop and resume need rejoin"),
        (
            "resume = true\nreconnect = { rejoin = false }".into(),
            join,
            "drop and resume need rejoin",
        ),
        ("resume = true".into(), r#"{ think = "1s" }"#, "resume needs a channel"),
        (
            "resume = true".into(),
            r#"{ join = "t", payload = "[1]" }"#,
            "line 9: session 1: a join that resumes has an object",
        ),
        (
            "resume = true".into(),
            r#"{ join = "t", payload = "x", binary = true }"#,
            "has an object as its payload",
        ),
    ] {
        let found = diagnostics(&session(&keys, steps));
        assert!(found.contains(word), "{keys}: {word:?} is not in {found:?}");
        assert_eq!(found.is_empty(), word.is_empty(), "{found}");
        assert!(!found.contains('\n'), "one mistake, not several: {found}");
    }
}

#[test]
fn impossible_answer_and_heartbeat_settings_are_refused() {
    let own = "heartbeat = { every = \"1s\", send = \"2\" }";
    let pong = "answer = { when = \"2\", send = \"3\" }";
    let connect = "{ connect = \"/\" }";
    let longpoll = format!("transport = \"longpoll\"\n{pong}");
    for (protocol, keys, steps, word) in [
        ("raw", own, connect, ""),
        ("raw", pong, connect, ""),
        ("tsung", pong, "{ send = \"a\" }", ""),
        ("phoenix", pong, connect, ""),
        ("phoenix", "answer = { when = { event = \"e\" }, send = \"3\" }", connect, ""),
        ("raw", own, "{ get = \"/\" }", "no connection for its `answer` or `heartbeat`"),
        ("raw", pong, "{ get = \"/\" }", "no connection for its `answer` or `heartbeat`"),
        ("raw", "heartbeat = \"1s\"", connect, "a heartbeat without `send` is Phoenix's"),
        ("phoenix", own, connect, "the protocol has a heartbeat of its own"),
        ("phoenix", &longpoll, connect, "`answer` is for frames of WebSockets"),
        (
            "raw",
            "answer = { when = { regex = \"[\" }, send = \"3\" }",
            connect,
            "supported regular expression",
        ),
        (
            "raw",
            "answer = { when = { json = \"[\", is = \"1\" }, send = \"3\" }",
            connect,
            "JSON path",
        ),
        ("raw", "answer = { when = { event = \"e\" }, send = \"3\" }", connect, "are Phoenix's"),
    ] {
        let found = diagnostics(&format!(
            "{HEAD}[[session]]\nprotocol = \"{protocol}\"\n{keys}\nsteps = [{steps}]\n"
        ));
        assert!(found.contains(word), "{keys}: {word:?} is not in {found:?}");
        assert_eq!(found.is_empty(), word.is_empty(), "{found}");
        assert!(!found.contains('\n'), "one mistake, not several: {found}");
    }
}

#[test]
fn inconsistent_scenario_is_refused() {
    let steps = "[[session]]\nsteps = [{ get = \"/\" }]\n";
    assert_eq!(diagnostics(&format!("{HEAD}{steps}")), "");
    for (change, to, word) in [
        ("rate = 1", "rate = 1e9", "has a rate of"),
        ("rate = 1", "users = 0", "has no users"),
        ("duration = \"1s\"", "duration = \"0s\"", "has no duration"),
        ("[[phase]]\nduration = \"1s\"\nrate = 1\n", "", "no users ever arrive"),
        ("steps = [{ get = \"/\" }]", "steps = []", "has no steps"),
        ("[[session]]", "[[session]]\nweight = 0", "phase 1: the sessions' weights"),
        ("[[session]]", "[[session]]\nheartbeat = \"1s\"", "without `send` is Phoenix's"),
        ("[[session]]", "[[session]]\ntransport = \"longpoll\"", "long polling is Phoenix's"),
        (
            "[[session]]",
            "[[session]]\nreconnect = { min = \"9s\", max = \"1s\" }",
            "min is longer than max",
        ),
        ("[[session]]", "[[session]]\nresume = true", "resume needs the Phoenix protocol"),
        (
            "[[session]]",
            "[[session]]\nprotocol = \"phoenix\"\nresume = true",
            "resume needs a channel",
        ),
        (
            "[[session]]",
            "[[session]]\ndrop = { every = \"9s\", for = \"1s\", how = \"rst\" }",
            "drop needs a connection",
        ),
        ("[target]", "[target]\nweight = 0", "servers do not add up"),
        ("[target]", "[sources]\nports = [9, 5]\n[target]", "the ports 9 to 5"),
        ("[target]", "[timeouts]\nreply = \"0s\"\n[target]", "a timeout is 0"),
        ("[target]", "[[agent]]\naddress = \"a\"\ntoken = \"t\"\n[target]", "has no port"),
        (
            "[target]",
            "[tls]\nroots = \"-----BEGIN CERTIFICATE-----\"\n[target]",
            "the PEM text of a root",
        ),
    ] {
        let text = format!("{HEAD}{steps}");
        assert!(text.contains(change), "{change}");
        let found = diagnostics(&text.replace(change, to));
        assert!(found.contains(word), "{to}: {word:?} is not in {found:?}");
        assert!(!found.contains('\n'), "one mistake, not several: {found}");
    }
}
