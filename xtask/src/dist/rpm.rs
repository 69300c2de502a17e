//! The package for Fedora, RHEL, openSUSE and others: the files of the Debian package, in a .rpm.

use std::path::PathBuf;

use anyhow::Result;

use super::{ARCH, Parts, Release, deb, program};
use crate::files;
use crate::provide;

pub(super) const RPMBUILD: &str = "/usr/bin/rpmbuild";

impl Release {
    pub(super) fn rpm(&self) -> PathBuf {
        self.out.join(format!("simurgh-{}-1.{ARCH}.rpm", self.stamp))
    }
}

/// Makes the package if this machine has `rpmbuild`; a check reports that it has none.
pub(super) fn make(release: &Release, parts: &Parts<'_>) -> Result<()> {
    if !provide::has(RPMBUILD) {
        return Ok(());
    }
    let top = parts.work.join("rpm");
    let tree = top.join("tree");
    deb::fill(&tree, parts)?;
    let listed: String = files::below(&tree)?
        .iter()
        // The specification names it, with its group.
        .filter(|path| *path != deb::CONFFILE)
        .map(|path| format!("/{path}\n"))
        .collect();
    let list = top.join("list");
    files::write(&list, listed, 0o644)?;
    let macros = [
        format!("_topdir {}", top.display()),
        format!("tree {}", tree.display()),
        format!("list {}", list.display()),
        format!("stamp {}", release.stamp),
        format!("_rpmdir {}", release.out.display()),
        "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned(),
        format!("_binary_payload w{}.xzdio", release.effort()),
        // The same bytes everywhere.
        "_buildhost simurgh".to_owned(),
        "use_source_date_epoch_as_buildtime 1".to_owned(),
        "clamp_mtime_to_source_date_epoch 1".to_owned(),
    ];
    let epoch = format!("SOURCE_DATE_EPOCH={}", release.epoch);
    let mut arguments = vec![epoch.as_str(), RPMBUILD, "-bb", "--quiet", "--target", ARCH];
    arguments.extend(macros.iter().flat_map(|one| ["--define", one]));
    let specification = crate::root().join("packaging/simurgh.spec").to_string_lossy().into_owned();
    arguments.push(&specification);
    program("env", &arguments).map(drop)
}
