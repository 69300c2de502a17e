//! Archives for systems other than Debian, the directory that Docker builds from, and checksums.

use anyhow::Result;

use super::{Parts, Release, program};
use crate::files;
use crate::process::Task;

pub(super) fn make(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let name = release.name();
    let tree = parts.work.join("archive").join(&name);
    let put = |path: &str, content: &[u8], mode| files::write(&tree.join(path), content, mode);
    let root = crate::root();
    let binary = files::bytes(&parts.built.binary)?;
    put("bin/simurgh", &binary, 0o755)?;
    put("etc/simurgh.toml", parts.texts.config.as_bytes(), 0o644)?;
    for (path, script) in
        ["simurgh.bash", "_simurgh", "simurgh.fish"].iter().zip(&parts.texts.completions)
    {
        put(&format!("share/completions/{path}"), script.as_bytes(), 0o644)?;
    }
    for (page, text) in &parts.texts.pages {
        put(&format!("share/man/man1/{page}"), text.as_bytes(), 0o644)?;
    }
    for file in ["simurgh.service", "simurgh.sysusers", "sysctl.conf"] {
        put(
            &format!("packaging/{file}"),
            &files::bytes(&root.join("packaging").join(file))?,
            0o644,
        )?;
    }
    for file in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
        put(file, &files::bytes(&root.join(file))?, 0o644)?;
    }
    put("THIRD-PARTY.txt", parts.licences.as_bytes(), 0o644)?;
    pack(release, parts, &name)?;
    let symbols = parts.work.join("archive").join(format!("{name}-debug"));
    files::write(&symbols.join("simurgh.debug"), files::bytes(&parts.built.debug)?, 0o644)?;
    pack(release, parts, &format!("{name}-debug"))?;
    docker(release, parts)?;
    sums(release)
}

/// An archive of one directory: sorted, owned by root, with the commit's time.
fn pack(release: &Release, parts: &Parts<'_>, name: &str) -> Result<()> {
    let plain = release.out.join(format!("{name}.tar"));
    let plain = plain.to_string_lossy();
    let from = parts.work.join("archive");
    let time = format!("--mtime=@{}", release.epoch);
    program(
        "tar",
        &[
            "--create",
            "--file",
            &plain,
            "--directory",
            &from.to_string_lossy(),
            "--sort=name",
            "--format=ustar",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            &time,
            name,
        ],
    )?;
    let effort = format!("-{}", release.effort());
    program("xz", &["--threads=1", &effort, "--force", &plain]).map(drop)
}

/// The directory for `docker build`.
fn docker(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let root = crate::root();
    let to = release.out.join("docker");
    files::write(&to.join("simurgh"), files::bytes(&parts.built.binary)?, 0o755)?;
    files::write(&to.join("simurgh.toml"), &parts.texts.config, 0o644)?;
    files::write(&to.join("THIRD-PARTY.txt"), parts.licences, 0o644)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "packaging/Dockerfile"] {
        let name = file.rsplit('/').next().unwrap_or(file);
        files::write(&to.join(name), files::bytes(&root.join(file))?, 0o644)?;
    }
    Ok(())
}

fn sums(release: &Release) -> Result<()> {
    let names: Vec<String> = files::list(&release.out)?.into_iter().map(|(name, _)| name).collect();
    let sums = Task::new("sha256sum", &names, 1).directory(&release.out).quiet().run();
    files::write(&release.out.join("SHA256SUMS"), sums.or_fail("sha256sum")?, 0o644)
}

#[cfg(test)]
mod tests {
    /// All documentation of Docker must name the directory that `dist` makes.
    #[test]
    fn docker_documentation_names_the_directory_that_dist_makes() {
        let mut named = Vec::new();
        for file in ["packaging/Dockerfile", "docs/DEPLOYMENT.md", "docs/RELEASE.md"] {
            let text = std::fs::read_to_string(crate::root().join(file)).unwrap();
            let told = text.split("docker build -t simurgh ").skip(1);
            let places = told.filter_map(|rest| rest.split(['\n', ' ', '`']).next());
            named.extend(places.map(|place| (file, place.to_owned())));
        }
        assert_eq!(named.len(), 3, "{named:?}");
        let made = format!("target/{}/docker", super::super::PACKAGES);
        assert!(named.iter().all(|(_, place)| *place == made), "{named:?}, not {made}");
    }
}
