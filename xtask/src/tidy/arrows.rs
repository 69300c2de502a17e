//! Folders of crates are the layers: which of ours may depend on which, read from the manifests.

use super::{File, Finding};

/// Each folder under `crates/`, and the folders whose crates its own may depend on. Tests may use
/// more. Those of the load generator know nothing of the server.
const LAYERS: &[(&str, &[&str])] = &[
    ("data", &[]),
    ("ground", &["data"]),
    ("core", &["core", "ground", "data"]),
    ("load", &["load", "ground", "data"]),
    ("server", &["server", "core", "ground", "data"]),
    // The binary includes everything, with the examples it serves.
    ("tools", &["tools", "server", "load", "core", "ground", "data", ""]),
];

struct Manifest<'a> {
    file: &'a File,
    name: String,
    table: toml::Table,
}

impl Manifest<'_> {
    /// The folder under `crates/`; empty elsewhere.
    fn layer(&self) -> &str {
        let below = self.file.path.strip_prefix("crates/").unwrap_or_default();
        below.split_once('/').map_or("", |(layer, _)| layer)
    }
}

pub(super) fn check(files: &[File]) -> Result<Vec<Finding>, String> {
    let manifests = files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
        .map(manifest)
        .collect::<Result<Vec<_>, _>>()?;
    let mut findings = Vec::new();
    for manifest in manifests.iter().filter(|manifest| manifest.file.path.starts_with("crates/")) {
        let layer = manifest.layer();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            let text = format!("{layer} has no place among the layers (see arrows.rs)");
            findings.push(manifest.file.finding("arrows", 1, text));
            continue;
        };
        for name in dependencies(&manifest.table) {
            let used = manifests.iter().find(|manifest| manifest.name == name);
            if used.is_some_and(|used| !allowed.contains(&used.layer())) {
                let text = format!("{} may not depend on {name}", manifest.name);
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
    fn a_new_folder_must_be_given_its_place() {
        let found = check(&[package("crates/new/a/Cargo.toml", "a", "")]).unwrap();
        assert!(found[0].text.starts_with("new has no place among the layers"));
        assert_eq!(check(&[package("examples/new/Cargo.toml", "new", "")]).unwrap(), []);
    }
}
