//! Queue, limit, breaker and pauses: they protect the application and the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use simurgh_hooks::{Asked, BreakerState, FailureKind, HookConfig, Hooks, Kind, Verdict};

use crate::support::app::{App, Reply, ok, status};
use crate::support::{
    ask, begin, cacheable, failure, id_of, joined, log, question, question_of, start, until,
    verdict,
};

async fn held_with(limit: u16, queue: usize) -> (Arc<App>, HookConfig) {
    let app = App::new(|_, _| Reply::Held(ok("")));
    let mut config = app.listen().await;
    config.concurrency = Some(limit);
    config.queue = queue;
    (app, config)
}

#[tokio::test]
async fn full_queue_fails_at_once() {
    let (app, config) = held_with(1, 2).await;
    let (_hooks, hook) = start(config);
    let in_flight = begin(&hook, question(Kind::Join));
    until(|| app.asked() == 1).await;
    let waiting = [begin(&hook, question(Kind::Join)), begin(&hook, question(Kind::Join))];
    match hook.ask(question(Kind::Join)) {
        Asked::Now(verdict) => assert_eq!(failure(&verdict), FailureKind::Overloaded),
        Asked::Later(_) => panic!("the queue is full"),
    }
    let figures = hook.figures();
    assert_eq!((figures.in_flight, figures.waiting, figures.limit), (1, 2, 1));
    for asked in [in_flight].into_iter().chain(waiting) {
        app.release();
        joined(&verdict(asked).await);
    }
}

#[tokio::test]
async fn waiting_question_whose_client_is_gone_is_never_sent() {
    let (app, config) = held_with(1, 10).await;
    let (_hooks, hook) = start(config);
    let first = begin(&hook, question(Kind::Join));
    until(|| app.asked() == 1).await;
    let gone = begin(&hook, question(Kind::Message));
    let last = begin(&hook, question(Kind::Refresh));
    assert_eq!(hook.figures().waiting, 2);
    drop(gone);
    assert_eq!(hook.figures().waiting, 1);
    app.release();
    verdict(first).await;
    until(|| app.asked() == 2).await;
    app.release();
    verdict(last).await;
    let paths: Vec<_> = app.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/simurgh/join", "/simurgh/refresh"]);
}

#[tokio::test]
async fn answer_to_a_client_that_is_gone_is_cached() {
    let app = App::new(|_, _| Reply::Held(ok(r#"{"cache_for":60}"#)));
    let (_hooks, hook) = start(app.listen().await);
    let gone = begin(&hook, cacheable(Kind::Join, "a"));
    until(|| app.asked() == 1).await;
    drop(gone);
    app.release();
    until(|| hook.figures().in_flight == 0).await;
    joined(&ask(&hook, cacheable(Kind::Join, "a")).await);
    assert_eq!(app.asked(), 1);
}

#[tokio::test]
async fn waiting_question_fails_in_time_for_an_answer_to_others() {
    let (app, mut config) = held_with(1, 10).await;
    config.answer_timeout = Duration::from_secs(58);
    config.total_timeout = Duration::from_secs(60);
    let (_hooks, hook) = start(config);
    let in_flight = begin(&hook, question(Kind::Join));
    until(|| app.asked() == 1).await;
    let waiting = begin(&hook, question(Kind::Join));
    assert_eq!(failure(&verdict(waiting).await), FailureKind::Timeout);
    app.release();
    joined(&verdict(in_flight).await);
    assert_eq!(app.asked(), 1);
}

#[tokio::test]
async fn no_more_questions_are_in_flight_than_the_limit() {
    let (app, config) = held_with(3, 100).await;
    let (_hooks, hook) = start(config);
    let asked: Vec<_> = (0..12).map(|_| begin(&hook, question(Kind::Join))).collect();
    for answered in 0..12 {
        let sent = (answered + 3).min(12);
        until(|| app.asked() == sent).await;
        assert!(hook.figures().in_flight <= 3);
        app.release();
        until(|| hook.figures().questions[Kind::Join.index()].allowed == answered as u64 + 1).await;
    }
    for asked in asked {
        joined(&verdict(asked).await);
    }
}

#[tokio::test]
async fn address_has_a_quarter_of_a_queue_that_is_half_full() {
    let (app, config) = held_with(1, 100).await;
    let (_hooks, hook) = start(config);
    let mut asked = vec![begin(&hook, question_of(1))];
    until(|| app.asked() == 1).await;
    asked.extend((0..50).map(|_| begin(&hook, question_of(1))));
    assert_eq!(failure(&ask(&hook, question_of(1)).await), FailureKind::Overloaded);
    asked.extend((0..25).map(|_| begin(&hook, question_of(2))));
    assert_eq!(failure(&ask(&hook, question_of(2)).await), FailureKind::Overloaded);
    asked.push(begin(&hook, question_of(3)));
    assert_eq!(hook.figures().waiting, 76);
    drop(asked);
    assert_eq!(hook.figures().waiting, 0);
}

#[tokio::test]
async fn question_that_cannot_be_sent_in_time_fails_at_once() {
    let app = App::new(|_, _| Reply::Slow(Duration::from_millis(50), ok("")));
    let mut config = app.listen().await;
    config.concurrency = Some(1);
    config.total_timeout = config.answer_timeout + Duration::from_millis(500);
    let (_hooks, hook) = start(config);
    for client in 0..50 {
        joined(&ask(&hook, question_of(client)).await);
    }
    let asked: Vec<_> = (0..200).map(|client| begin(&hook, question_of(client))).collect();
    // One takes at least 50 ms.
    let figures = hook.figures();
    assert!(figures.waiting <= 11, "{figures:?}");
    assert!(figures.questions[Kind::Join.index()].overloaded >= 188, "{figures:?}");
    drop(asked);
}

#[tokio::test]
async fn status_429_to_one_client_pauses_nobody() {
    let app = App::new(|_, request| match request.path.as_str() {
        "/simurgh/message" => Reply::Answer(status(429, "retry-after: 30\r\n", "")),
        _ => Reply::Answer(ok("")),
    });
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..40 {
        let kind = failure(&ask(&hook, question(Kind::Message)).await);
        assert_eq!(kind, FailureKind::Rejected);
    }
    assert_eq!((hook.state(), hook.figures().limit), (BreakerState::Closed, 16));
    joined(&ask(&hook, question(Kind::Join)).await);
}

#[tokio::test]
async fn wrong_answers_to_one_client_leave_the_breaker_closed() {
    for (wrong, expected) in [(404, FailureKind::Rejected), (500, FailureKind::Open)] {
        let app = App::new(move |_, _| Reply::Answer(status(wrong, "", "")));
        let (_hooks, hook) = start(app.listen().await);
        for _ in 0..100 {
            failure(&ask(&hook, question_of(1)).await);
        }
        assert_eq!((hook.state(), app.asked()), (BreakerState::Closed, 100));
        // Half of all have to fail where many get wrong answers.
        for client in 0..200 {
            failure(&ask(&hook, question_of(client)).await);
        }
        until(|| hook.state() == BreakerState::Open).await;
        match hook.ask(question_of(9)) {
            Asked::Now(verdict) => assert_eq!(failure(&verdict), expected),
            // The machine was slow, so one may be tried.
            Asked::Later(_) => {}
        }
    }
}

#[tokio::test]
async fn retry_after_pauses_the_hook() {
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(status(503, "retry-after: 1\r\n", "")),
        _ => Reply::Answer(ok("")),
    });
    let (_hooks, hook) = start(app.listen().await);
    let start = Instant::now();
    assert_eq!(failure(&ask(&hook, question(Kind::Join)).await), FailureKind::Failed);
    joined(&ask(&hook, question(Kind::Join)).await);
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn breaker_opens_and_closes_after_one_good_answer() {
    log::collect();
    let app = App::new(|number, _| match number {
        0..=24 => Reply::Answer(status(500, "", "")),
        _ => Reply::Answer(ok("")),
    });
    let mut config = app.listen().await;
    config.name = "breaking".to_owned();
    let (_hooks, hook) = start(config);
    let mut opened = Instant::now();
    // The first four addresses may have caused their failures themselves.
    for client in 0..24 {
        opened = Instant::now();
        assert_eq!(failure(&ask(&hook, question_of(client)).await), FailureKind::Failed);
    }
    match hook.ask(question(Kind::Join)) {
        Asked::Now(Verdict::Failed(failure)) => {
            assert_eq!((failure.kind, app.asked()), (FailureKind::Open, 24));
            assert!(failure.retry_after_ms >= 1000);
        }
        other => assert!(opened.elapsed() >= Duration::from_secs(1), "{other:?}"),
    }
    // The first try fails, too.
    while app.asked() < 26 {
        ask(&hook, question(Kind::Join)).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until(|| hook.state() == BreakerState::Closed).await;
    joined(&ask(&hook, question(Kind::Join)).await);
    assert_eq!(app.asked(), 27);
    let changes = log::lines("breaking");
    let opened = changes.iter().filter(|line| line.contains("too often")).count();
    assert_eq!(opened, 2, "{changes:?}");
}

#[tokio::test]
async fn open_breaker_fails_those_that_wait() {
    let app = App::new(|_, _| Reply::Answer(status(502, "", "")));
    let mut config = app.listen().await;
    config.concurrency = Some(1);
    let (_hooks, hook) = start(config);
    let asked: Vec<_> = (0..50).map(|_| begin(&hook, question(Kind::Join))).collect();
    let mut failures = Vec::new();
    for asked in asked {
        failures.push(failure(&verdict(asked).await));
    }
    assert_eq!(failures[..20], [FailureKind::Failed; 20]);
    // On a loaded machine one question may be tried before the others have failed.
    assert_eq!(failures[21..], [FailureKind::Open; 29]);
    assert!(app.asked() <= 21);
}

#[tokio::test]
async fn replaced_hooks_answer_what_was_asked() {
    let (app, config) = held_with(1, 10).await;
    let (hooks, old) = start(config.clone());
    let asked = [begin(&old, question(Kind::Join)), begin(&old, question(Kind::Join))];
    let (_hooks, new) = start(HookConfig { concurrency: Some(2), ..config });
    drop(hooks);
    assert_eq!(failure(&ask(&old, question(Kind::Join)).await), FailureKind::Failed);
    until(|| app.asked() == 1).await;
    let of_new = begin(&new, question(Kind::Join));
    (0..3).for_each(|_| app.release());
    for asked in asked.into_iter().chain([of_new]) {
        joined(&verdict(asked).await);
    }
    assert_eq!(app.asked(), 3);
}

#[test]
fn wrong_settings_are_refused_with_the_name_of_the_hook() {
    let config = |url: &str| HookConfig::new("app", url.parse().unwrap());
    let error = |configs| Hooks::start("n1", configs, id_of(), None).unwrap_err().to_string();
    let ftp = error(vec![config("ftp://app")]);
    assert_eq!(ftp, "hook \"app\": url: only http:// and https:// are supported");
    let twice = error(vec![config("http://app"), config("http://app")]);
    assert_eq!(twice, "hook \"app\": two hooks have this name");
    let mut tls = config("https://app");
    tls.tls.ca = Some(Vec::new());
    assert_eq!(error(vec![tls]), "hook \"app\": tls_ca: no certificate found");
}
