//! All hosts of a run: connected, prepared, commanded and dismissed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use simurgh_load_record::WorkerId;
use simurgh_load_scenario::placement::{self, Room};
use simurgh_load_scenario::{Agent, LOCAL_AGENT, Scenario};
use simurgh_reactor::raise_descriptor_limit;

use crate::RunError;
use crate::command::WorkerCommand;
use crate::fleet::clock::difference;
use crate::fleet::controller::{self, Link};
use crate::fleet::host::{HostEvent, Report, RunClock, event_sender};
use crate::fleet::wire::Greeting;
use crate::pool::{Options, Part, WorkerPool};

/// How long agents may take to start their workers.
const PREPARE: Duration = Duration::from_secs(60);

pub(crate) struct Hosts {
    /// By the number of the host.
    pub(crate) members: Vec<Member>,
}

pub(crate) struct Member {
    host: Host,
    /// Name in reports: `local`, or the agent's address.
    pub(crate) name: String,
    workers: usize,
    capacity: usize,
    lost: bool,
}

enum Host {
    /// This host, and how far its workers' clock is behind the run's.
    Local(Box<WorkerPool>, i64),
    Remote(Link),
}

struct Candidate {
    name: String,
    room: Room,
    link: Option<Link>,
}

/// Both ends of the channel of reports.
type Reports<'a> = (&'a Sender<Report>, &'a Receiver<Report>);

/// Starts the workers of a run on its agents, or on this host alone where it has none. This host is
/// one of several if an agent is called [`LOCAL_AGENT`].
pub(crate) fn assemble(
    scenario: &Arc<Scenario>,
    options: &Options,
    clock: RunClock,
    reports: Reports<'_>,
) -> Result<Hosts, RunError> {
    let run = fastrand::Rng::new().u32(1..);
    if scenario.agents.is_empty() {
        let wanted = || placement::workers(scenario, raise_descriptor_limit().0);
        let workers = options.workers.unwrap_or_else(wanted).max(1) as u64;
        let part = Part { workers, first: 0, of: workers, host: 0, hosts: 1, run };
        let pool = WorkerPool::start(scenario, part, options, &event_sender(0, reports.0))?;
        return Ok(Hosts { members: vec![Member::local(pool, part, clock)] });
    }
    // An agent with weight 0 takes no part.
    let agents: Vec<&Agent> = scenario.agents.iter().filter(|agent| agent.weight > 0.0).collect();
    let candidates = find(&agents, clock, reports.0)?;
    let rooms: Vec<Room> = candidates.iter().map(|candidate| candidate.room).collect();
    let wanted = options.workers.map(|workers| workers as u64);
    let split = placement::split(placement::connections_max(scenario), wanted, &rooms);
    let of = split.iter().sum();
    let host_count = candidates.len() as u64;
    let (mut hosts, mut first) = (Hosts { members: Vec::new() }, 0);
    for (host, ((candidate, agent), workers)) in
        candidates.into_iter().zip(agents).zip(split).enumerate()
    {
        let part = Part { workers, first, of, host: host as u64, hosts: host_count, run };
        first += workers;
        let scenario = as_sent(scenario, agent)?;
        let member = match candidate.link {
            None => {
                let events = event_sender(host as u16, reports.0);
                let pool = WorkerPool::start(&Arc::new(scenario), part, options, &events)?;
                Member::local(pool, part, clock)
            }
            Some(link) => {
                link.prepare(scenario, part, options.receive_stamps);
                let workers = usize::try_from(workers).unwrap_or(usize::MAX);
                let (host, name) = (Host::Remote(link), candidate.name);
                Member { host, name, workers, capacity: 0, lost: false }
            }
        };
        hosts.members.push(member);
    }
    hosts.wait_until_prepared(reports.1)?;
    Ok(hosts)
}

fn find(
    agents: &[&Agent],
    clock: RunClock,
    reports: &Sender<Report>,
) -> Result<Vec<Candidate>, RunError> {
    let found: Vec<Result<Candidate, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0_u16..)
            .zip(agents)
            .map(|(host, agent)| scope.spawn(move || Candidate::find(agent, host, clock, reports)))
            .collect();
        let panicked = |_| Err("the search panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let (mut candidates, mut failed) = (Vec::new(), Vec::new());
    for (found, agent) in found.into_iter().zip(agents) {
        match found {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => failed.push(format!("agent {}: {why}", agent.address)),
        }
    }
    if failed.is_empty() { Ok(candidates) } else { Err(RunError::Agents(failed)) }
}

impl Candidate {
    fn find(
        agent: &Agent,
        host: u16,
        clock: RunClock,
        reports: &Sender<Report>,
    ) -> Result<Self, String> {
        let (greeting, link) = if agent.address == LOCAL_AGENT {
            (Greeting::of_this_host(), None)
        } else {
            let (greeting, link) = controller::find(agent, host, clock, reports)?;
            (greeting, Some(link))
        };
        let Greeting { cores, capacity, .. } = greeting;
        let room = Room { weight: agent.weight, cores, capacity };
        Ok(Self { name: agent.address.clone(), room, link })
    }
}

/// The scenario for one host: with its own addresses, without the other agents, and with numbers
/// exactly as they come out of JSON, since all hosts must compute the same.
fn as_sent(scenario: &Scenario, agent: &Agent) -> Result<Scenario, RunError> {
    let mut scenario = scenario.clone();
    scenario.agents.clear();
    if !agent.addresses.is_empty() {
        scenario.sources.addresses.clone_from(&agent.addresses);
    }
    let text = serde_json::to_vec(&scenario);
    text.and_then(|text| serde_json::from_slice(&text))
        .map_err(|error| RunError::Scenario(format!("it cannot be sent to agents: {error}")))
}

impl Member {
    fn local(pool: WorkerPool, part: Part, clock: RunClock) -> Self {
        let workers = usize::try_from(part.workers).unwrap_or(usize::MAX);
        let (name, capacity) = (LOCAL_AGENT.to_owned(), pool.capacity());
        let offset_ns = difference(clock.ns(), pool.clock_ns());
        Self { host: Host::Local(Box::new(pool), offset_ns), name, workers, capacity, lost: false }
    }
}

impl Hosts {
    fn wait_until_prepared(&mut self, reports: &Receiver<Report>) -> Result<(), RunError> {
        let end = Instant::now() + PREPARE;
        let mut failed = Vec::new();
        while failed.is_empty() && self.waits().next().is_some() {
            let (host, event) = match reports
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(report) => report,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let late = self.waits().map(|member| {
                        let seconds = PREPARE.as_secs();
                        format!("agent {}: its workers did not start in {seconds} s", member.name)
                    });
                    failed.extend(late);
                    break;
                }
            };
            let Some(member) = self.members.get_mut(usize::from(host)) else { continue };
            match event {
                HostEvent::Prepared { capacity } => member.capacity = capacity.max(1),
                HostEvent::Failed { why } => {
                    failed.push(format!("agent {}: cannot join the run: {why}", member.name));
                }
                HostEvent::Lost { why } => {
                    let what = "lost while it started its workers";
                    failed
                        .push(format!("agent {}: {what}: {why}; look at its output", member.name));
                }
                // Workers have nothing to report yet, and no commands can come.
                _ => {}
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(RunError::Agents(failed)) }
    }

    /// Members whose workers are not ready yet.
    fn waits(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.capacity == 0)
    }

    pub(crate) fn workers(&self) -> usize {
        self.members.iter().map(|member| member.workers).sum()
    }

    pub(crate) fn capacity(&self) -> usize {
        let each = self.members.iter().map(|one| one.capacity.saturating_mul(one.workers));
        each.fold(0, usize::saturating_add)
    }

    /// The longest known delay of a command.
    pub(crate) fn way(&self) -> Duration {
        let way = |host: &Host| match host {
            Host::Local(..) => Duration::ZERO,
            Host::Remote(link) => link.way(),
        };
        self.present().map(way).max().unwrap_or_default()
    }

    /// Sends a command, whose times are of the run's clock, to all workers.
    pub(crate) fn send(&self, command: WorkerCommand) {
        self.present().for_each(|host| match host {
            Host::Local(pool, offset_ns) => pool.send(command.by_clock(offset_ns.saturating_neg())),
            Host::Remote(link) => link.command(command),
        });
    }

    /// A worker has reported its end, so the end of its thread is not a loss.
    pub(crate) fn has_stopped(&mut self, id: WorkerId) {
        let member = self.members.get_mut(usize::from(id.host));
        if let Some(Member { host: Host::Local(pool, _), .. }) = member {
            pool.has_stopped(id.thread);
        }
    }

    /// Marks a host as lost. Returns how many workers it had; `None`: it was lost already.
    pub(crate) fn lose(&mut self, host: u16) -> Option<usize> {
        let member = self.members.get_mut(usize::from(host)).filter(|member| !member.lost)?;
        member.lost = true;
        Some(member.workers)
    }

    /// Threads of this host that ended unexpectedly, each once, with the reason; agents report
    /// theirs.
    pub(crate) fn take_lost(&mut self) -> Vec<(WorkerId, String)> {
        let mut lost = Vec::new();
        for (host, member) in (0_u16..).zip(&mut self.members) {
            if let Host::Local(pool, _) = &mut member.host {
                let threads = pool.take_lost().into_iter();
                lost.extend(threads.map(|(thread, why)| (WorkerId { host, thread }, why)));
            }
        }
        lost
    }

    /// Ends all workers at once. Agents are dismissed first, and then waited for.
    pub(crate) fn end(&mut self) {
        for host in self.present() {
            if let Host::Remote(link) = host {
                link.dismiss();
            }
        }
        for member in self.members.drain(..) {
            match member.host {
                Host::Local(pool, _) => drop(pool),
                Host::Remote(link) => link.end(),
            }
        }
    }

    fn present(&self) -> impl Iterator<Item = &Host> {
        self.members.iter().filter(|member| !member.lost).map(|member| &member.host)
    }
}
