//! Damaged scenarios: however a file is changed, it is parsed, or refused with reasons.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use simurgh_load::scenario::{Overrides, check};
use simurgh_load::tsung::read_in;

use crate::support::tsung::Fake;

fn fixtures() -> Vec<String> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tsung")).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "xml"));
    files.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// What mutations insert: texts that the parsers look for.
const PIECES: &[&str] = &[
    "<",
    ">",
    "/",
    "\"",
    "'",
    "&",
    ";",
    "%%",
    "%%_x%%",
    "%%a:b%%",
    "“",
    "”",
    "]]>",
    "<![CDATA[",
    "<!--",
    "-->",
    "<?",
    "?>",
    "=",
    "\n",
    "\0",
    "é",
    "<lead>",
    "</load>",
    "<if var=\"x\" eq=\"1\">",
    "</if>",
    "-1",
    "99999999999999999999",
    "1e308",
    "*",
    "{ok,V}=",
    "<!ENTITY a '&a;'>",
    "&a;",
    "[1]",
    "0",
];

fn damaged(text: &str, edits: &[(usize, usize, usize)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for &(at, cut, piece) in edits {
        let at = at % (chars.len() + 1);
        let end = (at + cut).min(chars.len());
        chars.splice(at..end, PIECES[piece % PIECES.len()].chars());
    }
    chars.into_iter().collect()
}

fn strict_or_not(strict: bool) -> Overrides {
    let map = ["server_ip_address", "KEMAL_HOST_IP"];
    let map = map.map(|host| (host.to_owned(), "127.0.0.1".to_owned())).to_vec();
    Overrides { map, local: true, strict, ..Overrides::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 4000 }))]

    #[test]
    fn damaged_files_are_read_or_refused(
        file in any::<usize>(),
        strict in any::<bool>(),
        edits in prop::collection::vec((any::<usize>(), 0..20_usize, any::<usize>()), 1..4),
    ) {
        let files = fixtures();
        let text = damaged(&files[file % files.len()], &edits);
        let lines = u32::try_from(text.lines().count()).unwrap() + 1;
        match read_in(&text, &strict_or_not(strict), &Fake) {
            Ok(loaded) => {
                prop_assert!(loaded.warnings.iter().all(|warning| warning.line <= lines));
                // This must not panic either, whatever it returns.
                let _ = check(&loaded.scenario);
            }
            Err(faults) => {
                prop_assert!(!faults.0.is_empty());
                prop_assert!(faults.0.iter().all(|fault| fault.line <= lines), "{}", faults);
            }
        }
    }

    /// A scenario that `--strict` accepts is the same without it.
    #[test]
    fn strict_is_the_narrower_of_the_two(
        file in any::<usize>(),
        edits in prop::collection::vec((any::<usize>(), 0..4_usize, any::<usize>()), 0..2),
    ) {
        let files = fixtures();
        let text = damaged(&files[file % files.len()], &edits);
        if let Ok(strict) = read_in(&text, &strict_or_not(true), &Fake) {
            let tolerant = read_in(&text, &strict_or_not(false), &Fake);
            prop_assert_eq!(tolerant.map(|loaded| loaded.scenario), Ok(strict.scenario));
        }
    }
}
