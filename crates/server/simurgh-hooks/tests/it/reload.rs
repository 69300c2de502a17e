//! Hooks of a reload, in place of those of a server that runs.

use simurgh_hooks::{Asked, FailureKind, HookConfig, Hooks, Kind, StartError};

use crate::support::app::{App, Reply, ok};
use crate::support::{ask, begin, cacheable, failure, id_of, joined, question, until, verdict};

async fn app() -> (std::sync::Arc<App>, HookConfig) {
    let app = App::new(|_, _| Reply::Held(ok(r#"{"cache_for":60}"#)));
    let config = app.listen().await;
    (app, config)
}

#[tokio::test]
async fn unchanged_hook_continues_and_a_changed_one_finishes_its_questions() {
    let ((same, of_same), (changed, mut of_changed)) = (app().await, app().await);
    of_changed.name = "changed".to_owned();
    let before =
        Hooks::start("n1", vec![of_same.clone(), of_changed.clone()], id_of(), None).unwrap();
    let [kept, old] = [0, 1].map(|at| before.all()[at].clone());
    let waiting = [begin(&kept, cacheable(Kind::Join, "a")), begin(&old, question(Kind::Join))];
    until(|| same.asked() == 1 && changed.asked() == 1).await;
    let queue = of_changed.queue + 1;
    let after = before.followed_by("n1", vec![HookConfig { queue, ..of_changed }, of_same]);
    let after = after.unwrap();
    let [new, still] = [0, 1].map(|at| after.all()[at].clone());
    drop(before);
    assert_eq!(still.figures().in_flight, 1, "it is the same hook");
    match old.ask(question(Kind::Join)) {
        Asked::Now(verdict) => {
            failure(&verdict);
        }
        Asked::Later(question) => {
            let failed = question.verdict("{}".into()).await;
            assert_ne!(failure(&failed), FailureKind::Timeout);
        }
    }
    for (app, begun) in [&same, &changed].into_iter().zip(waiting) {
        app.release();
        joined(&verdict(begun).await);
    }
    // The cache is shared: no question is sent.
    joined(&ask(&still, cacheable(Kind::Join, "a")).await);
    assert_eq!(same.asked(), 1);
    let begun = begin(&new, question(Kind::Join));
    until(|| changed.asked() == 2).await;
    changed.release();
    joined(&verdict(begun).await);
}

#[tokio::test]
async fn mistake_in_a_reload_leaves_the_hooks_as_they_were() {
    let (app, config) = app().await;
    let before = Hooks::start("n1", vec![config.clone()], id_of(), None).unwrap();
    let wrong = before.followed_by("n1", vec![config.clone(), config]);
    assert!(matches!(wrong, Err(StartError::Settings(..))));
    let begun = begin(&before.all()[0], question(Kind::Join));
    until(|| app.asked() == 1).await;
    app.release();
    joined(&verdict(begun).await);
}

#[tokio::test]
async fn hooks_start_on_a_runtime_that_exists() {
    let (app, config) = app().await;
    let runtime = tokio::runtime::Handle::current();
    let hooks = Hooks::start_on(runtime, "n1", vec![config], id_of(), None).unwrap();
    let begun = begin(&hooks.all()[0], question(Kind::Join));
    until(|| app.asked() == 1).await;
    app.release();
    joined(&verdict(begun).await);
}
