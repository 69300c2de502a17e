//! Answers: good, wrong, too long and none.

use std::time::Duration;

use simurgh_hooks::{FailureKind, Kind, Verdict};

use crate::support::app::{App, Reply, ok, status};
use crate::support::{ask, connected, failure, joined, log, question, reason, start, until};

#[tokio::test]
async fn answer_to_connect_is_passed_on() {
    let body = r#"{"user":42,"claims":{"staff":true},"topics":["rooms:7"]}"#;
    let app = App::new(|_, _| Reply::Answer(ok(body)));
    let (_hooks, hook) = start(app.listen().await);
    let answer = connected(&ask(&hook, question(Kind::Connect)).await);
    assert_eq!(answer.user.as_deref(), Some("42"));
    assert_eq!(answer.topics, ["rooms:7"]);
    let figures = hook.figures().questions[Kind::Connect.index()];
    assert_eq!((figures.allowed, figures.buckets.iter().sum::<u64>()), (1, 1));
}

#[tokio::test]
async fn status_403_refuses_with_the_reason() {
    let app = App::new(|_, _| Reply::Answer(status(403, "", r#"{"reason":"private"}"#)));
    let (_hooks, hook) = start(app.listen().await);
    assert_eq!(reason(&ask(&hook, question(Kind::Join)).await), "private");
}

#[tokio::test]
async fn chunked_answer_is_read_whole() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
        9\r\n{\"publish\r\n7\r\n\":true}\r\n0\r\n\r\n";
    let app = App::new(move |_, _| Reply::Answer(answer.to_owned()));
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..2 {
        assert!(joined(&ask(&hook, question(Kind::Join)).await).publish.is_some());
    }
    assert_eq!(app.connections(), 1);
}

#[tokio::test]
async fn redirect_refuses_and_its_location_is_logged_once() {
    log::collect();
    let redirect = status(302, "location: /login-7?next=/secret\r\n", "");
    let app = App::new(move |_, _| Reply::Answer(redirect.clone()));
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..3 {
        assert_eq!(reason(&ask(&hook, question(Kind::Join)).await), "unauthorized");
    }
    assert_eq!(app.asked(), 3, "a redirect is not followed");
    let lines = log::lines("/login-7");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(!lines[0].contains("secret"));
}

/// B21.
#[tokio::test]
async fn failed_answer_is_logged_once_with_its_status_and_200_bytes() {
    log::collect();
    let body = format!("Traceback:{}", "x".repeat(300));
    let app = App::new(move |_, _| Reply::Answer(status(500, "", &body)));
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..3 {
        assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    }
    let lines = log::lines("Traceback:");
    let shown = format!("status 500, body \"Traceback:{}\"", "x".repeat(190));
    assert!(lines.len() == 1 && lines[0].contains(&shown), "{lines:?}");
}

#[tokio::test]
async fn garbage_and_wrong_types_fail() {
    for answer in [
        ok("[]"),
        ok("{"),
        ok(r#"{"cache_for":"soon"}"#),
        status(500, "", "{}"),
        status(404, "", "{}"),
        "SSH-2.0-OpenSSH_9.2\r\n".to_owned(),
        "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}".to_owned(),
        "HTTP/1.1 200 OK\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1_000_000)),
    ] {
        let text = answer.clone();
        let app = App::new(move |_, _| Reply::Last(text.clone()));
        let (_hooks, hook) = start(app.listen().await);
        let verdict = ask(&hook, question(Kind::Join)).await;
        assert!(matches!(verdict, Verdict::Failed(_)), "{answer:.60}: {verdict:?}");
        assert_eq!(app.asked(), 1);
    }
}

#[tokio::test]
async fn body_of_64_kib_is_read_and_a_longer_one_fails() {
    for (length, is_read) in [(65_536, true), (65_537, false)] {
        let body = format!("{{}}{}", " ".repeat(length - 2));
        let chunked = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
        );
        for answer in [ok(&body), chunked] {
            let app = App::new(move |_, _| Reply::Answer(answer.clone()));
            let (_hooks, hook) = start(app.listen().await);
            let verdict = ask(&hook, question(Kind::Join)).await;
            if is_read {
                joined(&verdict);
            } else {
                assert_eq!(failure(&verdict), FailureKind::Failed);
                until(|| app.closed() == 1).await;
            }
        }
    }
}

#[tokio::test]
async fn endless_body_is_cut() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5f5e100\r\n",
    ] {
        let app = App::new(move |_, _| Reply::Endless(head.to_owned()));
        let (_hooks, hook) = start(app.listen().await);
        let verdict = ask(&hook, question(Kind::Join)).await;
        assert_eq!(failure(&verdict), FailureKind::Failed);
        until(|| app.closed() == 1).await;
        assert!(app.written() < 50_000_000, "{} bytes", app.written());
    }
}

#[tokio::test]
async fn silent_application_times_out_and_its_connection_closes() {
    let app = App::new(|_, _| Reply::Silence);
    let mut config = app.listen().await;
    config.answer_timeout = Duration::from_millis(50);
    let (_hooks, hook) = start(config);
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Timeout);
    until(|| app.closed() == 1).await;
    assert_eq!(hook.figures().questions[Kind::Join.index()].timeout, 1);
}

#[tokio::test]
async fn clock_of_the_application_is_compared() {
    let date = "date: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let app = App::new(move |_, _| Reply::Answer(status(200, date, "")));
    let (_hooks, hook) = start(app.listen().await);
    ask(&hook, question(Kind::Join)).await;
    assert!(hook.figures().clock_difference_s < -60);
}

#[tokio::test]
async fn cookies_and_payloads_are_not_logged() {
    log::collect();
    let app = App::new(|_, _| Reply::Answer(ok(r#"{"reply":"answer-in-log"}"#)));
    let (_hooks, hook) = start(app.listen().await);
    let mut asked = question(Kind::Message);
    asked.forwarded = std::sync::Arc::new([(
        http::header::COOKIE,
        http::HeaderValue::from_static("session=cookie-in-log"),
    )]);
    ask(&hook, asked).await;
    assert_eq!(log::lines("-in-log"), [""; 0]);
}
