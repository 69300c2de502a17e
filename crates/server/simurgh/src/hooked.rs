//! Applications that decide over HTTP: their thread, their metrics, and their state in `/healthz`.

use std::fmt::{Display, Write};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Weak};

use simurgh_cluster::NodeId;
use simurgh_shard::cluster_inbox::{self, Service};
use simurgh_shard::connection_id::ConnectionId;
use simurgh_shard::mail::Mail;
use simurgh_shard::server::Server;
use simurgh_shard::state_dir;
use simurgh_shard::view::{HookRow, QuestionRow};
use simurgh_socket::UserSocket;
use simurgh_socket::hooks::{
    BUCKETS_US, BreakerState, Cluster, Hook, HookFigures, HookSet, Hooks, Kind, NoticesFigures,
    NoticesInbox, QuestionFigures, RegrantFn,
};

use crate::Error;
use crate::metrics::family;
use crate::questions::body_of;
use crate::secret;

/// The file of cached answers in `state_dir`.
const FILE: &str = "grants";

/// Starts the threads that ask. They precede the shards, which keep only wakers that exist then.
pub(crate) fn start(server: &Server) -> Result<(), Error> {
    let started = |set: &Arc<HookSet>| set.start(&server.config.node_name, cluster(server));
    sets(server).try_for_each(started).map_err(Error::Hooks)?;
    if let Some(directory) = &server.config.state_dir {
        load(server, directory);
    }
    Ok(())
}

/// Begins with the cached answers of the last drain. In a cluster another node may have voided them
/// meanwhile. They are read once: after a crash they may be void, too.
fn load(server: &Server, directory: &Path) {
    let lines = state_dir::read(directory, FILE);
    match std::fs::remove_file(state_dir::path(directory, FILE)) {
        Ok(()) if server.cluster.is_none() => {
            started(server).for_each(|hooks| hooks.shared().load(&lines));
        }
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => tracing::error!(%error, "cannot remove the cached answers of the last start \
            from state_dir, so they are not used"),
    }
}

/// Saves the cached answers at the end of a drain.
pub(crate) fn save(server: &Server) {
    let Some(directory) = server.config.state_dir.as_ref().filter(|_| server.cluster.is_none())
    else {
        return;
    };
    let lines = all(server);
    if !lines.is_empty()
        && let Err(error) = state_dir::write(directory, FILE, &lines)
    {
        tracing::error!(%error, "cannot save the cached answers of hooks in state_dir");
    }
}

/// The cached answers, as lines of the file.
pub(crate) fn all(server: &Server) -> Vec<u8> {
    started(server).flat_map(|hooks| hooks.shared().save()).collect()
}

/// Begins with the cached answers of the process that this one takes over from.
pub(crate) fn restore(server: &Server, lines: &[u8]) {
    started(server).for_each(|hooks| hooks.shared().load(lines));
}

/// The other nodes, if they share a secret with this one.
fn cluster(server: &Server) -> Option<Cluster> {
    let (inbox, secret) = server.cluster.as_ref().zip(server.config.secret_key_base.as_deref())?;
    let inbox = Arc::clone(inbox);
    let secret = secret::derived(secret.as_bytes(), b"simurgh grants");
    Some(Cluster {
        secret,
        send: Box::new(move |bytes| inbox.post(cluster_inbox::Mail::Grants(bytes))),
    })
}

/// Takes over cached answers of another node.
pub(crate) fn receive(server: &Server, grants: &[u8]) {
    started(server).for_each(|hooks| hooks.shared().receive(grants));
}

/// Takes over the cached answers of another node, if it is the first that this one meets.
pub(crate) async fn take_over(server: &Server, node: NodeId) {
    let Some(inbox) = &server.cluster else { return };
    for (set, hooks) in (0..).zip(started(server)).filter(|it| it.1.shared().asks_first()) {
        for first in 0..=u8::MAX {
            let call = inbox.call(node, Service::Grants, vec![set, first]);
            let Some(part) = body_of(call).await else { break };
            hooks.shared().receive(&part);
        }
    }
}

/// Answers another node.
pub(crate) fn serve(server: &Server, part: &[u8]) -> (u16, Vec<u8>) {
    let &[set, first] = part else { return (400, Vec::new()) };
    let hooks = started(server).nth(set.into());
    hooks.map_or((404, Vec::new()), |hooks| (200, hooks.shared().part(first)))
}

/// Starts what goes on as long as the server runs: keys of tokens at URLs are read, and grants that
/// end are refreshed.
pub(crate) fn go_on(server: &Arc<Server>) {
    let keys = server.user_sockets.iter().filter_map(UserSocket::keep_keys_fresh);
    server.spawn_until_reload(keys.collect());
    for set in sets(server) {
        server.spawn(Arc::clone(set).refresh(regrant(Arc::downgrade(server))));
    }
}

/// A set of hooks, and what it publishes.
type PreparedHooks = (Arc<HookSet>, Arc<Hooks>);

/// The hooks of a reload, and keys that their sockets need. Nothing asks them yet.
pub(crate) fn prepare(server: &Server) -> Result<Vec<PreparedHooks>, Error> {
    let Some(runtime) = server.runtime.get() else { return Ok(Vec::new()) };
    for has_keys in server.user_sockets.iter().filter_map(UserSocket::has_keys) {
        if !runtime.block_on(has_keys) {
            return Err(Error::NoKeys);
        }
    }
    let prepared = |set: &Arc<HookSet>| {
        let hooks = set.prepare(&server.config.node_name, runtime.clone(), cluster(server));
        Ok((Arc::clone(set), hooks.map_err(Error::Hooks)?))
    };
    sets(server).map(prepared).collect()
}

fn regrant(server: Weak<Server>) -> RegrantFn {
    Box::new(move |connection, grant| {
        if let (Some(server), Ok(ConnectionId { shard, key, .. })) =
            (server.upgrade(), connection.parse())
        {
            server.post_to(shard, Mail::Regrant(key, grant));
        }
    })
}

/// The sets of hooks, each once: user sockets may share one.
fn sets(server: &Server) -> impl Iterator<Item = &Arc<HookSet>> {
    let mut sets: Vec<&Arc<HookSet>> = Vec::new();
    for set in server.user_sockets.iter().filter_map(|own| own.parts().hooks.as_ref()) {
        if !sets.iter().any(|known| Arc::ptr_eq(known, set)) {
            sets.push(set);
        }
    }
    sets.into_iter()
}

/// The threads that ask, of all sets.
fn started(server: &Server) -> impl Iterator<Item = Arc<Hooks>> {
    sets(server).filter_map(|set| set.started())
}

/// All hooks that are started.
fn hooks(server: &Server) -> impl Iterator<Item = Arc<Hook>> {
    started(server).flat_map(|it| it.all().to_vec())
}

/// The names of hooks whose breaker is not closed.
pub(crate) fn degraded(server: &Server) -> Vec<String> {
    let failing = hooks(server).filter(|hook| hook.state() != BreakerState::Closed);
    failing.map(|hook| hook.name().to_owned()).collect()
}

/// The figures of all hooks, for the observer.
pub(crate) fn rows(server: &Server) -> Vec<HookRow> {
    let notices = inbox(server).map(|inbox| inbox.figures()).unwrap_or_default();
    hooks(server).map(|hook| row(hook.name(), &hook.figures(), &notices)).collect()
}

fn row(name: &str, figures: &HookFigures, notices: &NoticesFigures) -> HookRow {
    let stays = ("stays", notices.stays as u64);
    let of_hook = notices.hooks.iter().filter(|of| of.hook == name);
    let notices = of_hook.flat_map(|of| of.rows().into_iter().chain([stays]));
    let questions = Kind::ALL.iter().zip(&figures.questions).map(|(kind, of)| QuestionRow {
        question: kind.word().to_owned(),
        outcomes: OUTCOMES.iter().map(|(word, read)| ((*word).to_owned(), read(of))).collect(),
        cache_hits: of.cache_hits,
        mean_us: of.sum_us / of.buckets.iter().sum::<u64>().max(1),
    });
    let breaker = STATES.iter().find(|(state, _)| *state == figures.breaker);
    HookRow {
        name: name.to_owned(),
        breaker: breaker.map_or("", |(_, word)| word).to_owned(),
        gauges: GAUGES.map(|(word, _, read)| (word.to_owned(), read(figures))).into(),
        questions: questions.collect(),
        notices: notices.map(|(word, count)| (word.to_owned(), count)).collect(),
    }
}

/// The name of a hook, and its figures.
type Read = (String, HookFigures);

type Count = fn(&QuestionFigures) -> u64;

const OUTCOMES: [(&str, Count); 7] = [
    ("allowed", |it| it.allowed),
    ("refused", |it| it.refused),
    ("failed", |it| it.failed),
    ("timeout", |it| it.timeout),
    ("overloaded", |it| it.overloaded),
    ("open", |it| it.open),
    ("stale", |it| it.stale),
];
const RESULTS: [(&str, Count); 2] = [("hit", |it| it.cache_hits), ("miss", |it| it.cache_misses)];

/// The set of hooks that wants notices: the first.
pub(crate) fn notifying(user_sockets: &[UserSocket]) -> Option<&Arc<HookSet>> {
    let mut sets = user_sockets.iter().filter_map(|own| own.parts().hooks.as_ref());
    sets.find(|set| !set.wanted_notices().is_empty())
}

/// The way to the task, if a hook wanted notices at the start: a reload changes nothing about that.
pub(crate) fn inbox(server: &Server) -> Option<NoticesInbox> {
    let mut sets = server.user_sockets.iter().filter_map(|own| own.parts().hooks.as_ref());
    sets.find_map(|set| set.notices()).cloned()
}

/// Writes how often keys of tokens that change were read.
fn key_reads(out: &mut String, server: &Server) {
    let reads = server.user_sockets.iter().filter_map(UserSocket::key_reads);
    let Some([good, bad]) = reads.reduce(|[a, b], [c, d]| [a + c, b + d]) else { return };
    let name = "simurgh_token_key_reads_total";
    family(out, name, "counter", "Reads of the keys of tokens.");
    sample(out, name, "result=\"read\"", good);
    sample(out, name, "result=\"failed\"", bad);
}

/// Writes the metrics of all hooks, and of the keys of tokens.
pub(crate) fn render(out: &mut String, server: &Server) {
    key_reads(out, server);
    // Read once, so that all metrics of a hook are of one moment.
    let read = |hook: Arc<Hook>| (hook.name().to_owned(), hook.figures());
    let hooks: Vec<Read> = hooks(server).map(read).collect();
    if hooks.is_empty() {
        return;
    }
    let help = "Questions to applications, by their outcome.";
    counts(out, &hooks, ("simurgh_hook_questions_total", "outcome", help), &OUTCOMES);
    let help = "Questions whose answer may be cached, by whether it was.";
    counts(out, &hooks, ("simurgh_hook_cache_total", "result", help), &RESULTS);
    seconds(out, &hooks);
    for (name, help, read) in GAUGES {
        let name = &format!("simurgh_hook_{name}");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        family(out, name, kind, help);
        for (hook, figures) in &hooks {
            sample(out, name, &format!("hook=\"{hook}\""), read(figures));
        }
    }
    let name = "simurgh_hook_breaker";
    family(out, name, "gauge", "State of the breaker: 1 for the one that it is in.");
    for (hook, figures) in &hooks {
        for (state, word) in STATES {
            let labels = format!("hook=\"{hook}\",state=\"{word}\"");
            sample(out, name, &labels, u8::from(figures.breaker == state));
        }
    }
}

const STATES: [(BreakerState, &str); 3] = [
    (BreakerState::Closed, "closed"),
    (BreakerState::Open, "open"),
    (BreakerState::HalfOpen, "half_open"),
];

type Gauge = fn(&HookFigures) -> i64;

/// One figure of each hook; those that end in `_total` are counters.
const GAUGES: [(&str, &str, Gauge); 6] = [
    ("in_flight", "Questions that were sent and are not answered.", |it| it.in_flight as i64),
    ("waiting", "Questions that wait to be sent.", |it| it.waiting as i64),
    ("limit", "How many questions may be in flight.", |it| it.limit as i64),
    ("shared_total", "Questions that took the answer of an equal one.", |it| it.shared as i64),
    ("cache_bytes", "Memory of the cached answers of all hooks.", |it| it.cache_bytes as i64),
    ("clock_difference_seconds", CLOCK_HELP, |it| it.clock_difference_s),
];
const CLOCK_HELP: &str = "Clock of the application less the server's, by its last answer.";

/// Counters by hook, kind of question and one more label.
fn counts(
    out: &mut String,
    hooks: &[Read],
    (name, label, help): (&str, &str, &str),
    values: &[(&str, Count)],
) {
    family(out, name, "counter", help);
    for (hook, figures) in hooks {
        for (kind, question) in Kind::ALL.iter().zip(&figures.questions) {
            for (word, read) in values {
                let kind = kind.word();
                let labels = format!("hook=\"{hook}\",question=\"{kind}\",{label}=\"{word}\"");
                sample(out, name, &labels, read(question));
            }
        }
    }
}

/// Histograms of the times from sending a question to its answer.
fn seconds(out: &mut String, hooks: &[Read]) {
    let name = "simurgh_hook_question_seconds";
    family(out, name, "histogram", "Time from sending a question to its answer.");
    for (hook, figures) in hooks {
        for (kind, question) in Kind::ALL.iter().zip(&figures.questions) {
            let labels = format!("hook=\"{hook}\",question=\"{}\"", kind.word());
            histogram(out, name, &labels, (&question.buckets, question.sum_us));
        }
    }
}

/// One series of a histogram of times: its buckets, and the sum in microseconds.
pub(crate) fn histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    (buckets, sum_us): (&[u64; BUCKETS_US.len() + 1], u64),
) {
    let bounds = BUCKETS_US.iter().map(|us| (*us as f64 / 1e6).to_string());
    let mut total = 0;
    for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(buckets) {
        total += count;
        sample(out, &format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), total);
    }
    sample(out, &format!("{name}_sum"), labels, sum_us as f64 / 1e6);
    sample(out, &format!("{name}_count"), labels, total);
}

pub(crate) fn sample(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}
