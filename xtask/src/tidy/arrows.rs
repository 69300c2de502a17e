//! Crates are the layers: which of ours may depend on which, read from the manifests.

use super::{File, Finding};

/// Each crate under `crates/`, and the crates of ours it may depend on. Tests may use more.
const ARROWS: &[(&str, &[&str])] = &[
    ("simurgh-proto", &[]),
    ("simurgh-reactor", &[]),
    ("simurgh-page", &[]),
    ("simurgh-text", &[]),
    ("simurgh-presence", &["simurgh-proto"]),
    ("simurgh-history", &["simurgh-proto"]),
    ("simurgh-token", &[]),
    // Uses only the history's judgement of numbers from other sources.
    ("simurgh-cluster", &["simurgh-history", "simurgh-presence", "simurgh-proto"]),
    ("simurgh-loopback", &["simurgh-cluster"]),
    ("simurgh-nats", &["simurgh-cluster"]),
    // Uses only plain data of the reactor, and only in two rooms: see rooms.rs.
    (
        "simurgh-channel",
        &["simurgh-history", "simurgh-presence", "simurgh-proto", "simurgh-reactor"],
    ),
    (
        "simurgh-core",
        &[
            "simurgh-channel",
            "simurgh-history",
            "simurgh-presence",
            "simurgh-proto",
            "simurgh-reactor",
        ],
    ),
    (
        "simurgh-sim",
        &[
            "simurgh-cluster",
            "simurgh-core",
            "simurgh-history",
            "simurgh-loopback",
            "simurgh-presence",
            "simurgh-proto",
            "simurgh-reactor",
        ],
    ),
    // Tokens only by a feature.
    (
        "simurgh-socket",
        &["simurgh-channel", "simurgh-history", "simurgh-proto", "simurgh-text", "simurgh-token"],
    ),
    (
        "simurgh-shard",
        &["simurgh-cluster", "simurgh-core", "simurgh-proto", "simurgh-reactor", "simurgh-socket"],
    ),
    (
        "simurgh",
        &[
            "simurgh-cluster",
            "simurgh-core",
            "simurgh-page",
            "simurgh-presence",
            "simurgh-proto",
            "simurgh-reactor",
            "simurgh-shard",
            "simurgh-socket",
        ],
    ),
    ("simurgh-testing", &["simurgh", "simurgh-channel", "simurgh-proto"]),
    // The load generator, in the order of its data's way.
    ("simurgh-load-client", &["simurgh-proto", "simurgh-reactor"]),
    ("simurgh-load-scenario", &["simurgh-load-client", "simurgh-proto", "simurgh-text"]),
    ("simurgh-load-tsung", &["simurgh-load-scenario"]),
    ("simurgh-load-record", &["simurgh-load-scenario"]),
    (
        "simurgh-load-report",
        &["simurgh-load-record", "simurgh-load-scenario", "simurgh-page", "simurgh-text"],
    ),
    (
        "simurgh-load-engine",
        &[
            "simurgh-load-client",
            "simurgh-load-record",
            "simurgh-load-report",
            "simurgh-load-scenario",
            "simurgh-proto",
            "simurgh-reactor",
        ],
    ),
    (
        "simurgh-load-benchmark",
        &[
            "simurgh-load-client",
            "simurgh-load-record",
            "simurgh-load-report",
            "simurgh-load-scenario",
            "simurgh-page",
            "simurgh-reactor",
            "simurgh-text",
        ],
    ),
    (
        "simurgh-load",
        &[
            "simurgh-load-benchmark",
            "simurgh-load-client",
            "simurgh-load-engine",
            "simurgh-load-record",
            "simurgh-load-report",
            "simurgh-load-scenario",
            "simurgh-load-tsung",
        ],
    ),
    ("simurgh-tune", &["simurgh-reactor", "simurgh-text"]),
    // It starts its processes by the name of a command, so it does not depend on that crate.
    ("simurgh-road", &["simurgh-load", "simurgh-page", "simurgh-text", "simurgh-tune"]),
    // The binary includes everything, with the examples it serves.
    (
        "simurgh-cli",
        &[
            "simurgh",
            "simurgh-chat",
            "simurgh-load",
            "simurgh-nats",
            "simurgh-reactor",
            "simurgh-road",
            "simurgh-text",
            "simurgh-token",
            "simurgh-tune",
        ],
    ),
];

struct Manifest<'a> {
    file: &'a File,
    name: String,
    table: toml::Table,
}

pub(super) fn check(files: &[File]) -> Result<Vec<Finding>, String> {
    let manifests = files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .map(manifest)
        .collect::<Result<Vec<_>, _>>()?;
    let ours: Vec<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    let mut findings = Vec::new();
    for manifest in manifests.iter().filter(|manifest| manifest.file.path.starts_with("crates/")) {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == manifest.name) else {
            let text = format!("{} has no place among the layers (see arrows.rs)", manifest.name);
            findings.push(manifest.file.finding("arrows", 1, text));
            continue;
        };
        for wrong in dependencies(&manifest.table) {
            if ours.contains(&wrong.as_str()) && !allowed.contains(&wrong.as_str()) {
                let text = format!("{} may not depend on {wrong}", manifest.name);
                findings.push(manifest.file.finding("arrows", 1, text));
            }
        }
    }
    Ok(findings)
}

fn manifest(file: &File) -> Result<Manifest<'_>, String> {
    let table: toml::Table = file.text.parse().map_err(|e| format!("{}: {e}", file.path))?;
    let package = table.get("package").and_then(|package| package.get("name"));
    let name = package.and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    Ok(Manifest { file, name, table })
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let platforms = manifest.get("target").and_then(toml::Value::as_table);
    let platforms = platforms.into_iter().flat_map(|table| table.values());
    let tables = platforms.filter_map(toml::Value::as_table).chain([manifest]);
    tables
        .flat_map(|table| ["dependencies", "build-dependencies"].map(|kind| table.get(kind)))
        .filter_map(|entry| entry?.as_table())
        .flatten()
        .map(|(key, entry)| {
            let renamed = entry.get("package").and_then(toml::Value::as_str);
            renamed.unwrap_or(key).to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn package(path: &str, name: &str, rest: &str) -> File {
        file(path, &format!("[package]\nname = \"{name}\"\n{rest}"))
    }

    fn texts(proto: &str) -> Vec<String> {
        let files = [
            package("crates/ground/simurgh-proto/Cargo.toml", "simurgh-proto", proto),
            package("crates/ground/simurgh-reactor/Cargo.toml", "simurgh-reactor", ""),
        ];
        check(&files).unwrap().into_iter().map(|found| found.text).collect()
    }

    #[test]
    fn a_layer_is_built_on_lower_ones_only() {
        let wrong = ["simurgh-proto may not depend on simurgh-reactor"];
        assert_eq!(texts("[dependencies]\nsimurgh-reactor.workspace = true"), wrong);
        assert_eq!(texts("[dependencies]\nr = { package = \"simurgh-reactor\" }"), wrong);
        assert_eq!(texts("[target.'cfg(unix)'.dependencies]\nsimurgh-reactor = \"1\""), wrong);
        assert_eq!(texts("[build-dependencies]\nsimurgh-reactor = \"1\""), wrong);
    }

    #[test]
    fn tests_and_foreign_crates_are_free() {
        assert_eq!(texts("[dev-dependencies]\nsimurgh-reactor = \"1\""), [""; 0]);
        assert_eq!(texts("[dependencies]\nserde = \"1\""), [""; 0]);
    }

    #[test]
    fn a_new_crate_must_be_given_its_place() {
        let found = check(&[package("crates/new/Cargo.toml", "new", "")]).unwrap();
        assert!(found[0].text.starts_with("new has no place among the layers"));
        assert_eq!(check(&[package("examples/new/Cargo.toml", "new", "")]).unwrap(), []);
    }
}
