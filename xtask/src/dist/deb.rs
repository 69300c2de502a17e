//! The Debian packages: the program with its service, and its symbols.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{DEBIAN_ARCH, Link, Parts, Release, program};
use crate::files;
use crate::process::Task;

/// The address for bug reports of packages; a placeholder until they are shipped.
const MAINTAINER: &str = "Simurgh contributors <simurgh@packages.invalid>";

const ABOUT: &str = "\
Description: real-time server for Phoenix Channels, and a load generator
 Simurgh speaks the Phoenix Channels protocol over WebSocket to the official
 clients, and holds very many connections on one machine: an idle one costs it
 next to nothing. Channels are declared in a file, or written in Rust.
 .
 The package has the server as a systemd service that listens on 127.0.0.1
 until it is told otherwise, the load generator (simurgh load), the observer
 (simurgh observe) and the tool that makes a machine ready (simurgh tune).
";

const SCRIPTS: [&str; 3] = ["postinst", "postrm", "prerm"];

/// Files that are packed unchanged from the repository.
const SOURCES: [(&str, &str); 6] = [
    ("usr/lib/systemd/system/simurgh.service", "packaging/simurgh.service"),
    ("usr/lib/sysusers.d/simurgh.conf", "packaging/simurgh.sysusers"),
    ("usr/share/doc/simurgh/copyright", "packaging/copyright"),
    ("usr/share/doc/simurgh/examples/grafana.json", "docs/grafana/simurgh.json"),
    ("usr/share/doc/simurgh/examples/simurgh.rules.yml", "packaging/prometheus/simurgh.rules.yml"),
    ("usr/share/doc/simurgh/examples/sysctl.conf", "packaging/sysctl.conf"),
];

pub(super) const CONFFILE: &str = "etc/simurgh/simurgh.toml";

impl Release {
    /// The package's version: ours, and that of the packaging.
    pub(super) fn debian_version(&self) -> String {
        format!("{}-1", self.stamp)
    }

    pub(super) fn deb(&self) -> PathBuf {
        self.out.join(format!("simurgh_{}_{DEBIAN_ARCH}.deb", self.debian_version()))
    }

    pub(super) fn dbgsym(&self) -> PathBuf {
        self.out.join(format!("simurgh-dbgsym_{}_{DEBIAN_ARCH}.deb", self.debian_version()))
    }
}

pub(super) fn make(release: &Release, parts: &Parts<'_>) -> Result<()> {
    make_main(release, parts)?;
    make_dbgsym(release, parts)
}

/// Writes the files that packages of all distributions have.
pub(super) fn fill(tree: &Path, parts: &Parts<'_>) -> Result<()> {
    let put = |path: &str, content: &[u8], mode| files::write(&tree.join(path), content, mode);
    put("usr/bin/simurgh", &files::bytes(&parts.built.binary)?, 0o755)?;
    put(CONFFILE, parts.texts.config.as_bytes(), 0o644)?;
    for (path, source) in SOURCES {
        put(path, &files::bytes(&crate::root().join(source))?, 0o644)?;
    }
    let completions = [
        "usr/share/bash-completion/completions/simurgh",
        "usr/share/zsh/vendor-completions/_simurgh",
        "usr/share/fish/vendor_completions.d/simurgh.fish",
    ];
    for (path, script) in completions.iter().zip(&parts.texts.completions) {
        put(path, script.as_bytes(), 0o644)?;
    }
    for (name, page) in &parts.texts.pages {
        let page = files::gzipped(page, parts.work)?;
        put(&format!("usr/share/man/man1/{name}.gz"), &page, 0o644)?;
    }
    let changes = files::text(&crate::root().join("CHANGELOG.md"))?;
    for (name, text) in [("changelog", changes.as_str()), ("THIRD-PARTY.txt", parts.licences)] {
        let text = files::gzipped(text, parts.work)?;
        put(&format!("usr/share/doc/simurgh/{name}.gz"), &text, 0o644)?;
    }
    Ok(())
}

/// Debian's own files, which other packages do not have.
pub(super) const OF_DEBIAN: [&str; 2] =
    ["usr/share/doc/simurgh/changelog.Debian.gz", "usr/share/lintian/overrides/simurgh"];

fn make_main(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let tree = parts.work.join("deb");
    fill(&tree, parts)?;
    let put = |path: &str, content: &[u8], mode| files::write(&tree.join(path), content, mode);
    put(OF_DEBIAN[0], &files::gzipped(&changelog(release)?, parts.work)?, 0o644)?;
    put(OF_DEBIAN[1], overrides(release).as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let source = crate::root().join(format!("packaging/simurgh.{script}"));
        put(&format!("DEBIAN/{script}"), &files::bytes(&source)?, 0o755)?;
    }
    put("DEBIAN/conffiles", format!("/{CONFFILE}\n").as_bytes(), 0o644)?;
    let control = control(release, &tree)?;
    put("DEBIAN/control", control.as_bytes(), 0o644)?;
    pack(release, &tree, &release.deb())
}

fn make_dbgsym(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let tree = parts.work.join("dbgsym");
    let put = |path: &str, content: &[u8]| files::write(&tree.join(path), content, 0o644);
    let id = &parts.built.build_id;
    let (first, rest) = id.split_at(2);
    let symbols = files::bytes(&parts.built.debug)?;
    put(&format!("usr/lib/debug/.build-id/{first}/{rest}.debug"), &symbols)?;
    // Like debhelper: the licence is the program's, which is there too.
    let doc = tree.join("usr/share/doc");
    files::directory(&doc)?;
    std::os::unix::fs::symlink("simurgh", doc.join("simurgh-dbgsym"))?;
    let version = release.debian_version();
    let size = installed_kib(&tree)?;
    let control = format!(
        "Package: simurgh-dbgsym\nSource: simurgh\nVersion: {version}\n\
         Architecture: {DEBIAN_ARCH}\nAuto-Built-Package: debug-symbols\n\
         Maintainer: {MAINTAINER}\nInstalled-Size: {size}\n\
         Depends: simurgh (= {version})\nSection: debug\nPriority: optional\n\
         Description: debug symbols for simurgh\nBuild-Ids: {id}\n"
    );
    put("DEBIAN/control", control.as_bytes())?;
    pack(release, &tree, &release.dbgsym())
}

/// The same bytes for the same tree: owners are root, times the commit's, one thread compresses.
fn pack(release: &Release, tree: &Path, to: &Path) -> Result<()> {
    write_sums(tree)?;
    let arguments = [
        "SOURCE_DATE_EPOCH=".to_owned() + &release.epoch.to_string(),
        "dpkg-deb".to_owned(),
        "--root-owner-group".to_owned(),
        "-Zxz".to_owned(),
        format!("-z{}", release.effort()),
        "--threads-max=1".to_owned(),
        "--build".to_owned(),
        tree.to_string_lossy().into_owned(),
        to.to_string_lossy().into_owned(),
    ];
    program("env", &arguments.each_ref().map(String::as_str)).map(drop)
}

fn write_sums(tree: &Path) -> Result<()> {
    let is_content = |path: &String| !path.starts_with("DEBIAN/") && !tree.join(path).is_symlink();
    // Configuration files may be changed by the administrator.
    let mut listed = files::below(tree)?;
    listed.retain(|path| is_content(path) && path != CONFFILE);
    let sums = Task::new("md5sum", &listed, 1).directory(tree).quiet().run();
    files::write(&tree.join("DEBIAN/md5sums"), sums.or_fail("md5sum")?, 0o644)
}

fn control(release: &Release, tree: &Path) -> Result<String> {
    let (depends, built_using) = match release.link {
        Link::Static => {
            let (source, version) = glibc()?;
            (String::new(), format!("Built-Using: {source} (= {version})\n"))
        }
        Link::Dynamic => ("libc6, libgcc-s1, ".to_owned(), String::new()),
    };
    let version = release.debian_version();
    let size = installed_kib(tree)?;
    Ok(format!(
        "Package: simurgh\nVersion: {version}\nArchitecture: {DEBIAN_ARCH}\n\
         Maintainer: {MAINTAINER}\nInstalled-Size: {size}\n\
         Depends: {depends}init-system-helpers (>= 1.54~), systemd | systemd-standalone-sysusers\n\
         Suggests: simurgh-dbgsym (= {version})\n\
         {built_using}Section: net\nPriority: optional\n{ABOUT}"
    ))
}

/// The source package of the C library inside, and its version.
pub(super) fn glibc() -> Result<(String, String)> {
    let format = "--showformat=${source:Package} ${source:Version}";
    let printed = program("dpkg-query", &["--show", format, "libc6-dev"])?;
    let (source, version) = printed.split_once(' ').context("libc6-dev has no version")?;
    Ok((source.to_owned(), version.to_owned()))
}

/// Kibibytes, each file and directory rounded up, as Debian counts them.
fn installed_kib(tree: &Path) -> Result<u64> {
    let mut sum = 0;
    for path in files::below(tree)?.iter().filter(|path| !path.starts_with("DEBIAN/")) {
        let size = fs::symlink_metadata(tree.join(path))?.len();
        sum += size.div_ceil(1024);
    }
    Ok(sum)
}

/// Debian's own form of changes: one entry, for the packaging.
fn changelog(release: &Release) -> Result<String> {
    let epoch = format!("@{}", release.epoch);
    let date = program("date", &["--utc", "--rfc-email", "--date", &epoch])?;
    Ok(format!(
        "simurgh ({}) unstable; urgency=medium\n\n  * Built from the sources of this version; \
         changelog.gz says what is new.\n\n -- {MAINTAINER}  {}\n",
        release.debian_version(),
        date.trim()
    ))
}

fn overrides(release: &Release) -> String {
    let text = "# No package of Debian's archive: there is no bug to close.\n\
                simurgh: initial-upload-closes-no-bugs\n";
    match release.link {
        Link::Static => format!(
            "{text}# A static program at a random address looks like a library. It is static on\n\
             # purpose, measured: docs/RELEASE.md. Built-Using names the C library.\n\
             simurgh: shared-library-lacks-prerequisites\n"
        ),
        Link::Dynamic => text.to_owned(),
    }
}
