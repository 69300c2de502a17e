//! The crates in the binary: for THIRD-PARTY.txt, the SBOM, and the list in the binary itself.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Link, Release, TARGET, deb, program};
use crate::files;

/// The section that `cargo auditable` invented, and that `cargo audit bin`, Trivy and others read.
pub(super) const SECTION: &str = ".dep-v0";

pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression.
    pub(super) licence: String,
    /// It is part of this repository.
    pub(super) is_ours: bool,
    /// The positions of what it uses itself.
    uses: BTreeSet<usize>,
}

/// Every crate that is linked into the binary. The first is the program itself.
pub(super) fn list() -> Result<Vec<Dependency>> {
    // A macro runs while it is compiled, and is not in the binary.
    let words = "tree --locked --package simurgh-cli --edges normal,no-proc-macro --prefix depth \
                 --format |{p}|{l} --target";
    let arguments: Vec<&str> = words.split_whitespace().chain([TARGET]).collect();
    parse(&program("cargo", &arguments)?)
}

/// Reads lines such as `2|bytes v1.10.0|MIT (*)`: the users of a crate are above it.
fn parse(tree: &str) -> Result<Vec<Dependency>> {
    let mut found: Vec<Dependency> = Vec::new();
    let mut path: Vec<usize> = Vec::new();
    for line in tree.lines() {
        let mut parts = line.split('|');
        let (Some(depth), Some(package), Some(licence)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let mut words = package.split_whitespace();
        let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let version = version.trim_start_matches('v');
        let known = found.iter().position(|one| one.name == name && one.version == version);
        let position = known.unwrap_or(found.len());
        if known.is_none() {
            // Older crates write MIT/Apache-2.0.
            let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
            ensure!(!licence.is_empty(), "{name} does not say what its licence is");
            let (name, version) = (name.to_owned(), version.to_owned());
            let is_ours = package.contains('/');
            found.push(Dependency { name, version, licence, is_ours, uses: BTreeSet::new() });
        }
        path.truncate(depth.parse().with_context(|| line.to_owned())?);
        if let Some(user) = path.last().and_then(|user| found.get_mut(*user)) {
            user.uses.insert(position);
        }
        path.push(position);
    }
    ensure!(!found.is_empty(), "cargo tree names no crate");
    Ok(found)
}

impl Dependency {
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }
}

/// The content of the section: JSON, compressed by zlib.
pub(super) fn section(all: &[Dependency]) -> Vec<u8> {
    let mut packages: Vec<Value> = Vec::new();
    for one in all {
        let source = if one.is_ours { "local" } else { "crates.io" };
        packages.push(json!({
            "name": one.name,
            "version": one.version,
            "source": source,
            "dependencies": one.uses,
            "root": packages.is_empty(),
        }));
    }
    let text = json!({ "packages": packages }).to_string();
    miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), 9)
}

/// Reads the section of a finished binary as scanners do, and compares it.
pub(super) fn check_section(binary: &Path, all: &[Dependency]) -> Result<()> {
    let listed = auditable_info::audit_info_from_file(binary, auditable_info::Limits::default())
        .with_context(|| binary.display().to_string())?;
    let mut found: Vec<(String, String)> =
        listed.packages.into_iter().map(|one| (one.name, one.version.to_string())).collect();
    let mut wanted: Vec<(String, String)> =
        all.iter().map(|one| (one.name.clone(), one.version.clone())).collect();
    found.sort();
    wanted.sort();
    ensure!(found == wanted, "the binary names {found:?}, not {wanted:?}");
    Ok(())
}

/// The SBOM in the form of CycloneDX.
pub(super) fn sbom(release: &Release, all: &[Dependency]) -> Result<String> {
    let lock: toml::Table = files::text(&crate::root().join("Cargo.lock"))?.parse()?;
    let locked = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock")?;
    let glibc = match release.link {
        Link::Static => Some(deb::glibc()?.1),
        Link::Dynamic => None,
    };
    let bom = bom(&release.time()?, all, locked, glibc.as_deref());
    Ok(serde_json::to_string_pretty(&bom)? + "\n")
}

/// The first crate is the subject, the others and the C library its parts.
fn bom(time: &str, all: &[Dependency], locked: &[toml::Value], glibc: Option<&str>) -> Value {
    let mut components = Vec::new();
    let mut edges = Vec::new();
    for one in all {
        let mut new = component(&one.name, &one.version, &one.licence, &one.purl());
        if let Some(sum) = checksum(locked, one) {
            new["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        components.push(new);
        let uses = one.uses.iter().filter_map(|used| Some(all.get(*used)?.purl()));
        edges.push(json!({ "ref": one.purl(), "dependsOn": uses.collect::<Vec<_>>() }));
    }
    if let Some(version) = glibc {
        let purl = format!("pkg:deb/debian/glibc@{}", version.replace('+', "%2B"));
        components.push(component("glibc", version, "LGPL-2.1-or-later", &purl));
        edges[0]["dependsOn"].as_array_mut().into_iter().for_each(|uses| uses.push(json!(purl)));
        edges.push(json!({ "ref": purl, "dependsOn": [] }));
    }
    let mut subject = components.remove(0);
    subject["type"] = "application".into();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "timestamp": time, "component": subject },
        "components": components,
        "dependencies": edges,
    })
}

fn component(name: &str, version: &str, licence: &str, purl: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [{ "expression": licence }],
        "purl": purl,
    })
}

/// That of the crate's archive, by Cargo.lock; ours have none.
fn checksum<'a>(locked: &'a [toml::Value], one: &Dependency) -> Option<&'a str> {
    let text = |package: &'a toml::Value, key| package.get(key).and_then(toml::Value::as_str);
    let found = locked.iter().find(|package| {
        text(package, "name") == Some(&one.name) && text(package, "version") == Some(&one.version)
    });
    text(found?, "checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0|simurgh-cli v0.1.0 (/src/cli)|MIT OR Apache-2.0
1|bytes v1.10.0|MIT
1|simurgh v0.1.0 (/src/simurgh)|MIT OR Apache-2.0
2|bytes v1.10.0|MIT
2|toml v1.1.2+spec-1.1.0|MIT/Apache-2.0
1|toml v1.1.2+spec-1.1.0|MIT/Apache-2.0 (*)
";

    #[test]
    fn each_crate_is_listed_once_with_what_it_uses() {
        let all = parse(TREE).unwrap();
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["simurgh-cli", "bytes", "simurgh", "toml"]);
        let uses: Vec<Vec<usize>> =
            all.iter().map(|one| one.uses.iter().copied().collect()).collect();
        assert_eq!(uses, [vec![1, 2, 3], vec![], vec![1, 3], vec![]]);
        assert!(all[0].is_ours && !all[3].is_ours);
        assert_eq!(all[3].licence, "MIT OR Apache-2.0");
        assert_eq!(all[3].purl(), "pkg:cargo/toml@1.1.2%2Bspec-1.1.0");
    }

    #[test]
    fn sbom_of_a_static_program_has_the_c_library() {
        let lock = "package = [{ name = \"bytes\", version = \"1.10.0\", checksum = \"ab\" }]";
        let lock: toml::Table = lock.parse().unwrap();
        let locked = lock["package"].as_array().unwrap();
        let bom = bom("2026-11-29T00:00:00Z", &parse(TREE).unwrap(), locked, Some("2.36-9+b1"));
        assert_eq!(bom["metadata"]["component"]["name"], "simurgh-cli");
        let glibc = "pkg:deb/debian/glibc@2.36-9%2Bb1";
        let names: Vec<&Value> =
            bom["components"].as_array().unwrap().iter().map(|one| &one["bom-ref"]).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[3], glibc);
        assert_eq!(bom["components"][0]["hashes"][0]["content"], "ab");
        let edges = &bom["dependencies"];
        assert_eq!(edges[0]["dependsOn"][3], glibc);
        assert_eq!(edges[4], json!({ "ref": glibc, "dependsOn": [] }));
    }

    #[test]
    fn crate_without_a_licence_is_an_error() {
        assert!(parse("0|simurgh-cli v0.1.0 (/src/cli)|\n").is_err());
    }
}
