//! The task that gives [`Notices`] its clock, its log and its requests.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use simurgh_cluster::{LogCommand, LogEvent};
use simurgh_history::Epoch;
use simurgh_notices::{
    Batch, Entry, Notices, Outcome, Output, PARTITIONS, Record, Report, Settings, Time, Verdict,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::files::Files;
use super::{Input, LogPlace, NoticesFigures, NoticesInbox, NoticesStart, Outside};
use crate::hook::Hook;
use crate::notice_config::{NoticeConfig, ns};
use crate::shared::{Shared, lock, unix_ms};

/// Records in files are synced to the disk within this time.
const SYNC: Duration = Duration::from_millis(100);
/// Then questions have a turn on this thread.
const OUTPUTS_MAX: usize = 1_000;
/// Files that cannot be opened are tried again after this time.
const RETRY: Duration = Duration::from_secs(5);
/// A server that takes over says after this time that the earlier one has not ended yet.
const LOCKED: Duration = Duration::from_secs(60);
/// Gauges are computed this often.
const GAUGES: Duration = Duration::from_secs(1);

/// The end of a request.
pub(super) struct Finished {
    partition: u8,
    hook: usize,
    batch: Arc<Batch>,
    outcome: Outcome,
    asked: Option<Duration>,
    time: Duration,
}

enum Log {
    /// The number of records, for their places.
    Memory(u64),
    /// `None`: another process has it.
    Files(PathBuf, Option<Box<Files>>),
    Outside,
}

/// Finds the present hook of a name.
pub(crate) type FindHook = Box<dyn Fn(&str) -> Option<Arc<Hook>> + Send>;

/// The task's state.
pub(crate) struct Driver {
    notices: Notices,
    find_hook: FindHook,
    names: Vec<String>,
    shared: Arc<Shared>,
    log: Log,
    outside: Option<Box<dyn Outside>>,
    inputs: mpsc::UnboundedReceiver<Input>,
    inbox: mpsc::WeakUnboundedSender<Input>,
    figures: Arc<Mutex<NoticesFigures>>,
    /// Partitions that are to be followed as soon as the files are free.
    unfollowed: BTreeSet<u8>,
    /// Since when another process has the files.
    locked_at: Option<Instant>,
    started: Instant,
    /// When the files are tried again, or what was written is synced.
    sync_at: Option<Instant>,
    gauges_at: Instant,
}

impl Driver {
    /// A task, and the way to it; `None`: no hook wants notices.
    pub(crate) fn new(
        hooks: &[Arc<Hook>],
        find_hook: FindHook,
        shared: &Arc<Shared>,
        start: NoticesStart,
    ) -> Option<(Self, NoticesInbox)> {
        let settings = settings(hooks, &start)?;
        let names: Vec<String> = settings.hooks.iter().map(|hook| hook.name.to_string()).collect();
        let NoticesStart { node: (id, name), log, outside, .. } = start;
        let log = match log {
            LogPlace::Memory => Log::Memory(0),
            LogPlace::Files(directory) => Log::Files(directory, None),
            LogPlace::Outside => Log::Outside,
        };
        let mut figures = NoticesFigures::default();
        figures.hooks.resize(names.len(), Default::default());
        for (figures, name) in figures.hooks.iter_mut().zip(&names) {
            figures.hook.clone_from(name);
        }
        let (sender, inputs) = mpsc::unbounded_channel();
        let (figures, now) = (Arc::new(Mutex::new(figures)), Instant::now());
        let driver = Self {
            notices: Notices::new((id, &name), settings, outside.is_none(), shared.span()),
            find_hook,
            names,
            shared: Arc::clone(shared),
            log,
            outside,
            inputs,
            inbox: sender.downgrade(),
            figures: Arc::clone(&figures),
            unfollowed: BTreeSet::new(),
            locked_at: None,
            started: now,
            sync_at: Some(now),
            gauges_at: now,
        };
        Some((driver, NoticesInbox { inputs: sender, figures }))
    }

    /// Runs until it is stopped, or nobody can send to it any more.
    pub(crate) async fn run(mut self) {
        loop {
            self.tick();
            for _ in 0..OUTPUTS_MAX {
                let Some(output) = self.notices.poll(self.time()) else { break };
                self.carry_out(output);
            }
            let Ok(input) = timeout_at(self.next(), self.inputs.recv()).await else { continue };
            let mut next = input;
            loop {
                match next {
                    None | Some(Input::Stop) => return self.close(),
                    Some(input) => self.take(input),
                }
                next = match self.inputs.try_recv() {
                    Ok(input) => Some(input),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => None,
                };
            }
        }
    }

    fn time(&self) -> Time {
        let ns = ns(self.started.elapsed()).saturating_add(1);
        Time { ns, unix_ms: unix_ms(SystemTime::now()) }
    }

    fn next(&self) -> Instant {
        let next_ns = self.notices.next_ns();
        let next = next_ns.and_then(|ns| self.started.checked_add(Duration::from_nanos(ns)));
        next.into_iter().chain(self.sync_at).fold(self.gauges_at, Instant::min)
    }

    fn take(&mut self, input: Input) {
        let time = self.time();
        match input {
            Input::Sightings(sightings) => {
                for sighting in sightings {
                    match sighting.ended {
                        None => self.notices.begin(sighting.key, time),
                        Some(reason) => self.notices.end(&sighting.key, reason, time),
                    }
                }
            }
            Input::Report(from, report, answer) => {
                let verdict = match Report::decode(&report) {
                    Ok(report) => self.notices.report(from, &report, time),
                    Err(_) => Verdict::NotCoordinator,
                };
                // Nobody waits for it any more.
                let _ = answer.send(verdict);
            }
            Input::Answered(partition, call, verdict) => {
                self.notices.answered(partition, call, verdict, time);
            }
            Input::Log(event) => self.event(event, time),
            Input::Finished(finished) => self.finished(&finished, time),
            Input::Query(query, answer) => {
                self.gauges();
                let figures = lock(&self.figures).clone();
                let _ = answer.send(query.answer(&mut self.notices, &figures));
            }
            Input::Stop => {}
        }
    }

    fn event(&mut self, event: LogEvent, time: Time) {
        let notices = &mut self.notices;
        match event {
            LogEvent::Begun { partition, epoch, records } => {
                if let Some(coordinator) = notices.coordinator_mut(partition) {
                    coordinator.begun(epoch, decoded(records), time);
                }
            }
            LogEvent::Next { partition, place, record } => {
                if let Some(coordinator) = notices.coordinator_mut(partition) {
                    for (place, record) in decoded(vec![(place, record)]) {
                        coordinator.read(place, record, time);
                    }
                }
            }
            LogEvent::Again { partition, records, is_all } => {
                if let Some(coordinator) = notices.coordinator_mut(partition) {
                    coordinator.read_again(decoded(records), is_all);
                }
            }
            LogEvent::AppendFailed(partition) => {
                if let Some(coordinator) = notices.coordinator_mut(partition) {
                    coordinator.append_failed(time);
                }
                lock(&self.figures).failed_appends += 1;
            }
            LogEvent::Peers { peers, is_candidate } => notices.set_peers(peers, is_candidate, time),
        }
    }

    fn finished(&mut self, finished: &Finished, time: Time) {
        let Finished { partition, hook, batch, outcome, asked, time: took } = finished;
        if let Some(figures) = lock(&self.figures).hooks.get_mut(*hook) {
            figures.sent(batch, outcome, *took);
        }
        let (asked_ns, random) = (asked.map(ns), self.shared.span());
        self.notices.finished((*partition, *hook, batch), outcome, asked_ns, random, time);
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Report(node, call, report) => {
                if let Some(outside) = &self.outside {
                    outside.report(node, report.partition, call, report.encode());
                }
            }
            Output::Follow(partition) => {
                lock(&self.figures).takeovers += 1;
                self.follow(partition);
            }
            Output::Leave(partition) => self.order(|| LogCommand::Leave(partition)),
            Output::Append(partition, records) => self.append(partition, &records),
            Output::Purge(partition, before) => {
                self.order(|| LogCommand::Purge(partition, before));
                if let Log::Files(_, Some(files)) = &mut self.log
                    && let Err(error) = files.purge(partition, before)
                {
                    tracing::warn!(%error, "cannot remove old notices from state_dir");
                }
            }
            Output::ReadAgain(partition, behind) => {
                self.order(|| LogCommand::Read(partition, behind));
                if let Log::Files(_, Some(files)) = &mut self.log {
                    let read = files.read(partition, behind);
                    self.read_again(partition, read);
                }
            }
            Output::Deliver(partition, hook, batch) => self.deliver(partition, hook, batch),
        }
    }

    fn order(&self, command: impl FnOnce() -> LogCommand) {
        if let (Log::Outside, Some(outside)) = (&self.log, &self.outside) {
            outside.log(command());
        }
    }

    fn follow(&mut self, partition: u8) {
        let time = self.time();
        let read = match &mut self.log {
            Log::Outside => return self.order(|| LogCommand::Follow(partition)),
            Log::Memory(_) => Ok((Epoch::from_seed(self.shared.span()), Vec::new())),
            Log::Files(_, None) => {
                self.unfollowed.insert(partition);
                return;
            }
            Log::Files(_, Some(files)) => {
                files.read_all(partition).map(|records| (files.epoch(), records))
            }
        };
        match read {
            Ok((epoch, records)) => {
                if let Some(coordinator) = self.notices.coordinator_mut(partition) {
                    coordinator.begun(epoch, records, time);
                }
            }
            Err(error) => self.lost(&error),
        }
    }

    /// The files cannot be read. If they are damaged, the log begins anew, and hooks get a reset.
    /// If that fails, or reading for another reason, notices wait, and it is tried again.
    fn lost(&mut self, error: &io::Error) {
        let (seed, time) = (self.shared.span(), self.time());
        let Log::Files(_, files) = &mut self.log else { return };
        let is_damaged = [ErrorKind::InvalidData, ErrorKind::NotFound].contains(&error.kind());
        let begun = match files {
            Some(files) if is_damaged => {
                lock(&self.figures).lost_logs += 1;
                tracing::error!(%error, "the log of notices in state_dir is lost: it begins anew");
                files.begin_anew(seed).map(|()| files.epoch())
            }
            _ => Err(io::Error::new(error.kind(), error.to_string())),
        };
        match begun {
            Ok(epoch) => {
                for partition in 0..PARTITIONS {
                    if let Some(coordinator) = self.notices.coordinator_mut(partition) {
                        coordinator.begun(epoch, Vec::new(), time);
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot read or write in state_dir: notices wait");
                *files = None;
                self.unfollowed = (0..PARTITIONS).collect();
                self.sync_at = Some(Instant::now() + RETRY);
            }
        }
    }

    fn read_again(&mut self, partition: u8, read: io::Result<(Vec<(u64, Entry)>, bool)>) {
        match read {
            Ok((records, is_all)) => {
                if let Some(coordinator) = self.notices.coordinator_mut(partition) {
                    coordinator.read_again(records, is_all);
                }
            }
            Err(error) => self.lost(&error),
        }
    }

    fn append(&mut self, partition: u8, records: &[Entry]) {
        self.count_dead(records);
        let time = self.time();
        let places = match &mut self.log {
            Log::Outside => {
                let encode = |record: &Entry| {
                    let mut bytes = Vec::new();
                    record.encode(&mut bytes);
                    bytes
                };
                let encoded = records.iter().map(encode).collect();
                return self.order(|| LogCommand::Append(partition, encoded));
            }
            Log::Memory(last) => {
                let first = *last;
                *last += records.len() as u64;
                Ok((first..*last).collect())
            }
            Log::Files(_, None) => return,
            Log::Files(_, Some(files)) => {
                self.sync_at.get_or_insert_with(|| Instant::now() + SYNC);
                files.append(partition, records)
            }
        };
        let Some(coordinator) = self.notices.coordinator_mut(partition) else { return };
        match places {
            Ok(places) => {
                for (place, record) in places.into_iter().zip(records) {
                    coordinator.read(place, record.clone(), time);
                }
            }
            Err(error) => {
                coordinator.append_failed(time);
                let mut figures = lock(&self.figures);
                figures.failed_appends += 1;
                tracing::warn!(%error, "cannot write notices to state_dir: they wait");
            }
        }
    }

    fn count_dead(&self, records: &[Entry]) {
        for entry in records {
            let Record::Dead { hook, letter } = &entry.record else { continue };
            let mut figures = lock(&self.figures);
            let of = figures.hooks.iter_mut().find(|of| *of.hook == **hook);
            of.into_iter().for_each(|of| of.dead(letter.notice.name()));
            let (notice, status) = (letter.notice.to_string(), letter.status);
            tracing::warn!(%hook, notice, status, "a notice is a dead letter");
        }
    }

    fn deliver(&self, partition: u8, hook: usize, batch: Arc<Batch>) {
        let Some(inbox) = self.inbox.upgrade() else { return };
        let to = self.names.get(hook).and_then(|name| (self.find_hook)(name));
        tokio::spawn(async move {
            let began = Instant::now();
            let (outcome, asked) = match to {
                Some(to) => to.notify(partition, &batch).await,
                None => (Outcome::Failed(0, "the hook was removed".into()), None),
            };
            let time = began.elapsed();
            let finished = Finished { partition, hook, batch, outcome, asked, time };
            // The server ends: it is sent again after the next start.
            let _ = inbox.send(Input::Finished(finished));
        });
    }

    /// Does what is due by the clock.
    fn tick(&mut self) {
        let now = Instant::now();
        if self.sync_at.take_if(|at| *at <= now).is_some() {
            self.open();
            self.sync();
        }
        if now >= self.gauges_at {
            self.gauges_at = now + GAUGES;
            self.gauges();
        }
    }

    /// Opens the files as soon as the process that had them has ended.
    fn open(&mut self) {
        let seed = self.shared.span();
        let Log::Files(directory, files @ None) = &mut self.log else { return };
        match Files::open(directory, seed) {
            Ok(Some(opened)) => *files = Some(Box::new(opened)),
            Ok(None) => {
                if self.locked_at.get_or_insert_with(Instant::now).elapsed() > LOCKED {
                    self.locked_at = None;
                    tracing::warn!("another server has the notices in state_dir: they wait");
                }
                self.sync_at = Some(Instant::now() + SYNC);
                return;
            }
            Err(error) => {
                tracing::error!(%error, "cannot open the log of notices in state_dir: they wait");
                self.sync_at = Some(Instant::now() + RETRY);
                return;
            }
        }
        for partition in std::mem::take(&mut self.unfollowed) {
            self.follow(partition);
        }
    }

    fn sync(&mut self) {
        let Log::Files(_, Some(files)) = &mut self.log else { return };
        for file in files.unsynced() {
            tokio::task::spawn_blocking(move || {
                if let Err(error) = file.sync_data() {
                    tracing::warn!(%error, "cannot write notices to the disk");
                }
            });
        }
    }

    fn gauges(&self) {
        let now_ms = unix_ms(SystemTime::now());
        let mut figures = lock(&self.figures);
        (figures.partitions, figures.stays) = (0, 0);
        for of in &mut figures.hooks {
            (of.waiting, of.oldest) = (0, Duration::ZERO);
        }
        for coordinator in (0..PARTITIONS).filter_map(|it| self.notices.coordinator(it)) {
            figures.partitions += 1;
            figures.stays += coordinator.counts().0;
            for (hook, of) in figures.hooks.iter_mut().enumerate() {
                let (waiting, oldest_ms) = coordinator.waiting(hook);
                of.waiting += waiting;
                let age_ms = oldest_ms.map_or(0, |ms| now_ms.saturating_sub(ms));
                of.oldest = of.oldest.max(Duration::from_millis(age_ms));
            }
        }
    }

    fn close(self) {
        if let Log::Files(_, Some(files)) = self.log
            && let Err(error) = files.close()
        {
            tracing::error!(%error, "cannot write notices to the disk");
        }
    }
}

fn settings(hooks: &[Arc<Hook>], start: &NoticesStart) -> Option<Settings> {
    let wanted = hooks.iter().filter_map(|it| Some((it.name(), it.config().notices.as_ref()?)));
    let settings = NoticeConfig::settings(wanted)?;
    Some(Settings {
        restart_grace_ns: settings.grace_ns.max(ns(start.restart_grace)),
        is_durable: !matches!(start.log, LogPlace::Memory),
        ..settings
    })
}

/// Records that can be read. Others are as if they were not there.
fn decoded(records: Vec<(u64, Bytes)>) -> Vec<(u64, Entry)> {
    let decoded = records.into_iter().filter_map(|(place, record)| {
        let entry = Entry::decode(&record);
        if entry.is_err() {
            tracing::warn!(place, "a record of the log of notices is malformed");
        }
        Some((place, entry.ok()?))
    });
    decoded.collect()
}
