//! The engine's disk is full, and then there is room again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::back_end::{TOPIC, histories, keeps, nodes, plan, publish_to, texts};
use crate::engine::Engine;
use crate::member::Member;
use crate::until;

/// Bytes of each broadcast.
const PAD: usize = 20_000;
/// Many more than there is room for.
const TRIES: usize = 2_000;

/// A small file system in memory, as only root can have one.
struct Small(PathBuf);

impl Small {
    fn mount(directory: &Path) -> Option<Self> {
        let path = directory.join("small");
        fs::create_dir(&path).unwrap();
        if mount("size=16m", &path) {
            return Some(Self(path));
        }
        eprintln!("SKIPPED: no small file system can be mounted (needs root)");
        None
    }

    fn grows(&self) {
        assert!(mount("remount,size=128m", &self.0));
    }
}

fn mount(options: &str, path: &Path) -> bool {
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).output();
    mount.is_ok_and(|it| it.status.success())
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_what_was_confirmed_and_refuses_the_rest_until_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let Some(small) = Small::mount(directory.path()) else { return };
    let configuration = format!("jetstream {{ store_dir: {:?} }}", small.0);
    let Some(mut engine) = Engine::start(&configuration) else { return };
    let [one, two] = nodes(&engine.address(), ["one", "two"]);
    let [pusher, hearer] =
        [("pusher", &one), ("hearer", &two)].map(|(name, node)| Member::joins(name, node, TOPIC));
    let mut confirmed = Vec::new();
    let (mut pushed, mut posted) = (None, None);
    for n in 0..TRIES {
        let text = format!("{n:05} {}", "x".repeat(PAD));
        let is_confirmed = match n % 2 {
            0 => {
                let outcome = pusher.is_answered(&text);
                pushed = Some(outcome.clone()).filter(|it| it != "ok");
                outcome == "ok"
            }
            _ => {
                let (status, said) = publish_to(&two, TOPIC, &text, None);
                posted = Some((status, said)).filter(|it| it.0 != 202);
                status == 202
            }
        };
        if is_confirmed {
            confirmed.push(text);
        }
        if pushed.is_some() && posted.is_some() {
            break;
        }
    }
    println!("{} are stored, then {pushed:?} and {posted:?}", confirmed.len());
    assert!(confirmed.len() > 50, "{} are stored", confirmed.len());
    assert_eq!(pushed.as_deref(), Some("not stored"));
    let words = "the engine of the cluster has not done it, try again later";
    assert_eq!(posted, Some((503, json!({"error": words, "taken": 1}))));
    let line = "POST /api/broadcast";
    let body = json!({"topic": TOPIC, "event": "say", "payload": {"text": "x".repeat(PAD)}});
    let (status, head, _) = one.whole_answer(line, &body.to_string()).unwrap();
    assert!(status == 503 && head.contains("\r\nretry-after: "), "{status} {head}");
    // What is not kept goes on.
    let plain = Member::joins("plain", &one, "plain:a");
    assert_eq!(plain.is_answered("heard"), "ok");
    small.grows();
    engine.kill();
    engine.restart();
    let after = until("something is kept again", || {
        (pusher.is_answered("after") == "ok").then_some("after")
    });
    confirmed.push(after.to_owned());
    // One that has nothing of it yet has all from the engine.
    let late = plan("late", &engine.address()).start();
    keeps(&late);
    let history = histories([&one, &two, &late]);
    let mut found = texts(&history).into_iter();
    let missing = confirmed.iter().filter(|text| !found.any(|it| it == **text)).count();
    assert_eq!(missing, 0, "of {} that were confirmed, in their order", confirmed.len());
    for member in [&pusher, &hearer] {
        member.has_heard_all_of(&history);
        member.has_no_gap();
    }
}
