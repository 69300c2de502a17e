//! The printed version, and how the build script finds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Server, directory, run, run_own};

#[test]
fn the_version_is_one_line_with_commit_features_and_platform() {
    let dir = directory(&[]);
    let long = run(dir.path(), &["--version"]);
    let short = run(dir.path(), &["-V"]);
    assert_eq!((long.status.code(), short.status.code()), (Some(0), Some(0)));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(short.stdout, format!("simurgh {version}\n"));
    let rest = long.stdout.strip_prefix(&format!("simurgh {version} (")).expect(&long.stdout);
    let (built, rest) = rest.split_once(") features: ").expect(&long.stdout);
    assert!(built == "commit unknown" || commit_and_date(built), "{built}");
    let rest = rest.strip_suffix('\n').expect("one line");
    let platform = format!("mimalloc, tls; linux {} ", std::env::consts::ARCH);
    let linked = rest.strip_prefix(&platform).expect(rest);
    assert!(linked.starts_with("dynamic") || linked.starts_with("static"), "{linked}");
}

/// `a8f9c83d21, 2026-11-21`, perhaps `-dirty`.
fn commit_and_date(text: &str) -> bool {
    let Some((commit, date)) = text.split_once(", ") else { return false };
    let commit = commit.strip_suffix("-dirty").unwrap_or(commit);
    let is_date = date.split('-').map(str::len).eq([4, 2, 2]);
    commit.len() == 10 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) && is_date
}

#[test]
fn an_application_reports_its_own_version_and_that_of_simurgh() {
    let dir = directory(&[]);
    let long = run_own(dir.path(), &["--version"]).stdout;
    let version = env!("CARGO_PKG_VERSION");
    assert!(long.starts_with(&format!("own 0.3.1, on simurgh {version} (")), "{long}");
    assert_eq!(run_own(dir.path(), &["-V"]).stdout, "own 0.3.1\n");
    let script = run_own(dir.path(), &["completions", "bash"]).stdout;
    assert!(script.contains("complete -F _own") && script.contains("--idle-timeout"), "{script}");
}

#[test]
fn running_server_reports_its_version() {
    let long = run(directory(&[]).path(), &["--version"]).stdout;
    let commit = long.split(['(', ',', ')']).nth(1).unwrap().to_owned();
    let commit = if commit == "commit unknown" { String::new() } else { commit };
    let server = Server::start("", &["--listen", "127.0.0.1:0", "--drain-time", "0s"]);
    let url = format!("http://{}", server.addresses[0]);
    let seen = run(directory(&[]).path(), &["observe", "--once", "--json", &url]).stdout;
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["overview"]["commit"], commit.as_str());
    let page = run(directory(&[]).path(), &["observe", "--health", &url]);
    assert_eq!(page.stdout, "ok\n");
    server.signal("TERM");
    let (_, log) = server.ended();
    assert!(log.contains(&format!("commit=\"{commit}\"")), "{log}");
    let gone = run(directory(&[]).path(), &["observe", "--health", &url]);
    assert_eq!((gone.status.code(), gone.stdout.as_str()), (Some(1), ""));
    assert!(gone.stderr.contains("does not answer"), "{}", gone.stderr);
}

/// The build script, run on a separate tree.
struct Script {
    binary: PathBuf,
    root: tempfile::TempDir,
}

impl Script {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let binary = root.path().join("build-script");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(rustc)
            .args(["--edition", "2024", "-o"])
            .args([&binary, &source])
            .status()
            .unwrap();
        assert!(status.success());
        let script = Self { binary, root };
        fs::create_dir_all(script.tree().join("crates/tools/simurgh-cli/src")).unwrap();
        fs::write(script.source(), "one").unwrap();
        fs::write(script.tree().join("README.md"), "one").unwrap();
        script
    }

    fn tree(&self) -> PathBuf {
        self.root.path().join("outer/tree")
    }

    fn source(&self) -> PathBuf {
        self.tree().join("crates/tools/simurgh-cli/src/lib.rs")
    }

    /// Commit, day, and the files that it watches.
    fn run(&self, env: Option<&str>) -> (String, String, Vec<String>) {
        let mut command = Command::new(&self.binary);
        command.env_remove("SIMURGH_COMMIT").envs(env.map(|commit| ("SIMURGH_COMMIT", commit)));
        // Independent of the user's git settings.
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        let output = command
            .env("CARGO_MANIFEST_DIR", self.tree().join("crates/tools/simurgh-cli"))
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let of = |start: &str| -> Vec<String> {
            text.lines().filter_map(|line| Some(line.strip_prefix(start)?.to_owned())).collect()
        };
        let one = |name: &str| of(&format!("cargo:rustc-env={name}=")).remove(0);
        (one("SIMURGH_BUILD_COMMIT"), one("SIMURGH_BUILD_DATE"), of("cargo:rerun-if-changed="))
    }

    fn git(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .arg("-C")
            .arg(directory)
            .args(["-c", "user.name=test", "-c", "user.email=test@localhost"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_COMMITTER_DATE", "2026-03-04T05:06:07Z")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn commit(&self, directory: &Path) -> String {
        self.git(directory, &["add", "--all"]);
        self.git(directory, &["commit", "--quiet", "--message", "one"]);
        self.git(directory, &["rev-parse", "HEAD"])
    }
}

#[test]
fn sources_without_a_git_repository_have_no_commit() {
    let script = Script::new();
    let none = (String::new(), String::new());
    let (commit, date, watched) = script.run(None);
    assert_eq!((commit, date), none);
    assert_eq!(watched, ["build.rs"]);
    // A copy in another repository does not get its commit.
    let outer = script.root.path().join("outer");
    script.git(&outer, &["init", "--quiet"]);
    script.commit(&outer);
    let (commit, date, _) = script.run(None);
    assert_eq!((commit, date), none);
    // A packager sets the commit.
    let (commit, date, _) = script.run(Some("v1.2.3-4\"} 1\n"));
    assert_eq!((commit.as_str(), date.as_str()), ("v1.2.3-41", ""));
}

#[test]
fn a_published_crate_has_the_commit_it_was_packed_from() {
    let script = Script::new();
    let note = script.tree().join("crates/tools/simurgh-cli/.cargo_vcs_info.json");
    let sha1 = "49c0b605d9a0dcd9223bbe7243d7c1bb284263a5";
    let write = |text: String| fs::write(&note, text).unwrap();
    write(format!("{{\n  \"git\": {{\n    \"sha1\": \"{sha1}\"\n  }}\n}}"));
    assert_eq!(script.run(None).0, "49c0b605d9");
    write(format!("{{\n  \"git\": {{\n    \"sha1\": \"{sha1}\",\n    \"dirty\": true\n  }}\n}}"));
    let (commit, date, _) = script.run(None);
    assert_eq!((commit.as_str(), date.as_str()), ("49c0b605d9-dirty", ""));
    write("{}".into());
    assert_eq!(script.run(None).0, "");
    assert_eq!(script.run(Some("v1")).0, "v1");
}

#[test]
fn commit_is_head_and_marked_dirty_after_a_change() {
    let script = Script::new();
    let tree = script.tree();
    script.git(&tree, &["init", "--quiet", "--initial-branch", "main"]);
    let first = script.commit(&tree);
    let (commit, date, watched) = script.run(None);
    assert_eq!((commit.as_str(), date.as_str()), (&first[..10], "2026-03-04"));
    for part in
        [".git/HEAD", ".git/logs/HEAD", ".git/refs/heads/main", "crates/tools/simurgh-cli/src"]
    {
        assert!(watched.iter().any(|path| path.ends_with(part)), "{part} is not in {watched:#?}");
    }
    for path in &watched {
        assert!(path == "build.rs" || Path::new(path).exists(), "{path}");
    }
    fs::write(tree.join("README.md"), "two").unwrap();
    fs::write(tree.join("crates/notes"), "new").unwrap();
    assert_eq!(script.run(None).0, first[..10], "no binary is made of these");
    fs::write(script.source(), "two").unwrap();
    assert_eq!(script.run(None).0, format!("{}-dirty", &first[..10]));
    let second = script.commit(&tree);
    assert_ne!(first, second);
    assert_eq!(script.run(None).0, second[..10]);
    // A second worktree has its history in another directory.
    let beside = script.root.path().join("beside");
    script.git(&tree, &["worktree", "add", "--quiet", beside.to_str().unwrap(), "HEAD~1"]);
    let other = Script { binary: script.binary.clone(), root: tempfile::tempdir().unwrap() };
    fs::create_dir_all(other.root.path().join("outer")).unwrap();
    std::os::unix::fs::symlink(&beside, other.tree()).unwrap();
    assert_eq!(other.run(None).0, first[..10]);
}
