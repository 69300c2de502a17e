//! Questions, and the application that answers them.

pub(crate) mod app;
pub(crate) mod log;

use std::future::{Future, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use simurgh_hooks::{
    Answer, Asked, CacheInputs, ConnectAnswer, FailureKind, Hook, HookConfig, Hooks, IdOf,
    JoinAnswer, Kind, Question, Verdict,
};
use tokio::time::timeout;

/// Longest time that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

/// A hook with this configuration, which lives as long as the first.
pub(crate) fn start(config: HookConfig) -> (Arc<Hooks>, Arc<Hook>) {
    let name = config.name.clone();
    let hooks = Hooks::start("n1", vec![config], id_of(), None).unwrap();
    let hook = hooks.hook(&name).unwrap();
    (hooks, hook)
}

/// Sockets have the id that the answer names.
pub(crate) fn id_of() -> IdOf {
    Arc::new(|answer| answer.id.clone())
}

/// The data of all questions.
pub(crate) const DATA: &str = r#"{"topic":"rooms:7","payload":"payload-in-log"}"#;

pub(crate) fn question(kind: Kind) -> Question {
    Question { kind, client: CLIENT, forwarded: Arc::new([]), traceparent: None, cache: None }
}

/// A question about the client with this number, which has its own address.
pub(crate) fn question_of(client: u8) -> Question {
    Question { client: IpAddr::from([192, 0, 2, client]), ..question(Kind::Join) }
}

/// A question that may be cached, by this input.
pub(crate) fn cacheable(kind: Kind, input: &str) -> Question {
    let key = vec![input.as_bytes().to_vec()];
    let cache = Some(Box::new(CacheInputs { key, user: None, id: None }));
    Question { cache, ..question(kind) }
}

/// A question that was asked, until its verdict.
pub(crate) type Begun = Pin<Box<dyn Future<Output = Verdict> + Send>>;

pub(crate) fn begin(hook: &Arc<Hook>, question: Question) -> Begun {
    match hook.ask(question) {
        Asked::Now(verdict) => Box::pin(ready(verdict)),
        Asked::Later(question) => Box::pin(question.verdict(DATA.into())),
    }
}

pub(crate) async fn verdict(begun: Begun) -> Verdict {
    timeout(PATIENCE, begun).await.expect("a verdict in time")
}

pub(crate) async fn ask(hook: &Arc<Hook>, question: Question) -> Verdict {
    verdict(begin(hook, question)).await
}

/// Waits until a condition holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, holds).await.expect("the condition in time");
}

#[track_caller]
pub(crate) fn failure(verdict: &Verdict) -> FailureKind {
    match verdict {
        Verdict::Failed(failure) => failure.kind,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn connected(verdict: &Verdict) -> ConnectAnswer {
    match verdict {
        Verdict::Allowed(answer) => match &**answer {
            Answer::Connect(answer) => answer.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn joined(verdict: &Verdict) -> JoinAnswer {
    match verdict {
        Verdict::Allowed(answer) => match &**answer {
            Answer::Join(answer) => answer.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn reason(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Refused(refusal) => refusal.reason.clone(),
        other => panic!("{other:?}"),
    }
}
