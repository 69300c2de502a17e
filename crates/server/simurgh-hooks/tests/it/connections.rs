//! Connections: reused, broken, refused, closed.

use std::time::Duration;

use simurgh_hooks::{FailureKind, HookConfig, Kind};

use crate::support::app::{App, Reply, closed_port, ok};
use crate::support::{ask, failure, joined, log, question, start, until};

#[tokio::test]
async fn connection_is_reused() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..3 {
        joined(&ask(&hook, question(Kind::Join)).await);
    }
    assert_eq!(app.connections(), 1);
}

#[tokio::test]
async fn idle_connection_closes() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let mut config = app.listen().await;
    config.idle_timeout = Duration::from_millis(50);
    let (_hooks, hook) = start(config);
    joined(&ask(&hook, question(Kind::Join)).await);
    until(|| app.closed() == 1).await;
    joined(&ask(&hook, question(Kind::Join)).await);
    assert_eq!(app.connections(), 2);
}

#[tokio::test]
async fn broken_reused_connection_is_replaced_once_with_the_same_id() {
    let app = App::new(|number, _| match number {
        1 => Reply::Last(String::new()),
        _ => Reply::Answer(ok("")),
    });
    let (_hooks, hook) = start(app.listen().await);
    joined(&ask(&hook, question(Kind::Join)).await);
    joined(&ask(&hook, question(Kind::Join)).await);
    let [_, broken, again] = <[_; 3]>::try_from(app.requests()).unwrap();
    assert_eq!((broken.connection, again.connection), (0, 1));
    assert_eq!(broken.headers["webhook-id"], again.headers["webhook-id"]);
    assert_eq!(broken.body, again.body);
}

#[tokio::test]
async fn question_is_repeated_only_once() {
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(ok("")),
        _ => Reply::Last(String::new()),
    });
    let (_hooks, hook) = start(app.listen().await);
    joined(&ask(&hook, question(Kind::Join)).await);
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    assert_eq!(app.asked(), 3);
}

#[tokio::test]
async fn question_is_not_repeated_after_the_first_byte_of_an_answer() {
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(ok("")),
        _ => Reply::Last("H".to_owned()),
    });
    let (_hooks, hook) = start(app.listen().await);
    joined(&ask(&hook, question(Kind::Join)).await);
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    assert_eq!(app.asked(), 2);
}

#[tokio::test]
async fn broken_fresh_connection_fails() {
    let app = App::new(|_, _| Reply::Last(String::new()));
    let (_hooks, hook) = start(app.listen().await);
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    assert_eq!(app.asked(), 1);
}

#[tokio::test]
async fn refused_connection_fails_and_decreases_the_limit() {
    let url = format!("http://127.0.0.1:{}", closed_port().await);
    let (_hooks, hook) = start(HookConfig::new("app", url.parse().unwrap()));
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    assert_eq!(hook.figures().limit, 11);
}

#[tokio::test]
async fn link_local_address_is_never_asked() {
    log::collect();
    let url = "http://169.254.169.254/latest".parse().unwrap();
    let (_hooks, hook) = start(HookConfig::new("metadata", url));
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    let lines = log::lines("link-local");
    assert!(lines.iter().any(|line| line.contains("metadata")), "{lines:?}");
}

#[tokio::test]
async fn name_is_resolved() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let mut config = app.listen().await;
    config.url = config.url.to_string().replace("127.0.0.1", "localhost").parse().unwrap();
    let (_hooks, hook) = start(config);
    joined(&ask(&hook, question(Kind::Join)).await);
    assert!(app.requests()[0].headers["host"].starts_with("localhost:"));
}

#[tokio::test]
#[allow(clippy::disallowed_types, reason = "a test has no reactor")]
async fn unix_socket_is_used_with_host_and_path_of_the_url() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let served = std::sync::Arc::clone(&app);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(std::sync::Arc::clone(&served).talk(stream));
        }
    });
    let mut config = HookConfig::new("app", "https://app.internal/simurgh".parse().unwrap());
    config.unix_socket = Some(path);
    let (_hooks, hook) = start(config);
    joined(&ask(&hook, question(Kind::Join)).await);
    let [request] = <[_; 1]>::try_from(app.requests()).unwrap();
    assert_eq!(
        (request.path.as_str(), request.headers["host"].as_str()),
        ("/simurgh/join", "app.internal")
    );
}
