//! Notices to an application, with their log in memory and in files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use simurgh_hooks::{
    HookConfig, Hooks, LogPlace, NoticeConfig, NoticesInbox, NoticesQuery, NoticesStart, Secret,
};
use simurgh_notices::{Key, Reason, Sighting};
use tokio::runtime::Runtime;

use crate::support::app::{App, Reply, ok, status};
use crate::support::{PATIENCE, id_of, until};

const ALL: u8 = 63;
const GRACE: Duration = Duration::from_millis(300);

async fn config(app: &Arc<App>) -> HookConfig {
    let notices = NoticeConfig {
        leave_grace: GRACE,
        batch_time: Duration::from_millis(20),
        ..NoticeConfig::new(ALL)
    };
    HookConfig { notices: Some(notices), ..app.listen().await }
}

fn start(config: HookConfig, log: LogPlace) -> (Arc<Hooks>, NoticesInbox) {
    let hooks = Hooks::start("n1", vec![config], id_of(), None).unwrap();
    let inbox = notify(&hooks, log);
    (hooks, inbox)
}

fn notify(hooks: &Arc<Hooks>, log: LogPlace) -> NoticesInbox {
    let restart_grace = Duration::from_millis(500);
    let start = NoticesStart { node: (7, "n1".to_owned()), log, outside: None, restart_grace };
    let by_name = Arc::downgrade(hooks);
    hooks.notify(start, Box::new(move |name| by_name.upgrade()?.hook(name))).unwrap()
}

fn files(directory: &Path) -> LogPlace {
    LogPlace::Files(directory.to_owned())
}

fn member(user: &str) -> Key {
    Key::member("rooms:7", user)
}

fn begin(inbox: &NoticesInbox, user: &str) {
    inbox.sightings(vec![Sighting { key: member(user), ended: None }]);
}

fn end(inbox: &NoticesInbox, user: &str, reason: Reason) {
    inbox.sightings(vec![Sighting { key: member(user), ended: Some(reason) }]);
}

/// All notices that the application has accepted, in order.
fn notices(app: &App) -> Vec<Value> {
    let bodies = app.requests().into_iter().map(|request| {
        assert_eq!(request.path, "/simurgh/notices");
        serde_json::from_str::<Value>(&request.body).unwrap()
    });
    bodies.flat_map(|body| body["data"]["notices"].as_array().unwrap().clone()).collect()
}

/// Those of these types, as their type and user or topic.
fn of_types(app: &App, types: &[&str]) -> Vec<String> {
    let shown = |notice: Value| {
        let kind = notice["type"].as_str().unwrap().to_owned();
        let of = notice["data"]["user"].as_str().or(notice["data"]["topic"].as_str());
        types.contains(&&*kind).then(|| format!("{kind} {}", of.unwrap_or_default()))
    };
    notices(app).into_iter().filter_map(shown).collect()
}

const STAYS: [&str; 4] = ["member.joined", "member.left", "topic.occupied", "topic.vacated"];

async fn resets(app: &App, count: usize) {
    until(|| of_types(app, &["log.reset"]).len() >= count).await;
}

#[tokio::test]
async fn b40_stays_are_reported_once_signed_and_end_after_their_grace() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let secret = Secret::parse(&Secret::generate().unwrap()).unwrap();
    let config = HookConfig { secrets: vec![secret.clone()], ..config(&app).await };
    let (_hooks, inbox) = start(config, LogPlace::Memory);
    resets(&app, 16).await;
    begin(&inbox, "42");
    begin(&inbox, "42");
    until(|| of_types(&app, &STAYS).len() == 2).await;
    // A return within the grace is no end.
    end(&inbox, "42", Reason::Closed);
    end(&inbox, "42", Reason::Closed);
    begin(&inbox, "42");
    tokio::time::sleep(2 * GRACE).await;
    end(&inbox, "42", Reason::Left);
    until(|| of_types(&app, &STAYS).len() == 4).await;
    let expected = ["topic.occupied rooms:7", "member.joined 42", "member.left 42"];
    assert_eq!(of_types(&app, &STAYS), [&expected[..], &["topic.vacated rooms:7"]].concat());
    for request in app.requests() {
        let header = |name: &str| request.headers[name].clone();
        let at = header("webhook-timestamp").parse().unwrap();
        let signature = secret.sign(&header("webhook-id"), at, request.body.as_bytes());
        assert_eq!(header("webhook-signature"), signature);
    }
    let left = notices(&app).into_iter().find(|it| it["type"] == "member.left").unwrap();
    let joined = notices(&app).into_iter().find(|it| it["type"] == "member.joined").unwrap();
    let stay = left["data"]["stay"].as_str().unwrap();
    assert_eq!(
        (&left["id"], &joined["id"]),
        (&json!(format!("{stay}-2")), &json!(format!("{stay}-1")))
    );
    assert_eq!((&left["data"]["reason"], &left["data"]["node"]), (&json!("left"), &json!("n1")));
    assert_eq!((&left["log"], &left["partition"]), (&joined["log"], &joined["partition"]));
    assert!(left["n"].as_u64() > joined["n"].as_u64());
    assert_eq!(left["data"]["since"], joined["timestamp"]);
}

#[tokio::test]
async fn b79_open_stays_are_listed_with_log_and_number() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, inbox) = start(config(&app).await, LogPlace::Memory);
    begin(&inbox, "42");
    inbox.sightings(vec![Sighting { key: Key::user_of("42"), ended: None }]);
    until(|| of_types(&app, &["member.joined", "user.connected"]).len() == 2).await;
    let ask = |topic: Option<&str>, user: Option<&str>| {
        let [topic, user] = [topic, user].map(|name| name.map(ToOwned::to_owned));
        inbox.ask(NoticesQuery::Stays { topic, user, partition: None })
    };
    let of_topic = ask(Some("rooms:7"), None).await.unwrap();
    let kinds = |found: &Value| {
        let stays = found["stays"].as_array().unwrap().iter();
        let mut kinds: Vec<_> = stays.map(|it| it["kind"].as_str().unwrap().to_owned()).collect();
        kinds.sort_unstable();
        kinds
    };
    assert_eq!(kinds(&of_topic), ["member", "topic"]);
    assert_eq!(kinds(&ask(None, Some("42")).await.unwrap()), ["member", "user"]);
    let joined = notices(&app).into_iter().find(|it| it["type"] == "member.joined").unwrap();
    let partitions = of_topic["partitions"].as_array().unwrap();
    let of = partitions.iter().find(|it| it["partition"] == joined["partition"]).unwrap();
    assert_eq!((&of["log"], of["n"].as_u64()), (&joined["log"], Some(2)));
}

/// Runs hooks with the log in this directory until the process is "killed": nothing is written
/// after that.
fn until_killed(directory: &Path, config: HookConfig, work: impl AsyncFnOnce(&NoticesInbox)) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let handle = runtime.handle().clone();
        let hooks = Hooks::start_on(handle, "n1", vec![config], id_of(), None).unwrap();
        let inbox = notify(&hooks, files(directory));
        work(&inbox).await;
        std::mem::forget((hooks, inbox));
    });
    runtime.shutdown_timeout(PATIENCE);
}

#[test]
fn b50_log_in_files_survives_a_killed_process() {
    let outer = Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let config = outer.block_on(config(&app));
    until_killed(directory.path(), config.clone(), async |inbox| {
        resets(&app, 16).await;
        begin(inbox, "gone");
        begin(inbox, "back");
        until(|| of_types(&app, &["member.joined"]).len() == 2).await;
    });
    until_killed(directory.path(), config, async |inbox| {
        begin(inbox, "back");
        until(|| !of_types(&app, &["member.left"]).is_empty()).await;
    });
    let members = of_types(&app, &["member.joined", "member.left"]);
    let unique: std::collections::BTreeSet<_> = members.into_iter().collect();
    let expected = ["member.joined back", "member.joined gone", "member.left gone"];
    assert_eq!(unique.into_iter().collect::<Vec<_>>(), expected);
    let left = notices(&app).into_iter().find(|it| it["type"] == "member.left").unwrap();
    assert_eq!(left["data"]["reason"], "restart");
    assert_eq!(of_types(&app, &["log.reset"]).len(), 16, "no log was lost");
}

#[test]
fn b51_damaged_log_in_files_is_reset() {
    let outer = Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let config = outer.block_on(config(&app));
    until_killed(directory.path(), config.clone(), async |_| resets(&app, 16).await);
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.file_name().unwrap() == "3-0" {
            bytes[9] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    until_killed(directory.path(), config, async |inbox| {
        resets(&app, 32).await;
        assert_eq!(inbox.figures().lost_logs, 1);
    });
}

/// After a start with these changed files nobody returns. Returns how many stays are open then.
fn stays_after(change: impl FnOnce(&Path)) -> usize {
    let outer = Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let config = outer.block_on(config(&app));
    until_killed(directory.path(), config.clone(), async |inbox| {
        resets(&app, 16).await;
        begin(inbox, "42");
        until(|| of_types(&app, &STAYS).len() == 2).await;
    });
    change(directory.path());
    let mut open = 0;
    until_killed(directory.path(), config, async |inbox| {
        // Ids are new, so that no application takes them for known ones.
        let ids = || {
            let all = notices(&app).into_iter().filter(|it| it["type"] == "log.reset");
            all.map(|it| it["id"].to_string()).collect::<std::collections::BTreeSet<_>>()
        };
        until(|| ids().len() == 32).await;
        tokio::time::sleep(3 * GRACE).await;
        let query = NoticesQuery::Stays { topic: None, user: None, partition: None };
        open = inbox.ask(query).await.unwrap()["stays"].as_array().unwrap().len();
    });
    open
}

#[test]
fn b51_lost_log_leaves_no_stay_open_that_nobody_has() {
    let damage = |directory: &Path, partition: u8| {
        let path = directory.join(format!("{partition}-0"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[9] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    // The stays of one partition were read when another one turns out to be damaged.
    assert_eq!(stays_after(|directory| damage(directory, 0)), 0);
    assert_eq!(stays_after(|directory| damage(directory, 15)), 0);
}

#[test]
fn b51_missing_file_of_a_partition_is_a_lost_log() {
    let remove = |directory: &Path| std::fs::remove_file(directory.join("5-0")).unwrap();
    assert_eq!(stays_after(remove), 0);
}

#[tokio::test]
async fn b57_notices_wait_while_the_files_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("notices");
    std::fs::write(&place, "a file in place of the directory").unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, inbox) = start(config(&app).await, files(&place));
    begin(&inbox, "42");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(app.asked(), 0);
    std::fs::remove_file(&place).unwrap();
    until(|| of_types(&app, &STAYS).len() == 2).await;
}

#[tokio::test]
async fn process_that_takes_over_waits_for_the_files_and_continues_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let config = config(&app).await;
    let (_hooks, old) = start(config.clone(), files(directory.path()));
    resets(&app, 16).await;
    begin(&old, "42");
    until(|| of_types(&app, &["member.joined"]).len() == 1).await;
    let (_hooks_of_new, new) = start(config, files(directory.path()));
    begin(&new, "42");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(new.figures().stays, 0, "it has no log yet");
    end(&old, "42", Reason::Closed);
    old.stop();
    until(|| new.figures().stays == 2).await;
    tokio::time::sleep(3 * GRACE).await;
    assert_eq!(of_types(&app, &STAYS).len(), 2, "nothing ended");
    assert_eq!(of_types(&app, &["log.reset"]).len(), 16);
    end(&new, "42", Reason::Left);
    until(|| of_types(&app, &STAYS).len() == 4).await;
}

#[tokio::test]
async fn b56_notice_that_is_not_accepted_is_a_dead_letter_and_can_be_sent_again() {
    let app = App::new(|number, request| {
        let is_joined = request.body.contains("member.joined");
        let refuses = is_joined && number < 40;
        Reply::Answer(if refuses { status(422, "", "no such room") } else { ok("") })
    });
    let mut config = config(&app).await;
    if let Some(notices) = &mut config.notices {
        notices.retry_for = Duration::from_secs(2);
    }
    let (_hooks, inbox) = start(config, LogPlace::Memory);
    resets(&app, 16).await;
    begin(&inbox, "42");
    let dead = || inbox.ask(NoticesQuery::Dead { hook: "app".to_owned() });
    let mut letters = Value::Null;
    for _ in 0..600 {
        letters = dead().await.unwrap()["dead"].clone();
        if !letters.as_array().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let letter = &letters[0];
    let shown = (&letter["status"], &letter["body"], &letter["notice"]["type"]);
    assert_eq!(shown, (&json!(422), &json!("no such room"), &json!("member.joined")));
    // The others go on.
    end(&inbox, "42", Reason::Left);
    until(|| of_types(&app, &["topic.vacated"]).len() == 1).await;
    let asked = app.asked();
    assert!(asked < 40, "{asked}");
    let id = letter["notice"]["id"].as_str().unwrap().to_owned();
    let ids = vec![id.clone()];
    let take = NoticesQuery::Take { hook: "app".to_owned(), ids, replay: true };
    assert_eq!(inbox.ask(take).await.unwrap()["found"], 1);
    until(|| app.asked() > asked).await;
    assert_eq!(notices(&app).last().unwrap()["id"], json!(id));
    assert_eq!(inbox.figures().hooks[0].counts[0][2], 1);
}

#[tokio::test]
async fn b55_hook_that_answers_410_is_sent_nothing_until_it_is_resumed() {
    let app =
        App::new(|number, _| Reply::Answer(status(if number < 16 { 410 } else { 204 }, "", "")));
    let (_hooks, inbox) = start(config(&app).await, LogPlace::Memory);
    until(|| app.asked() > 0).await;
    begin(&inbox, "42");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = app.asked();
    assert!(asked <= 16, "{asked}");
    let mut resumed = 0;
    while of_types(&app, &["member.joined"]).is_empty() && resumed < 100 {
        resumed += 1;
        inbox.ask(NoticesQuery::Resume { hook: "app".to_owned() }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(of_types(&app, &["member.joined"]).len(), 1);
}
