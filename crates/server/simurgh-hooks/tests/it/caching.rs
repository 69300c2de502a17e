//! Cached and shared answers.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use simurgh_hooks::{Asked, CacheInputs, FailureKind, Hook, Kind, Question, Verdict};

use crate::support::app::{App, Reply, ok, status};
use crate::support::{
    ask, begin, cacheable, connected, failure, joined, question, reason, start, until, verdict,
};

fn of_user(user: &str) -> Question {
    let key = vec![user.as_bytes().to_vec(), b"rooms:7".to_vec()];
    let cache = Some(Box::new(CacheInputs { key, user: Some(user.to_owned()), id: None }));
    Question { cache, ..question(Kind::Join) }
}

fn is_cached(hook: &Arc<Hook>, question: Question) -> bool {
    matches!(hook.ask(question), Asked::Now(_))
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test]
async fn grant_is_used_again_without_a_question() {
    let app = App::new(|_, _| Reply::Answer(ok(r#"{"user":"1","expires_in":60,"cache_for":60}"#)));
    let (_hooks, hook) = start(app.listen().await);
    let first = connected(&ask(&hook, cacheable(Kind::Connect, "a")).await);
    let second = connected(&ask(&hook, cacheable(Kind::Connect, "a")).await);
    assert_eq!(first.user, second.user);
    let (first, second) = (first.expires_at.unwrap(), second.expires_at.unwrap());
    assert!(second.abs_diff(first) <= 1, "it counts from the first answer");
    assert_eq!(app.asked(), 1);
    ask(&hook, cacheable(Kind::Connect, "b")).await;
    ask(&hook, cacheable(Kind::Refresh, "a")).await;
    assert_eq!(app.asked(), 3, "other inputs and kinds are other questions");
    let figures = hook.figures();
    let connect = figures.questions[Kind::Connect.index()];
    assert_eq!((connect.cache_hits, connect.cache_misses), (1, 2));
    assert!(figures.cache_bytes > 0);
}

#[tokio::test]
async fn answer_without_cache_for_is_not_cached() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, hook) = start(app.listen().await);
    for asked in 1..3 {
        joined(&ask(&hook, cacheable(Kind::Join, "a")).await);
        assert_eq!(app.asked(), asked);
    }
}

#[tokio::test]
async fn nothing_is_cached_if_the_hook_caches_nothing() {
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(ok(r#"{"cache_for":60}"#)),
        _ => Reply::Answer(status(403, "", "")),
    });
    let mut config = app.listen().await;
    config.cache_max = None;
    let (_hooks, hook) = start(config);
    for asked in 1..4 {
        ask(&hook, cacheable(Kind::Join, "a")).await;
        assert_eq!(app.asked(), asked);
    }
}

#[tokio::test]
async fn refusal_is_cached_for_one_address() {
    let app =
        App::new(|_, _| Reply::Answer(status(403, "", r#"{"reason":"no","retry_after":60}"#)));
    let (_hooks, hook) = start(app.listen().await);
    for _ in 0..2 {
        assert_eq!(reason(&ask(&hook, cacheable(Kind::Join, "a")).await), "no");
    }
    assert_eq!(app.asked(), 1);
    let mut other = cacheable(Kind::Join, "a");
    other.client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    ask(&hook, other).await;
    assert_eq!(app.asked(), 2);
}

#[tokio::test]
async fn void_grants_of_a_user_are_asked_again() {
    let app = App::new(|_, _| Reply::Answer(ok(r#"{"cache_for":60}"#)));
    let (hooks, hook) = start(app.listen().await);
    for user in ["1", "2"] {
        joined(&ask(&hook, of_user(user)).await);
    }
    hooks.shared().void(Some("1"), now_ms() + 1);
    assert!(is_cached(&hook, of_user("2")));
    assert!(!is_cached(&hook, of_user("1")));
    hooks.shared().void(None, now_ms() + 1);
    assert!(!is_cached(&hook, of_user("2")));
}

#[tokio::test]
async fn answer_to_a_question_from_before_a_revocation_lets_nobody_in() {
    let app = App::new(|_, _| Reply::Held(ok(r#"{"user":"1","cache_for":60}"#)));
    let (hooks, hook) = start(app.listen().await);
    let asked = begin(&hook, cacheable(Kind::Connect, "a"));
    until(|| app.asked() == 1).await;
    hooks.shared().void(Some("1"), now_ms() + 1);
    app.release();
    assert!(matches!(verdict(asked).await, Verdict::Failed(_)));
    assert!(!is_cached(&hook, cacheable(Kind::Connect, "a")));
}

#[tokio::test]
async fn equal_questions_share_an_answer_that_may_be_cached() {
    let app = App::new(|_, _| Reply::Held(ok(r#"{"user":"1","cache_for":60}"#)));
    let (_hooks, hook) = start(app.listen().await);
    let asked: Vec<_> = (0..5).map(|_| begin(&hook, cacheable(Kind::Connect, "a"))).collect();
    until(|| app.asked() == 1).await;
    assert_eq!(hook.figures().waiting, 4);
    app.release();
    for asked in asked {
        assert_eq!(connected(&verdict(asked).await).user.as_deref(), Some("1"));
    }
    assert_eq!((app.asked(), hook.figures().shared), (1, 4));
}

#[tokio::test]
async fn equal_questions_are_sent_if_the_answer_may_not_be_cached() {
    let app = App::new(|number, _| match number {
        0 => Reply::Held(ok(r#"{"user":"guest-0"}"#)),
        _ => Reply::Answer(ok(&format!(r#"{{"user":"guest-{number}"}}"#))),
    });
    let (_hooks, hook) = start(app.listen().await);
    let asked: Vec<_> = (0..3).map(|_| begin(&hook, cacheable(Kind::Connect, "a"))).collect();
    until(|| app.asked() == 1).await;
    app.release();
    let mut users = Vec::new();
    for asked in asked {
        users.extend(connected(&verdict(asked).await).user);
    }
    users.sort();
    assert_eq!(users, ["guest-0", "guest-1", "guest-2"]);
}

#[tokio::test]
async fn refusal_is_shared_with_questions_of_the_same_address_only() {
    let app = App::new(|number, _| match number {
        0 => Reply::Held(status(403, "", r#"{"retry_after":60}"#)),
        _ => Reply::Answer(ok("")),
    });
    let (_hooks, hook) = start(app.listen().await);
    let [leader, same] = [(); 2].map(|()| begin(&hook, cacheable(Kind::Join, "a")));
    let mut other = cacheable(Kind::Join, "a");
    other.client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let other = begin(&hook, other);
    until(|| app.asked() == 1).await;
    app.release();
    reason(&verdict(leader).await);
    reason(&verdict(same).await);
    joined(&verdict(other).await);
    assert_eq!(app.asked(), 2);
}

#[tokio::test]
async fn equal_question_takes_the_place_of_one_that_is_gone() {
    let app = App::new(|_, _| Reply::Held(ok(r#"{"cache_for":60}"#)));
    let mut config = app.listen().await;
    config.concurrency = Some(1);
    let (_hooks, hook) = start(config);
    let in_flight = begin(&hook, question(Kind::Join));
    until(|| app.asked() == 1).await;
    let [leader, next, last] = [(); 3].map(|()| begin(&hook, cacheable(Kind::Join, "a")));
    drop(leader);
    app.release();
    verdict(in_flight).await;
    until(|| app.asked() == 2).await;
    app.release();
    joined(&verdict(next).await);
    joined(&verdict(last).await);
    assert_eq!(app.asked(), 2);
}

#[tokio::test]
async fn expired_grant_counts_while_its_question_fails() {
    let body = r#"{"user":"1","cache_for":1,"expires_in":1,"stale_for":60}"#;
    let app = App::new(|number, _| match number {
        0 => Reply::Answer(ok(body)),
        _ => Reply::Answer(status(500, "", "")),
    });
    let (_hooks, hook) = start(app.listen().await);
    let first = connected(&ask(&hook, cacheable(Kind::Connect, "a")).await);
    let mut answer = first;
    while app.asked() < 2 {
        answer = connected(&ask(&hook, cacheable(Kind::Connect, "a")).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((answer.user.as_deref(), answer.stale_for), (Some("1"), 60));
    assert!(answer.expires_at.unwrap() * 1000 > now_ms(), "it ends with stale_for");
    assert_eq!(hook.figures().questions[Kind::Connect.index()].stale, 1);
    let other = ask(&hook, cacheable(Kind::Connect, "b")).await;
    assert_eq!(failure(&other), FailureKind::Failed);
}
