//! Holds the table of the reference, the parser and docs/SCENARIOS.md together: each example is
//! read, each section has exactly the keys that the parser asks for there, and nothing is missing.

use std::collections::{BTreeMap, BTreeSet};

use super::{read, write};
use crate::toml::reference::{TABLE, reference, row};
use crate::toml::{answer, tables, template, verbs};
use crate::*;

/// No key is like this one.
const UNKNOWN: &str = "zzzzzzzzzz = 1";

/// Steps before an example: a connection, which may be closed again for HTTP requests, a topic, and
/// the variables of all examples.
const BEFORE: &str = "{ connect = \"/\" }, { join = \"rooms:lobby\" },\n\
                      { loop = { var = \"pause\" }, steps = [{ close = true }] },\n\
                      { set = [\"room\", \"id\", \"ids\", \"pause\", \"text\"], target = true },\n";
const TARGET: (&str, &str) = ("target", "target = { url = \"ws://127.0.0.1:4000\" }\n");
const PHASE: (&str, &str) =
    ("phase", "phase = [{ name = \"cuts\", duration = \"1s\", rate = 1 }]\n");
const SESSION: (&str, &str) = (
    "session",
    "session = [{ steps = [{ get = \"/\" }] }, { name = \"talker\", steps = [{ get = \"/\" }] }]\n",
);

struct Section {
    title: &'static str,
    prose: String,
    rows: Vec<[&'static str; 5]>,
}

fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in TABLE.lines() {
        let section = sections.last_mut();
        match (row(line), section) {
            (Some(row), Some(section)) => section.rows.push(row),
            (None, section) => match (line.strip_prefix("## "), section) {
                (Some(title), _) => {
                    sections.push(Section { title, prose: String::new(), rows: Vec::new() });
                }
                (None, Some(section)) => section.prose += line,
                (None, None) => {}
            },
            (Some(row), None) => panic!("{row:?} stands in no section"),
        }
    }
    sections.retain(|section| !section.rows.is_empty());
    sections
}

/// A scenario with this text at the top of the file; what it has itself is left out.
fn top(text: &str) -> String {
    let (sets, tables) = text.split_at(text.find("[[").unwrap_or(text.len()));
    let has = |key: &str| {
        let sets = sets.lines().any(|line| line.starts_with(&format!("{key} = ")));
        sets || tables.contains(&format!("[[{key}]]"))
    };
    let missing = [TARGET, PHASE, SESSION].into_iter().filter(|(key, _)| !has(key));
    format!("{sets}\n{}{tables}", missing.map(|(_, line)| line).collect::<String>())
}

/// The base of a table, less the key itself and what excludes it.
fn with(base: &[&str], key: &str, text: &str, between: &str) -> String {
    let excluded = match key {
        "users" => "rate",
        key => key,
    };
    let base = base.iter().filter(|line| !line.starts_with(&format!("{excluded} = ")));
    base.copied().chain([text]).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(between)
}

/// A scenario with a text in the place that a section is about.
fn place(title: &str, key: &str, text: &str) -> String {
    let step = |step: &str| {
        let files = "files = { accounts = [\"ann;secret\"] }\n";
        let steps = format!("{BEFORE}{step}");
        top(&format!("{files}[[session]]\nprotocol = \"phoenix\"\nsteps = [\n{steps}\n]\n"))
    };
    let line = |base: &[&str]| with(base, key, text, "\n");
    let inline = |base: &[&str]| with(base, key, text, ", ");
    let session = |keys: String| {
        let raw = "[[session]]\nsteps = [{ connect = \"/\" }]\n";
        top(&format!("{raw}{keys}\n"))
    };
    match title {
        "The top of the file" => top(text),
        "`[target]`" => {
            let table = format!("[[target]]\n{}\n", line(&["url = \"ws://127.0.0.1:4000\""]));
            let map = "ws://chat.example.com";
            top(&table.replace("wss://chat.example.com", map).replace(map, "ws://127.0.0.1:1"))
        }
        "`[[phase]]`" => top(&format!("[[phase]]\n{}\n", line(&["duration = \"1s\"", "rate = 1"]))),
        "`[[appointment]]`" => {
            top(&format!("[[appointment]]\n{}\n", line(&["at = \"1s\"", "session = \"talker\""])))
        }
        "`[[session]]`" => {
            let base = ["protocol = \"raw\"", "steps = [{ connect = \"/\" }]"];
            top(&format!("[[session]]\n{}\n", line(&base)))
        }
        "`heartbeat`" => {
            session(format!("heartbeat = {{ {} }}", inline(&["every = \"1s\"", "send = \"2\""])))
        }
        "`answer`" => {
            session(format!("answer = [{{ {} }}]", inline(&["when = \"2\"", "send = \"3\""])))
        }
        "`reconnect`" => session(format!("reconnect = {{ {text} }}")),
        "`drop`" => {
            let base = ["every = \"9s\"", "for = \"1s\"", "how = \"both\""];
            session(format!("drop = {{ {} }}", inline(&base)))
        }
        "`auth`" => {
            let base = ["user = \"a\"", "password = \"b\""];
            step(&format!("{{ get = \"/\", auth = {{ {} }} }}", inline(&base)))
        }
        "Matches" => step(&format!("{{ wait = {text} }}")),
        "Captures" => step(&format!("{{ get = \"/\", capture = {{ room = {text} }} }}")),
        "Checks" => step(&format!("{{ get = \"/\", check = {text} }}")),
        "Actions" => {
            step(&format!("{{ get = \"/\", check = {{ pattern = \"a\", do = {text} }} }}"))
        }
        "Templates" => {
            let quoted = template::quoted(text);
            step(&format!("{{ send = {quoted} }}"))
        }
        "`[pass]`" => top(&format!("pass = {{ {text} }}\n")),
        "`[files]`" => top(&format!("files = {{ {text} }}\n")),
        "`[[agent]]`" => {
            let base = ["address = \"10.0.0.3:4100\"", "token = \"$T\""];
            top(&format!("[[agent]]\n{}\n", line(&base)))
        }
        "`[timeouts]`" | "`[sources]`" | "`[tls]`" | "`[tsung]`" => {
            let name = title.trim_matches(['`', '[', ']']);
            top(&format!("{name} = {{ {text} }}\n"))
        }
        _ => step(text),
    }
}

/// Places within a step, with the unknown key.
const INNER: [(&str, &str); 3] = [
    ("`think`", "{ think = { mean = \"1s\", zzzzzzzzzz = 1 } }"),
    ("A number in a variable", "{ loop = { var = \"pause\", zzzzzzzzzz = 1 }, steps = [] }"),
    ("`[files]`", "rooms = { from = 1, to = 2, zzzzzzzzzz = 1 }"),
];

/// The keys that the parser asks for where it refuses the unknown one.
fn known(text: &str) -> BTreeSet<String> {
    let error = read(text, std::path::Path::new(""), &Overrides::default()).unwrap_err();
    let of_key = error.0.iter().find(|one| one.what.starts_with("zzzzzzzzzz: no such key in"));
    let one = of_key.unwrap_or_else(|| panic!("the unknown key is accepted: {error}\n{text}"));
    let keys = one.help.strip_prefix("it takes ").unwrap_or_else(|| panic!("{one}"));
    keys.replace(" or ", ", ").split(", ").map(str::to_owned).collect()
}

fn keys(section: &Section) -> BTreeSet<String> {
    section.rows.iter().map(|row| row[0].to_owned()).collect()
}

fn set(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn scenarios_page_matches_the_reference_table() {
    let page = include_str!("../../../../../../docs/SCENARIOS.md");
    let how = "make it with `simurgh load reference > docs/SCENARIOS.md`";
    assert!(page == reference(), "docs/SCENARIOS.md is not what the table says: {how}");
}

#[test]
fn every_reference_example_is_parsed_checked_explained_and_written() {
    let machine = Machine { workers: 6, descriptors: 20_064, memory_bytes: None };
    let dir = std::env::temp_dir().join(format!("simurgh-reference-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["ca.pem", "client.pem"] {
        std::fs::write(dir.join(name), "-----BEGIN CERTIFICATE-----\n").unwrap();
    }
    for Section { title, rows, .. } in sections() {
        for [key, takes, default, meaning, example] in rows {
            for cell in [key, takes, default, meaning, example] {
                assert!(!cell.is_empty() && !cell.contains(['|', '\n']), "{title} {key}");
            }
            let text = place(title, key, example);
            let loaded = read(&text, &dir, &Overrides::default());
            let loaded = loaded.unwrap_or_else(|wrong| panic!("{title} {key}: {wrong}\n{text}"));
            let word = key.split(' ').next().unwrap();
            assert!(
                ["NAME", "NAME[INDEX]", "FIGURE", "FILE", "\"TEXT\""].contains(&word)
                    || example.contains(word),
                "{title} {key}: not in its example"
            );
            let scenario = loaded.scenario;
            // Phoenix has no such payload.
            let is_of_others = title.starts_with("`connect`") && key == "payload";
            let is_complete = !matches!(title, "`[tls]`" | "`[[session]]`") && !is_of_others;
            if is_complete && let Err(wrong) = check(&scenario) {
                panic!("{title} {key}: {wrong}\n{text}");
            }
            assert!(explain(&scenario, &machine).contains("\nneeds at the peak"), "{title} {key}");
            let written = write(&scenario);
            let again = read(&written, &dir, &Overrides::default());
            let again = again.unwrap_or_else(|wrong| panic!("{title} {key}: {wrong}\n{written}"));
            assert_eq!(again.scenario.without_lines(), scenario.without_lines(), "{written}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn every_reference_section_lists_exactly_the_keys_of_the_parser() {
    let answer_keys = set(&["timeout", "capture", "check"]);
    let mut verbs_seen = BTreeSet::new();
    for section in sections() {
        let title = section.title;
        let mut asked = BTreeSet::new();
        for [key, .., example] in &section.rows {
            let text = match example.strip_suffix(" }") {
                Some(table) if example.starts_with('{') => format!("{table}, {UNKNOWN} }}"),
                _ => UNKNOWN.to_owned(),
            };
            if !["Templates", "`[pass]`", "`[files]`", "A number in a variable"].contains(&title) {
                asked.extend(known(&place(title, key, &text)));
            }
            if verbs::VERBS.iter().any(|(verb, _)| verb == key) && text != UNKNOWN {
                verbs_seen.insert(*key);
            }
        }
        let inner = INNER.iter().filter(|(one, _)| *one == title);
        inner.for_each(|(_, text)| asked.extend(known(&place(title, "", text))));
        match title {
            "Keys of every step" | "Keys of steps with an answer" | "Templates" | "`[pass]`" => {
                continue;
            }
            "`[files]`" => asked.extend(set(&["FILE"])),
            _ => {}
        }
        if asked.remove("tag") && section.prose.contains("Has an answer") {
            assert!(asked.is_superset(&answer_keys), "{title}: {asked:?}");
            asked.retain(|key| !answer_keys.contains(key));
        }
        assert_eq!(asked, keys(&section), "{title}: what the parser asks for, and the table");
    }
    assert_eq!(verbs_seen, BTreeSet::from(verbs::VERBS.map(|(verb, _)| verb)));
    let of = |title: &str| keys(sections().iter().find(|one| one.title == title).unwrap());
    assert_eq!(of("Keys of every step"), set(&["tag"]));
    assert_eq!(of("Keys of steps with an answer"), answer_keys);
    let words: BTreeSet<_> = template::WORDS.iter().map(|(usage, _)| (*usage).to_owned()).collect();
    let own = set(&["NAME", "NAME[INDEX]", "\"TEXT\""]);
    assert_eq!(of("Templates").difference(&own).cloned().collect::<BTreeSet<_>>(), words);
}

/// So that a table which no section is about is found, too.
#[test]
fn every_key_in_the_source_is_in_the_reference_table() {
    let sources = [
        include_str!("../answer.rs"),
        include_str!("../read.rs"),
        include_str!("../steps.rs"),
        include_str!("../tables.rs"),
        include_str!("../target.rs"),
        include_str!("../verbs.rs"),
    ];
    let reads = "get|need|needed|all|text|bool|word|key|optional|list|named|has|section";
    let call = format!(r#"(?:\.(?:{reads})|\bone)\(\s*(?:&?\w+(?:\.\w+)?, )?"([a-z_]+)""#);
    let call = regex::Regex::new(&call).unwrap();
    let table: BTreeSet<_> = sections().iter().flat_map(keys).collect();
    let mut found = BTreeSet::new();
    for source in sources {
        found.extend(call.captures_iter(source).map(|call| call[1].to_owned()));
    }
    assert!(found.len() > 90, "{} keys", found.len());
    assert!(found.remove("xpath"), "it is only read to be refused");
    let missing: Vec<_> = found.difference(&table).collect();
    assert!(missing.is_empty(), "keys that the parser reads and the table lacks: {missing:?}");
}

#[test]
fn every_keyword_value_is_in_the_reference_table() {
    let names = |words: BTreeMap<&'static str, ()>| words.into_keys();
    let words = BTreeMap::from_iter(
        (tables::PROTOCOLS.iter().map(|one| one.0))
            .chain(tables::TRANSPORTS.iter().map(|one| one.0))
            .chain(tables::CUTS.iter().map(|one| one.0))
            .chain(tables::SPREADS.iter().map(|one| one.0))
            .chain(tables::DUMPS.iter().map(|one| one.0))
            .chain(answer::ACTIONS.iter().map(|one| one.0))
            .chain(answer::PRESENCE_LISTS.iter().map(|one| one.0))
            .chain([tables::EXACT, "even", "poisson", "missing", "found", "user", "run"])
            .map(|word| (word, ())),
    );
    for word in names(words) {
        assert!(TABLE.contains(&format!("`\"{word}\"`")), "{word}");
    }
}
