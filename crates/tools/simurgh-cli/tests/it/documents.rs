//! The commands and settings that README and docs/ show work as copied.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::{Server, directory, run, run_with_envs, simurgh};

/// RFC 8032 §7.1, TEST 1.
const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
    -----END PUBLIC KEY-----\n";
const SECRET: &str = "bG9uZyBlbm91Z2ggZm9yIEhTMjU2LCBhbmQgZm9yIHRlc3RzIGFsb25lIQ";

/// A block of code: its document, its language, its text.
struct Block {
    document: String,
    language: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let documents = docs.chain([root.join("README.md")]);
    let mut blocks = Vec::new();
    for path in documents.filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(&path).unwrap();
        let document = path.file_name().unwrap().to_string_lossy().into_owned();
        for fenced in text.split("```").skip(1).step_by(2) {
            let (language, text) = fenced.split_once('\n').unwrap_or((fenced, ""));
            let (language, text) = (language.to_owned(), text.to_owned());
            if !text.contains("[dependencies]") {
                blocks.push(Block { document: document.clone(), language, text });
            }
        }
    }
    blocks
}

impl Block {
    fn is_scenario(&self) -> bool {
        self.language == "toml" && self.text.contains("[[session]]")
    }

    /// Whether it is a `simurgh.toml`; SCENARIOS shows parts of scenarios.
    fn is_settings(&self) -> bool {
        self.language == "toml" && !self.is_scenario() && !self.document.starts_with("SCENARIOS")
    }
}

/// A directory with this file, and the keys that documents name.
fn with_keys(name: &str, text: &str) -> TempDir {
    let secrets = ["secret", "jwt_secret", "secret_key_base"].map(|name| (name, SECRET));
    // The test may not listen on that port, and has no such directory.
    let text = text.replace("0.0.0.0:443", "127.0.0.1:0").replace("/etc/simurgh/tls/", "");
    let dir = directory(&[&[(name, &*text), ("public.pem", PUBLIC_KEY)][..], &secrets].concat());
    if text.contains("[tls]") {
        crate::tls::write_certificate(dir.path(), (4096, 1, 1));
    }
    dir
}

/// The variables of the environment that a file names. Others would be no keys.
fn envs(text: &str) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("NATS_PASSWORD", SECRET),
        ("SIMURGH_SECRET", SECRET),
        ("HOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ];
    all.into_iter().filter(|(name, _)| text.contains(name)).collect()
}

#[test]
fn flags_in_documents_exist() {
    let none = directory(&[]);
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut checked = 0;
    for Block { document, language, text } in blocks() {
        let lines = text.lines().filter(|_| matches!(&*language, "sh" | "bash" | "console"));
        for line in lines {
            let line = line.trim_start_matches("$ ").replace("cargo run --release -- ", "simurgh ");
            let Some(arguments) = line.strip_prefix("simurgh ") else { continue };
            let words: Vec<&str> = arguments
                .split_whitespace()
                .take_while(|word| !word.starts_with(['#', '|', '>', '&']))
                .collect();
            let command = command_of(&words);
            let help = helps
                .entry(command.join(" "))
                .or_insert_with(|| run(none.path(), &[&command[..], &["--help"]].concat()).stdout);
            assert!(help.contains("Usage: "), "{document}: {line}: no such command");
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split('=').next().unwrap_or(flag);
                let is_known = help.split([' ', ',', '\n', '=']).any(|word| word == flag);
                assert!(is_known, "{document}: {line}: {command:?} has no {flag}");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked} flags: the documents are read wrongly");
}

/// The words that name a command: `load`, `token` and `hook` have further ones.
fn command_of<'a>(words: &[&'a str]) -> Vec<&'a str> {
    const FURTHER: &[&str] = &[
        "init",
        "check",
        "convert",
        "http",
        "agent",
        "resume",
        "reference",
        "sign",
        "inspect",
        "try",
        "secret",
    ];
    let is_command = |at: usize, word: &str| at == 0 || (at == 1 && FURTHER.contains(&word));
    words.iter().enumerate().take_while(|(at, it)| is_command(*at, it)).map(|(_, it)| *it).collect()
}

#[test]
fn scenarios_in_documents_are_valid() {
    for Block { document, text, .. } in blocks().into_iter().filter(Block::is_scenario) {
        let dir = with_keys("scenario.toml", &text);
        let mut arguments = vec!["load", "check", "scenario.toml"];
        if text.contains("chat.example.com") {
            arguments.extend(["--map", "chat.example.com=127.0.0.1"]);
        }
        let ran = run(dir.path(), &arguments);
        assert!(ran.status.success(), "{document}:\n{text}\n{}", ran.stderr);
    }
}

#[test]
fn settings_in_documents_are_valid() {
    let settings: Vec<Block> = blocks().into_iter().filter(Block::is_settings).collect();
    assert!(settings.len() > 10, "{} blocks: the documents are read wrongly", settings.len());
    for Block { document, text, .. } in settings {
        let dir = with_keys("simurgh.toml", &text);
        let ran = run_with_envs(dir.path(), &["config", "--check", "simurgh.toml"], &envs(&text));
        assert!(ran.status.success(), "{document}:\n{text}\n{}", ran.stderr);
    }
}

#[test]
fn settings_in_documents_start_a_server() {
    let settings = blocks().into_iter().filter(Block::is_settings);
    // A cluster needs its broker.
    for Block { document, text, .. } in settings.filter(|it| !it.text.contains("[cluster]")) {
        let dir = with_keys("simurgh.toml", &text);
        let listen = ["--listen", "127.0.0.1:0"];
        let server = Server::start_with_env(&simurgh(), dir, &listen, 1, &envs(&text));
        assert_eq!(server.addresses.len(), 1, "{document}");
    }
}
