//! Derives warnings from each second of a record.

use std::collections::BTreeMap;

use super::Record;
use crate::{Count, ErrorKind, Metric, Stats, Tick, Warning, WorkerId, WorkerTick};

/// Share of a core, in percent, from which a worker's measurements are not reliable.
const BUSY_PERCENT: u64 = 90;
/// For this number of seconds in a row.
const BUSY_TICKS: u32 = 3;
/// Users and steps later than this at the 99th percentile do not follow the scenario, µs.
const LAG_US_MAX: u64 = 10_000;
/// A single stall of a worker of this length makes the times of open requests unreliable, µs.
const STALL_US: u64 = 100_000;

#[derive(Clone, Debug, Default)]
pub(super) struct WarningDetector {
    busy: BTreeMap<WorkerId, u32>,
    arrivals: Lateness,
    steps: Lateness,
    ticks: Lateness,
    /// The longest time that a tick was late, µs.
    stall_us: u64,
}

/// How late something is.
#[derive(Clone, Debug, Default)]
struct Lateness {
    /// Seconds in a row that were late.
    ticks: u32,
    /// The highest share of a core, in percent, of a worker in a second with something late.
    busiest_percent: u64,
}

impl WarningDetector {
    /// Warnings that follow from a new second; `record` does not contain it yet.
    pub(super) fn check(&mut self, record: &Record, tick: &Tick) -> Vec<Warning> {
        let mut warnings = Vec::new();
        self.check_errors(record, tick, &mut warnings);
        self.check_workers(record, tick, &mut warnings);
        let arrivals = &mut self.arrivals;
        let late = arrivals.check(record, tick, Metric::ArrivalLag, Count::LateArrivals);
        if let Some((Stats { p99: p99_us, count: started, .. }, late)) = late {
            let busiest_percent = arrivals.busiest_percent;
            warnings.push(Warning::ArrivalsLate { p99_us, late, started, busiest_percent });
        }
        let steps = &mut self.steps;
        let late = steps.check(record, tick, Metric::StepLag, Count::LateSteps);
        if let Some((Stats { p99: p99_us, count: begun, .. }, late)) = late {
            let busiest_percent = steps.busiest_percent;
            warnings.push(Warning::StepsLate { p99_us, late, begun, busiest_percent });
        }
        warnings.extend(self.check_ticks(record, tick));
        let total = |of| record.counts()[of].saturating_add(tick.all.counts[of]);
        let (count, of) = (total(Count::RequestsOpen), total(Count::Requests));
        if tick.ending.is_some() && count > of / 100 {
            warnings.push(Warning::RequestsOpen { count, of });
        }
        for of in [Count::DeliveriesBeforeSent, Count::StampsForeign, Count::AnswersCut] {
            let count = record.counts()[of].saturating_add(tick.all.counts[of]);
            if tick.all.counts[of] > 0 {
                warnings.push(match of {
                    Count::DeliveriesBeforeSent => Warning::DeliveriesBeforeSent { count },
                    Count::StampsForeign => Warning::ForeignStamps { count },
                    _ => Warning::AnswersCut { count },
                });
            }
        }
        warnings
    }

    fn check_errors(&self, record: &Record, tick: &Tick, warnings: &mut Vec<Warning>) {
        let at = tick.all.connected;
        let first = |kind| record.errors().of_kind(kind) == 0 && tick.all.errors.of_kind(kind) > 0;
        // A worker that knows its limit warns by itself.
        let known = |code: &str| {
            let mut known = record.warnings().iter().chain(&tick.all.warnings);
            known.any(|warning| warning.code() == code)
        };
        let limits = [
            (ErrorKind::NoDescriptors, Warning::DescriptorLimit { at, limit: 0 }),
            (ErrorKind::NoPorts, Warning::PortsExhausted { at }),
            (ErrorKind::NoMemory, Warning::NoMemory { at }),
        ];
        let new = |(kind, warning): &(_, Warning)| first(*kind) && !known(warning.code());
        warnings.extend(limits.into_iter().filter(new).map(|(_, warning)| warning));
        let refused = tick.all.errors.of_kind(ErrorKind::ConnectRefused);
        if refused > 0 {
            let known = record.warnings().iter().find_map(|warning| match warning {
                Warning::ServerRefused { at, .. } => Some(*at),
                _ => None,
            });
            let count = record.errors().of_kind(ErrorKind::ConnectRefused) + refused;
            warnings.push(Warning::ServerRefused { count, at: known.unwrap_or(at) });
        }
    }

    /// Ticks are as late as other steps, or a single one was very late.
    fn check_ticks(&mut self, record: &Record, tick: &Tick) -> Option<Warning> {
        let (now, ticks) = (&tick.all.counts, &mut self.ticks);
        let is_late = now[Count::LateTicks] > now[Count::Ticks] / 100;
        if now[Count::LateTicks] > 0 {
            let percents = tick.workers.iter().map(percent);
            ticks.busiest_percent = percents.chain([ticks.busiest_percent]).max().unwrap_or(0);
            self.stall_us = self.stall_us.max(tick.all.stall_us);
        }
        ticks.ticks = if is_late { ticks.ticks + 1 } else { 0 };
        let total = |of| record.counts()[of].saturating_add(now[of]);
        let (late, all) = (total(Count::LateTicks), total(Count::Ticks));
        let lasting = tick.all.stall_us >= STALL_US || ticks.ticks >= BUSY_TICKS;
        let often = late > (all / 100).max(BUSY_TICKS.into());
        (lasting || tick.ending.is_some() && often).then_some(Warning::GeneratorLate {
            max_us: self.stall_us,
            late,
            ticks: all,
            busiest_percent: ticks.busiest_percent,
        })
    }

    fn check_workers(&mut self, record: &Record, tick: &Tick, warnings: &mut Vec<Warning>) {
        self.busy.retain(|id, _| tick.workers.iter().any(|worker| worker.worker == *id));
        for worker in &tick.workers {
            let percent = percent(worker);
            if percent < BUSY_PERCENT {
                self.busy.remove(&worker.worker);
                continue;
            }
            let ticks = self.busy.entry(worker.worker).or_default();
            *ticks += 1;
            if *ticks >= BUSY_TICKS {
                let host = record.meta().host_name(worker.worker.host);
                let thread = worker.worker.thread;
                warnings.push(Warning::CpuBound { host, thread, percent: percent.min(100) });
            }
        }
    }
}

impl Lateness {
    /// The delays so far in µs, and how many were late, if that is too much.
    fn check(
        &mut self,
        record: &Record,
        tick: &Tick,
        metric: Metric,
        count: Count,
    ) -> Option<(Stats, u64)> {
        if tick.all.counts[count] > 0 {
            let percents = tick.workers.iter().map(percent);
            self.busiest_percent = percents.chain([self.busiest_percent]).max().unwrap_or(0);
        }
        let now = tick.all.times.get(&metric.into());
        let late_now = now.is_some_and(|lag| lag.percentile(99.0) > LAG_US_MAX);
        // Seconds without any do not count.
        if now.is_some() {
            self.ticks = if late_now { self.ticks + 1 } else { 0 };
        }
        let lasting = late_now && self.ticks >= BUSY_TICKS;
        if !lasting && tick.ending.is_none() {
            return None;
        }
        let mut lag = record.times(metric).cloned().unwrap_or_default();
        if let Some(now) = now {
            lag.absorb(now);
        }
        let stats = lag.stats();
        let late = record.counts()[count] + tick.all.counts[count];
        (lasting || stats.p99 > LAG_US_MAX).then_some((stats, late))
    }
}

/// Share of a core.
fn percent(worker: &WorkerTick) -> u64 {
    worker.cpu_ns / 10_000 / worker.span_ms.max(1)
}
