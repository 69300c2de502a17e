//! The OCI image: one layer with the program, its configuration and licences, in an archive that
//! `docker load`, `podman load`, `skopeo` and `ctr image import` read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{DEBIAN_ARCH, Link, Parts, Release, archive, git, program};
use crate::files;

const OCI: &str = "application/vnd.oci.image";

impl Release {
    pub(super) fn image(&self) -> PathBuf {
        self.out.join(format!("simurgh-{}-{DEBIAN_ARCH}.oci.tar", self.tag()))
    }

    /// The version in a form that tags of images and SemVer allow.
    pub(super) fn tag(&self) -> String {
        self.stamp.replace('~', "-")
    }
}

pub(super) fn make(release: &Release, parts: &Parts<'_>) -> Result<()> {
    let work = parts.work.join("image");
    let root = work.join("root");
    fill(release, parts, &root)?;
    let layer = work.join("layer.tar");
    archive::tar(release, &root, ".", &layer)?;
    let unpacked = digest(&layer)?;
    archive::gzip(&layer)?;
    let layout = work.join("layout");
    let layer = blob(&layout, &files::bytes(&work.join("layer.tar.gz"))?, "layer.v1.tar+gzip")?;
    let config = config(release, &unpacked)?;
    let config = blob(&layout, config.to_string().as_bytes(), "config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{OCI}.manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(&layout, manifest.to_string().as_bytes(), "manifest.v1+json")?;
    manifest["platform"] = json!({ "architecture": DEBIAN_ARCH, "os": "linux" });
    let name = format!("simurgh:{}", release.tag());
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{name}"),
        "org.opencontainers.image.ref.name": release.tag(),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": format!("{OCI}.index.v1+json"),
        "manifests": [manifest],
    });
    // What versions of Docker before 25 read instead.
    let (config, layer) = (path_of(&config), path_of(&layer));
    let docker = json!([{ "Config": config, "RepoTags": [name], "Layers": [layer] }]);
    for (file, content) in [
        ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })),
        ("index.json", index),
        ("manifest.json", docker),
    ] {
        files::write(&layout.join(file), content.to_string(), 0o644)?;
    }
    archive::tar(release, &layout, ".", &release.image())
}

fn fill(release: &Release, parts: &Parts<'_>, root: &Path) -> Result<()> {
    let binary = &parts.built.binary;
    files::write(&root.join("usr/bin/simurgh"), files::bytes(binary)?, 0o755)?;
    files::write(&root.join("etc/simurgh/simurgh.toml"), &parts.texts.config, 0o644)?;
    let doc = root.join("usr/share/doc/simurgh");
    files::write(&doc.join("THIRD-PARTY.txt"), parts.licences, 0o644)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files::write(&doc.join(file), files::bytes(&crate::root().join(file))?, 0o644)?;
    }
    // A dynamic program needs its libraries; such an image is for tests, and is not shipped.
    if release.link == Link::Dynamic {
        let listed = program("ldd", &[&binary.to_string_lossy()])?;
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = root.join(library.trim_start_matches('/'));
            files::write(&to, files::bytes(Path::new(library))?, 0o755)?;
        }
    }
    Ok(())
}

/// packaging/image.json, with what differs between releases. It names the user by a number, since
/// there is no /etc/passwd. The health check is no part of the standard: Docker and Podman read it.
fn config(release: &Release, layer: &str) -> Result<Value> {
    let time = release.time()?;
    let mut config = settings()?;
    for (label, text) in [("version", release.tag()), ("created", time.clone())] {
        config["Labels"][format!("org.opencontainers.image.{label}")] = text.into();
    }
    config["Labels"]["org.opencontainers.image.revision"] = git(&["rev-parse", "HEAD"]).into();
    Ok(json!({
        "created": time,
        "architecture": DEBIAN_ARCH,
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created": time, "created_by": "cargo xtask dist" }],
    }))
}

/// User, command and health check, as in a Dockerfile.
pub(super) fn settings() -> Result<Value> {
    let file = files::text(&crate::root().join("packaging/image.json"))?;
    serde_json::from_str(&file).context("packaging/image.json")
}

/// Stores a part by its digest, and returns its descriptor.
fn blob(layout: &Path, content: &[u8], kind: &str) -> Result<Value> {
    let new = layout.join("blobs/sha256/new");
    files::write(&new, content, 0o644)?;
    let digest = digest(&new)?;
    std::fs::rename(&new, layout.join("blobs").join(digest.replace(':', "/")))?;
    let media_type = format!("{OCI}.{kind}");
    Ok(json!({ "mediaType": media_type, "digest": digest, "size": content.len() }))
}

/// The path of a part in the layout, by its descriptor.
fn path_of(blob: &Value) -> String {
    blob["digest"].as_str().unwrap_or_default().replace("sha256:", "blobs/sha256/")
}

fn digest(file: &Path) -> Result<String> {
    let printed = program("sha256sum", &[&file.to_string_lossy()])?;
    let sum = printed.split_whitespace().next().context("sha256sum prints nothing")?;
    Ok(format!("sha256:{}", sum.trim_start_matches('\\')))
}
