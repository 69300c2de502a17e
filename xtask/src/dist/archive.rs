//! Archives for all systems, the chart, the SBOM, checksums and their signature.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Parts, Release, dependencies, program};
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
    files::write(&release.sbom(), dependencies::sbom(release, parts.crates)?, 0o644)?;
    chart(release, parts)
}

fn pack(release: &Release, parts: &Parts<'_>, name: &str) -> Result<()> {
    let plain = release.out.join(format!("{name}.tar"));
    tar(release, &parts.work.join("archive"), name, &plain)?;
    let effort = format!("-{}", release.effort());
    program("xz", &["--threads=1", &effort, "--force", &plain.to_string_lossy()]).map(drop)
}

/// An archive of what is in a directory: sorted, owned by root, with the commit's time.
pub(super) fn tar(release: &Release, directory: &Path, name: &str, to: &Path) -> Result<()> {
    let (to, directory) = (to.to_string_lossy(), directory.to_string_lossy());
    let time = format!("--mtime=@{}", release.epoch);
    let owners = ["--owner=0", "--group=0", "--numeric-owner"];
    let order = ["--create", "--sort=name", "--format=ustar", &time];
    let place = ["--file", &to, "--directory", &directory, name];
    program("tar", &[&order[..], &owners, &place].concat()).map(drop)
}

/// Replaces a file by `FILE.gz`, without name and time.
pub(super) fn gzip(file: &Path) -> Result<()> {
    program("gzip", &["-9", "--no-name", "--force", &file.to_string_lossy()]).map(drop)
}

/// Packs the chart like `helm package`, with the version of this release.
fn chart(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let (from, to) = (crate::root().join("packaging/helm"), parts.work.join("chart"));
    for path in files::below(&from)? {
        let mut text = files::text(&from.join(&path))?;
        if path.ends_with("Chart.yaml") {
            text = text.replace(&release.version, &release.tag());
        }
        files::write(&to.join(&path), text, 0o644)?;
    }
    let plain = to.join("chart.tar");
    tar(release, &to, "simurgh", &plain)?;
    gzip(&plain)?;
    files::write(&release.chart(), files::bytes(&to.join("chart.tar.gz"))?, 0o644)
}

impl Release {
    pub(super) fn chart(&self) -> PathBuf {
        self.out.join(format!("simurgh-{}.tgz", self.tag()))
    }

    pub(super) fn sbom(&self) -> PathBuf {
        self.out.join(format!("{}.cdx.json", self.name()))
    }

    pub(super) fn sums(&self) -> PathBuf {
        self.out.join("SHA256SUMS")
    }
}

/// Checksums of all files so far.
pub(super) fn sums(release: &Release) -> Result<()> {
    let names: Vec<String> = files::list(&release.out)?.into_iter().map(|(name, _)| name).collect();
    let sums = Task::new("sha256sum", &names, 1).directory(&release.out).quiet().run();
    files::write(&release.sums(), sums.or_fail("sha256sum")?, 0o644)
}

/// Signs a file by minisign, which asks for the password of the key if it has one.
pub(super) fn sign(file: &Path, key: &Path) -> Result<()> {
    let mut command = Command::new("minisign");
    command.arg("-S").arg("-s").arg(key).arg("-m").arg(file);
    let status = command.status().context("minisign")?;
    ensure!(status.success(), "minisign: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_has_the_version_of_the_crates() {
        let chart = files::text(&crate::root().join("packaging/helm/simurgh/Chart.yaml")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
            assert!(chart.lines().any(|one| one == line), "{line} is not in\n{chart}");
        }
    }
}
