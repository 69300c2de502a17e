//! The scenarios that are shipped, and Tsung's files in the native language.

use std::path::{Path, PathBuf};
use std::time::Duration;

use simurgh_load::load;
use simurgh_load::scenario::{Arrivals, Loaded, Machine, Overrides, Scenario, check, explain};
use simurgh_load::toml;

fn shipped() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bench/scenarios");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    paths
}

#[track_caller]
fn loaded(path: &Path, overrides: &Overrides) -> Loaded {
    load(path, overrides).unwrap_or_else(|faults| panic!("{}:\n{faults}", path.display()))
}

#[test]
fn shipped_scenarios_are_valid_and_short() {
    let paths = shipped();
    let names: Vec<_> =
        paths.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
    let expected = [
        "cluster-kill",
        "cluster-rooms",
        "drops-cluster",
        "drops",
        "lifelike-chat",
        "lobby",
        "longpoll",
        "many-channels",
        "one-channel",
        "presence",
        "several-servers",
    ];
    assert_eq!(names, expected);
    for path in &paths {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 40, "{} has {lines} lines", path.display());
        assert!(text.starts_with("# "), "{} does not say what it is for", path.display());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{}", path.display());
        let Loaded { scenario, warnings } = loaded(path, &Overrides::default());
        assert_eq!(warnings, []);
        assert_eq!(Some(scenario.name.as_str()), path.file_stem().unwrap().to_str());
        let machine = Machine { workers: 1, descriptors: 200_000, memory_bytes: None };
        let text = explain(&scenario, &machine);
        assert!(!text.contains("until it is stopped") && !text.contains('!'), "{text}");
    }
}

#[test]
fn shipped_scenarios_do_what_they_describe() {
    let by_name = |name: &str| {
        let paths = shipped();
        let path = paths.iter().find(|path| path.ends_with(name)).unwrap();
        loaded(path, &Overrides::default()).scenario
    };
    let machine = Machine { workers: 6, descriptors: 20_000, memory_bytes: None };
    for (name, expected) in [
        ("lobby.toml", ["about 100,000 users in all, at most 100,000 concurrently"].as_slice()),
        ("one-channel.toml", &["about 1,000 users in all, at most 1,000 concurrently"]),
        ("many-channels.toml", &["about 10,000 users in all, at most 10,000 concurrently"]),
        ("several-servers.toml", &["127.0.0.1:4000, 75 % of the users", "127.0.0.1:4001, 25 %"]),
        (
            "cluster-rooms.toml",
            &[
                "about 18,000 users in all, at most 18,000 concurrently",
                "the run ends after 1 min 55 s",
            ],
        ),
        (
            "cluster-kill.toml",
            &["about 3,000 users", "reconnects a lost connection after 100 ms to 2 s, and joins"],
        ),
        ("lifelike-chat.toml", &["10 users per second, at random (Poisson)"]),
        (
            "drops.toml",
            &[
                "about 10,010 users",
                "in phase cuts, loses its connection every 10 s for 2 s, by a reset or in silence",
                "reconnects 0 s to 1 s later",
                "joins request the messages since the last received one",
            ],
        ),
        (
            "drops-cluster.toml",
            &[
                "about 10,010 users",
                "in phase cuts, loses its connection every 10 s for 2 s",
                "1 min 50 s",
            ],
        ),
        ("longpoll.toml", &["about 5,005 users", "sockets    10,010", "by long polling"]),
        (
            "presence.toml",
            &["about 900 users", "wait = { presence = \"state\", key = \"{{user_id}}\" }"],
        ),
    ] {
        let text = explain(&by_name(name), &machine);
        for expected in expected {
            assert!(text.contains(expected), "{name}: {expected:?} is not in\n{text}");
        }
    }
}

#[test]
fn command_line_flags_override_the_scenario() {
    let overrides = Overrides {
        users_max: Some(15_000),
        duration: Some(Duration::from_secs(60)),
        rate: Some(50.0),
        seed: Some(3),
        ..Overrides::default()
    };
    let paths = shipped();
    let path = paths.iter().find(|path| path.ends_with("lifelike-chat.toml")).unwrap();
    let Scenario { load, seed, .. } = loaded(path, &overrides).scenario;
    assert_eq!((load.users_max, load.duration), (Some(15_000), Some(Duration::from_secs(60))));
    assert_eq!(seed, 3);
    let rates: Vec<_> = load.phases.iter().map(|phase| phase.arrivals).collect();
    let expected = Arrivals::Open { from: 50.0, to: 50.0, poisson: true };
    assert_eq!(rates[0], expected);
}

#[test]
fn unreadable_scenario_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let overrides = Overrides::default();
    let path = dir.path().join("none.toml");
    let error = load(&path, &overrides).unwrap_err().to_string();
    assert!(error.starts_with("cannot be read: "), "{error}");
    std::fs::write(&path, b"name = \"a\"\nb = \"\xff\"\n").unwrap();
    let error = load(&path, &overrides).unwrap_err().to_string();
    assert!(error.starts_with("line 2: is not UTF-8"), "{error}");
    std::fs::write(&path, b"\xef\xbb\xbf  \n<tsung>").unwrap();
    let error = load(&path, &overrides).unwrap_err().to_string();
    assert!(error.contains("tsung"), "taken for Tsung's: {error}");
}

#[test]
fn data_files_are_read_from_the_directory_of_the_scenario() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("users.csv"), "ann;1\r\nbob;2\n\n").unwrap();
    let text = "[files]\nusers = \"users.csv\"\nnone = \"none.csv\"\n[target]\n\
                url = \"ws://127.0.0.1:1\"\n[[phase]]\nduration = \"1s\"\nrate = 1\n[[session]]\n\
                steps = [{ set = [\"name\", \"n\"], row = \"users\" }]\n";
    let path = dir.path().join("a.toml");
    std::fs::write(&path, text).unwrap();
    let error = load(&path, &Overrides::default()).unwrap_err().to_string();
    assert!(error.starts_with("line 3: none: cannot read"), "{error}");
    std::fs::write(&path, text.replace("none = \"none.csv\"\n", "")).unwrap();
    let scenario = loaded(&path, &Overrides::default()).scenario;
    assert_eq!(scenario.files[0].rows, ["ann;1", "bob;2"]);
    let again = toml::read(&toml::write(&scenario), dir.path(), &Overrides::default()).unwrap();
    assert_eq!(again.scenario.files, scenario.files);
}

#[test]
fn tsung_files_are_converted_without_loss() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tsung");
    let map = ["server_ip_address", "KEMAL_HOST_IP", "localhost"];
    let map = map.map(|host| (host.to_owned(), "127.0.0.1".to_owned())).to_vec();
    let overrides = Overrides { map, local: true, ..Overrides::default() };
    let mut converted = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        // The one with an unknown attribute cannot be parsed at all.
        let is_xml = path.extension().is_some_and(|extension| extension == "xml");
        if !is_xml || path.ends_with("bad-attr.xml") {
            continue;
        }
        let scenario = loaded(&path, &overrides).scenario;
        let text = toml::write(&scenario);
        let again = match toml::read(&text, &dir, &Overrides::default()) {
            Ok(loaded) => loaded.scenario,
            Err(faults) => panic!("{}: {faults}\n{text}", path.display()),
        };
        assert_eq!(again.clone().without_lines(), scenario.without_lines(), "{text}");
        check(&again).unwrap();
        converted += 1;
    }
    assert_eq!(converted, 11);
}
