//! `GET /api/stays`, and `/api/notices/`: open stays, dead letters, and paused hooks.

use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use simurgh_shard::cluster_inbox::NodeName;
use simurgh_shard::mail::question::ROWS_MAX;
use simurgh_socket::hooks::NoticesQuery;

use super::control::read;
use super::error::ApiError;
use super::verbs::Authorized;
use crate::notices::{PARTITIONS, ask_everywhere, inbox, partition_of};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StaysQuery {
    topic: Option<String>,
    user: Option<String>,
    partition: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HookQuery {
    hook: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Letters {
    hook: String,
    ids: Vec<String>,
}

/// Open stays, with the log and the number of each partition that they are of. 503 while a
/// partition has no coordinator that knows them all, or two, one of which was replaced: a list
/// without some of them, or of both, would be wrong.
pub(super) async fn stays(
    caller: Authorized,
    query: Result<Query<StaysQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let expected = "expected one of ?topic=NAME, ?user=USER and ?partition=NUMBER (0 to 15)";
    let Query(StaysQuery { topic, user, partition }) =
        query.map_err(|_| ApiError::wrong(expected))?;
    let is_one = usize::from(topic.is_some()) + usize::from(user.is_some());
    let partition = match (&topic, partition) {
        (Some(topic), None) if is_one == 1 => Some(partition_of(topic)),
        (None, None) if is_one == 1 => None,
        (None, Some(text)) if is_one == 0 => match text.parse() {
            Ok(partition) if partition < PARTITIONS => Some(partition),
            _ => return Err(ApiError::wrong(expected)),
        },
        _ => return Err(ApiError::wrong(expected)),
    };
    match &topic {
        Some(topic) => caller.check_topic(topic)?,
        None => caller.check_topic_prefix("")?,
    }
    let (found, _) = ask(&caller, NoticesQuery::Stays { topic, user, partition }).await?;
    if !has_each_once(&found, partition) {
        return Err(ApiError::for_now("another node takes over: try again in some seconds"));
    }
    Ok(Json(found).into_response())
}

/// Whether it has this partition once, or all.
fn has_each_once(found: &Value, partition: Option<u8>) -> bool {
    let known = found["partitions"].as_array().into_iter().flatten();
    let mut known: Vec<_> = known.map(|of| of["partition"].as_u64()).collect();
    known.sort_unstable();
    let wanted = partition.map_or(0..PARTITIONS, |one| one..one + 1);
    known.into_iter().eq(wanted.map(|one| Some(one.into())))
}

/// How many notices hooks have accepted, and how many wait.
pub(super) async fn status(caller: Authorized) -> Result<Response, ApiError> {
    answered(caller, NoticesQuery::Status).await
}

/// The dead letters of a hook.
pub(super) async fn dead(
    caller: Authorized,
    query: Result<Query<HookQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(HookQuery { hook }) = query.map_err(|_| ApiError::wrong("expected ?hook=NAME"))?;
    answered(caller, NoticesQuery::Dead { hook }).await
}

/// Has dead letters delivered again.
pub(super) async fn replay(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    take(caller, &body, true).await
}

/// Deletes dead letters.
pub(super) async fn delete(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    take(caller, &body, false).await
}

async fn take(caller: Authorized, body: &[u8], replay: bool) -> Result<Response, ApiError> {
    let Letters { hook, ids } = read(body)?;
    if ids.len() > ROWS_MAX {
        return Err(ApiError::wrong(format_args!("ids: at most {ROWS_MAX}")));
    }
    answered(caller, NoticesQuery::Take { hook, ids, replay }).await
}

/// Has notices sent again, to a hook that wanted no more or is paused.
pub(super) async fn resume(caller: Authorized, body: Bytes) -> Result<Response, ApiError> {
    let HookQuery { hook } = read(&body)?;
    answered(caller, NoticesQuery::Resume { hook }).await
}

async fn answered(caller: Authorized, query: NoticesQuery) -> Result<Response, ApiError> {
    caller.check_topic_prefix("")?;
    let (mut found, missing) = ask(&caller, query).await?;
    found["missing"] = json!(missing);
    Ok(Json(found).into_response())
}

async fn ask(caller: &Authorized, query: NoticesQuery) -> Result<(Value, Vec<NodeName>), ApiError> {
    let Some(inbox) = inbox(&caller.server) else {
        return Err(ApiError::not_found("notices", "no hook wants notices"));
    };
    if let Some(hook) = query.hook()
        && !inbox.figures().hooks.iter().any(|known| known.hook == hook)
    {
        let error = format!("the hook {hook:?} does not exist, or wants no notices");
        return Err(ApiError::not_found("hook", error));
    }
    ask_everywhere(&caller.server, &inbox, query).await.map_err(ApiError::for_now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b79_list_has_each_partition_from_one_coordinator() {
        let found = |partitions: &[u8]| {
            let known = partitions.iter().map(|it| json!({"partition": it, "n": 7}));
            json!({"partitions": known.collect::<Vec<_>>(), "stays": []})
        };
        let all: Vec<u8> = (0..PARTITIONS).rev().collect();
        assert!(has_each_once(&found(&all), None));
        assert!(has_each_once(&found(&[3]), Some(3)));
        assert!(!has_each_once(&found(&[]), Some(3)), "nobody knows");
        assert!(!has_each_once(&found(&[3, 3]), Some(3)), "two nodes decide");
        assert!(
            !has_each_once(&found(&[&all[1..], &[3]].concat()), None),
            "one lacks, one is twice"
        );
    }
}
