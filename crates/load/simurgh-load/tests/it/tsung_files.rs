//! Whole files: those of `tests/tsung`, and if available the originals and Tsung's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use simurgh_load::scenario::{
    Act, Arrivals, Bound, Compare, Diagnostic, Diagnostics, Dialect, Dump, For, ForEach, Loaded,
    Overrides, Part, Repeat, Reply, Step, Think, check,
};
use simurgh_load::toml;
use simurgh_load::tsung::read;

use crate::support::tsung::lines;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tsung")
}

/// The flags of a user without the authors' hosts.
fn overrides(strict: bool) -> Overrides {
    let hosts = ["server_ip_address", "KEMAL_HOST_IP", "myserver"];
    let map = hosts.map(|host| (host.to_owned(), "127.0.0.1".to_owned())).to_vec();
    Overrides { map, local: true, strict, ..Overrides::default() }
}

fn read_file(path: &Path, strict: bool) -> Result<Loaded, Diagnostics> {
    let text = fs::read_to_string(path).unwrap();
    read(&text, path.parent().unwrap(), &overrides(strict))
}

fn fixture(name: &str) -> Loaded {
    let read = read_file(&fixtures().join(name), false);
    read.unwrap_or_else(|faults| panic!("{name}: {faults}"))
}

/// File, warnings except those of `is_common`, and the errors of `strict`.
const VERDICTS: &[(&str, &[&str], &[&str])] = &[
    (
        "bad-ack.xml",
        &[],
        &["line 29: `ack` of <websocket> cannot be \"local\" (one of: no_ack, parse)"],
    ),
    (
        "bad-lead.xml",
        &["line 12: <lead> is not an element of Tsung; <load> is meant (repaired)"],
        &["line 16: not well-formed: </load> found where <lead> of line 12 should be closed"],
    ),
    (
        "bad-nounit.xml",
        &["line 14: <users> lacks its attribute `unit` (seconds are taken; Tsung refuses it)"],
        &["line 14: <users> lacks its attribute `unit` (one of: hour, minute, second)"],
    ),
    ("dialect-full.xml", &[HIBERNATE, BIDI], &[]),
    ("dialect.xml", &[HIBERNATE, BIDI], &[]),
    ("kemal.xml", &[], &[]),
    ("no-doctype.xml", &[NO_DOCTYPE], &[NO_DOCTYPE]),
    ("phoenix.xml", &[], &[]),
    ("reconnect.xml", &[], &[]),
    ("sep.xml", &[], &[]),
    ("type-websocket.xml", &[], &[]),
];

const HIBERNATE: &str = "line 14: the option `hibernate` is ignored (an idle user needs no memory \
    that could be given back)";
const BIDI: &str = "line 56: `bidi` of <change_type> is ignored (what the server sends is always \
    read, and pings are answered)";
const NO_DOCTYPE: &str = "line 3: there is no DOCTYPE, and Tsung would not read the file (put \
    <!DOCTYPE tsung SYSTEM \"/usr/share/tsung/tsung-1.0.dtd\"> before it)";

/// Nearly every file has these.
fn is_common(warning: &str) -> bool {
    ["`loglevel` of <tsung>", "of <client> are ignored", "the DOCTYPE names \"/user/share"]
        .iter()
        .any(|common| warning.contains(common))
}

#[test]
fn every_tsung_file_has_its_expected_warnings() {
    for (name, warned, strict) in VERDICTS {
        let loaded = fixture(name);
        assert_eq!(check(&loaded.scenario), Ok(()), "{name}");
        let mut warnings = lines(&loaded.warnings);
        assert!(warnings.iter().any(|w| w.contains("`loglevel` of <tsung> is ignored")), "{name}");
        warnings.retain(|warning| !is_common(warning));
        assert_eq!(warnings, *warned, "{name}");
        let found = match read_file(&fixtures().join(name), true) {
            Ok(_) => Vec::new(),
            Err(faults) => lines(&faults.0),
        };
        assert_eq!(found, *strict, "{name} --strict");
    }
    // An unknown attribute is never accepted.
    for strict in [false, true] {
        let faults = read_file(&fixtures().join("bad-attr.xml"), strict).unwrap_err();
        let wanted = "line 25: <websocket> has no attribute `bogus` (it has: type, ack, frame, \
                      origin, subprotocols, path)";
        assert_eq!(lines(&faults.0), [wanted]);
    }
    let files = fs::read_dir(fixtures()).unwrap();
    let files = files.filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "xml")
    });
    assert_eq!(files.count(), VERDICTS.len() + 1, "none is forgotten");
}

#[test]
fn original_tsung_files_are_parsed_like_the_fixtures() {
    let originals = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/tsung");
    let Ok(files) = fs::read_dir(&originals) else {
        println!("skipped: the originals are not at hand");
        return;
    };
    let mut count = 0;
    for entry in files {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        count += 1;
        for strict in [false, true] {
            let ours = fixtures().join(path.file_name().unwrap());
            let (original, ours) = (read_file(&path, strict), read_file(&ours, strict));
            assert_eq!(original, ours, "{} strict={strict}", path.display());
        }
    }
    assert!(count > 0);
}

#[test]
fn lobby_of_the_phoenix_benchmark_is_parsed() {
    let Loaded { scenario, .. } = fixture("phoenix.xml");
    let [target] = scenario.targets.as_slice() else { panic!("one target") };
    assert_eq!((target.host.as_str(), target.tls), ("127.0.0.1", false));
    assert_eq!(target.address.to_string(), "127.0.0.1:4000");
    assert_eq!(scenario.sources.ports, Some((1025, 65535)));
    assert!(scenario.sources.addresses.is_empty());
    assert_eq!(scenario.seed, 1);
    assert_eq!(scenario.timeouts.reply, Duration::from_secs(600));
    assert_eq!(scenario.timeouts.retries, 3);
    let [phase] = scenario.load.phases.as_slice() else { panic!("one phase") };
    assert_eq!((phase.name.as_str(), phase.duration), ("1", Duration::from_secs(100)));
    assert_eq!(phase.arrivals, Arrivals::Open { from: 1000.0, to: 1000.0, poisson: true });
    assert_eq!((phase.users_max, scenario.load.duration), (Some(100_000), None));
    let [session] = scenario.sessions.as_slice() else { panic!("one session") };
    assert_eq!((session.dialect, session.weight), (Dialect::Tsung, 100.0));
    let [connect, join, stay] = session.steps.as_slice() else { panic!("three steps") };
    assert_eq!((connect.line, join.line, stay.line), (27, 31, 35));
    let Act::Connect(connect) = &connect.act else { panic!("a connect") };
    assert_eq!(connect.path.parts, [literal("/socket/websocket")]);
    assert_eq!((&connect.origin, connect.headers.len()), (&None, 0));
    let Act::Send(join) = &join.act else { panic!("a message") };
    let before = "{\"topic\":\"rooms:lobby\", \"event\":\"phx_join\", \"payload\":\n{\"user\":\"";
    let id = Part::Value(simurgh_load::scenario::Generated::UserId);
    assert_eq!(join.data.parts, [literal(before), id, literal("\"}, \"ref\":\"1\"}")]);
    assert!(join.binary, "Tsung's default");
    assert_eq!(join.reply, Reply::First);
    let Act::For(stay) = &stay.act else { panic!("a loop") };
    assert_eq!((stay.from, stay.to, stay.step), (Bound::Number(1), Bound::Number(1000), 1));
    assert!(stay.at_least_once);
    let [think] = stay.steps.as_slice() else { panic!("one step") };
    assert_eq!(think.act, Act::Think(Think::Constant(Duration::from_secs(30))));
}

fn literal(text: &str) -> Part {
    Part::Literal(text.as_bytes().to_vec())
}

#[test]
fn unknown_hosts_of_a_tsung_file_are_reported_with_advice() {
    let path = fixtures().join("phoenix.xml");
    let text = fs::read_to_string(path).unwrap();
    let parts = read(&text, &fixtures(), &Overrides::default()).unwrap_err();
    let found = lines(&parts.0);
    let [first, second, third, server] = found.as_slice() else { panic!("{found:?}") };
    assert!(
        first.starts_with("line 5: the client phoenix1 is another host (add `--local`"),
        "{first}"
    );
    assert!(second.starts_with("line 6: the client phoenix2"), "{second}");
    assert!(third.starts_with("line 7: the client phoenix3"), "{third}");
    let wanted = "line 11: the host server_ip_address is not known (give its address with `--map \
                  server_ip_address=ADDRESS`)";
    assert_eq!(server, wanted);
}

#[test]
fn tsung_dialect_is_converted_to_a_scenario() {
    let Loaded { scenario, .. } = fixture("dialect.xml");
    assert_eq!(scenario.seed, 42);
    let run = scenario.tsung.as_ref().unwrap();
    assert_eq!((run.dump, run.full_stats), (Dump::Protocol, false));
    let run = fixture("dialect-full.xml").scenario.tsung.unwrap();
    assert_eq!((run.dump, run.full_stats), (Dump::Off, true));
    let weights: Vec<f64> = scenario.targets.iter().map(|target| target.weight).collect();
    assert_eq!(weights, [3.0, 1.0]);
    assert_eq!(scenario.sources.addresses.len(), 2);
    assert_eq!(scenario.sources.receive_buffer_bytes, Some(8192));
    assert_eq!(scenario.load.duration, Some(Duration::from_secs(60)));
    let [first, second] = scenario.load.phases.as_slice() else { panic!("two phases") };
    assert_eq!(first.arrivals, Arrivals::Open { from: 5.0, to: 5.0, poisson: true });
    assert_eq!(second.duration, Duration::from_secs(3));
    assert_eq!(second.weights, [Some(1.0), Some(0.0), Some(0.0), Some(0.0), Some(0.0)]);
    let at: Vec<_> =
        scenario.load.appointments.iter().map(|a| (a.at.as_secs(), a.session)).collect();
    assert_eq!(at, [(3, 3), (3, 4)]);
    let names: Vec<&str> = scenario.user_agents.iter().map(|agent| agent.0.as_str()).collect();
    assert_eq!(names, ["UA-A/1", "UA-B/2"]);
    assert_eq!(scenario.timeouts.connect, Duration::from_secs(3));
    assert_eq!(scenario.timeouts.reply, Duration::from_secs(5));
    assert_eq!(scenario.timeouts.retries, 2);
    assert_eq!(scenario.timeouts.retry_wait, Duration::from_millis(50));
    let [file] = scenario.files.as_slice() else { panic!("one file") };
    assert_eq!((file.name.as_str(), file.path.as_deref()), ("users", Some("users.csv")));
    assert_eq!(file.rows, ["alice;pw1", "bob;pw2", "carol;pw3"]);
    assert_eq!(scenario.sessions[4].read_rate_max, Some(64 * 1024));
    let compare = scenario.sessions[0].steps.iter().find_map(|step| match &step.act {
        Act::If { condition, .. } => Some(condition.compare),
        _ => None,
    });
    assert_eq!(compare, Some(Compare::Gte), "not Tsung's own reading of gte");
}

#[test]
fn server_of_type_websocket_has_one_handshake() {
    let mut two = [fixture("type-websocket.xml"), fixture("sep.xml")];
    let steps = two.each_mut().map(|loaded| loaded.scenario.sessions.remove(0).steps);
    assert!(matches!(steps[0][0].act, Act::Connect(_)));
    assert_eq!(steps[0].len(), 3, "no second handshake");
    assert_eq!(steps[0][..2], steps[1][..2], "as with the type tcp");
}

/// `simurgh load convert` prints the same scenario, except for the lines.
#[test]
fn converted_tsung_scenario_is_equal_to_the_original() {
    for (name, ..) in VERDICTS {
        let mut scenario = fixture(name).scenario;
        let text = toml::write(&scenario);
        let read = toml::read(&text, &fixtures(), &overrides(false));
        let mut again = read.unwrap_or_else(|faults| panic!("{name}: {faults}\n{text}")).scenario;
        for session in scenario.sessions.iter_mut().chain(&mut again.sessions) {
            forget_lines(&mut session.steps);
        }
        assert_eq!(again, scenario, "{name}");
    }
}

fn forget_lines(steps: &mut [Step]) {
    for step in steps {
        step.line = 0;
        match &mut step.act {
            Act::For(For { steps, .. })
            | Act::ForEach(ForEach { steps, .. })
            | Act::Repeat(Repeat { steps, .. })
            | Act::If { steps, .. }
            | Act::Transaction { steps, .. } => forget_lines(steps),
            _ => {}
        }
    }
}

/// All mistakes of a hand-copied file at once.
#[test]
fn hand_copied_tsung_file_is_repaired_and_parsed() {
    let slide = "\n<?xml version=\"1.0\"?>\n<!DOCTYPE tsung SYSTEM \"tsung.dtd\">\n\
        <tsung loglevel=“info” version=“1.0”>\n<clients>\n<client host=\"phoenix1\"/>\n/clients>\n\
        <servers><server host='127.0.0.1' port='4000' type='websocket'/></servers>\n\
        <lead duration=\"1\" unit=\"hour\">\n<arrivalphase phase=\"1\" duration=\"1\">\n\
        <users arrivalrate=\"1\"/></arrivalphase>\n</load>\n<sessions>\
        <session name=\"x\" probability=\"100\" type=\"ts_websocket\">\n\
        <request><websocket type=\"connect\" path=\"/a\"/></request>\n\
        <request><websocket type=\"message\">{“a”: 1}</websocket></request>\n\
        </session></sessions></tsung>\n</session>\n</sessions>\n</tsung>\n";
    let loaded = read(slide, &fixtures(), &overrides(false)).unwrap();
    let found = lines(&loaded.warnings);
    let wanted = [
        "line 1: the file begins with blanks before its `<?xml` (repaired)",
        "line 4: <tsung> has curly quotes (repaired)",
        "line 4: the DOCTYPE names `tsung` and \"tsung.dtd\" (Tsung expects `tsung` and \
         tsung-1.0.dtd)",
        "line 7: `/clients>` lacks its `<` (repaired)",
        "line 9: <lead> is not an element of Tsung; <load> is meant (repaired)",
        "line 10: <arrivalphase> lacks its attribute `unit` (seconds are taken; Tsung refuses it)",
        "line 11: <users> lacks its attribute `unit` (seconds are taken; Tsung refuses it)",
        "line 15: the JSON has curly quotes (repaired)",
        "line 17: </session> is after the end of the scenario (repaired)",
    ];
    for wanted in wanted {
        assert!(found.iter().any(|warning| warning == wanted), "{wanted}\nnot in {found:#?}");
    }
    assert_eq!(found.len(), wanted.len() + 1, "loglevel beside them: {found:#?}");
    let Act::Send(message) = &loaded.scenario.sessions[0].steps[1].act else { panic!("a message") };
    assert_eq!(message.data.parts, [literal("{\"a\": 1}")]);
    let strict = read(slide, &fixtures(), &overrides(true)).unwrap_err();
    assert_eq!(strict.0.len(), 1, "not well-formed: {strict}");
}

/// Debian's examples, if its package is installed: those for WebSockets, HTTP and raw TCP are
/// accepted, and every other protocol is refused by name.
#[test]
fn tsung_examples_are_accepted_or_refused_by_protocol() {
    let Ok(files) = fs::read_dir("/usr/share/doc/tsung/examples") else {
        println!("skipped: Tsung is not installed");
        return;
    };
    let accepted = ["http-digest", "http_simple", "http_tag", "raw", "websocket"];
    let mut count = 0;
    for entry in files {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        count += 1;
        for strict in [false, true] {
            match read_file(&path, strict) {
                Ok(_) => assert!(accepted.contains(&name.as_str()), "{name} is accepted"),
                Err(faults) => {
                    assert!(!accepted.contains(&name.as_str()), "{name}: {faults}");
                    let wanted = match name.as_str() {
                        "http-oauth" => "<oauth> is not supported",
                        "http_setdynvars" => "cannot read the file ./src/test/test_file_server.csv",
                        _ => "has the type ts_",
                    };
                    let said = |fault: &Diagnostic| fault.what.contains(wanted) && fault.line > 0;
                    assert!(faults.0.iter().any(said), "{name}: {faults}");
                }
            }
        }
    }
    assert!(count > 10, "{count} examples");
}
