//! The milestones, and the scenarios of clients and probes.

use std::fmt::Write as _;
use std::time::Duration;

/// The milestones: those of the 2015 Phoenix benchmark up to two million.
const MILESTONES: [u64; 7] = [10_000, 100_000, 333_000, 450_000, 1_000_000, 1_300_000, 2_000_000];
/// The step between later ones.
const STEP: u64 = 250_000;
/// With TLS, clients come in groups of this size, each once the one before has joined. If
/// handshakes began faster than both sides can finish them, they would all time out.
const TLS_STEP: u64 = 20_000;
/// Clients whose heartbeats are timed during broadcasts to the others. A late reply delays the next
/// heartbeat of its probe, so there are many probes with long pauses: this times the server, not a
/// queue of the probes.
pub(super) const PROBES: u64 = 200;
const HEARTBEAT_MS: u64 = 1000;
/// The topic that all members join.
pub(super) const LOBBY: &str = "rooms:lobby";
/// The topic on which the speaker receives the request to broadcast.
pub(super) const CONTROL_TOPIC: &str = "rooms:road";
/// The message that asks the speaker to broadcast to all.
pub(super) const START_BROADCAST: &str = "road-go";
/// The message to all after which they send heartbeats.
pub(super) const START_HEARTBEATS: &str = "road-beat";

#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// URLs without a path. Several get the same number of members each.
    pub(super) servers: Vec<String>,
    /// New members per second.
    pub(super) rate: u32,
    /// Bytes of text beside the stamp in a broadcast.
    pub(super) text: usize,
    /// The interval of a member's heartbeats, once it sends them.
    pub(super) heartbeats: Option<Duration>,
    /// Members have no sockets, but TUN devices.
    pub(super) tun: bool,
}

/// The milestones up to `to`, which is the last.
pub(super) fn milestones(to: u64) -> Vec<u64> {
    let beyond = (1..).map(|step| MILESTONES[MILESTONES.len() - 1] + step * STEP);
    let mut all: Vec<u64> =
        MILESTONES.into_iter().chain(beyond.take_while(|n| *n < to)).filter(|n| *n < to).collect();
    all.push(to);
    all
}

impl Workload {
    /// Members join up to the next milestone, with TLS to the next step, each time the run is
    /// resumed, and stay. The first is the speaker, which broadcasts once per request.
    pub(super) fn by_milestones(&self, milestones: &[u64]) -> String {
        let mut text = self.head();
        let mut before = 1;
        for milestone in milestones {
            for to in self.steps(before, *milestone) {
                let come = to.saturating_sub(before).max(1);
                before = to;
                let ms = (come * 1000).div_ceil(u64::from(self.rate)).max(1);
                let _ = write!(
                    text,
                    "[[phase]]\nname = \"to {to}\"\nduration = \"{ms}ms\"\nrate = {}\n\
                     max_users = {come}\nweights = {{ speaker = 0 }}\nhold = true\n",
                    self.rate
                );
            }
        }
        // All members stay, and the run continues.
        text += "[[phase]]\nname = \"end\"\nduration = \"24h\"\nrate = 0\nhold = true\n";
        text + &self.sessions()
    }

    /// The numbers of members on the way to `to`, at each of which the run waits for all.
    pub(super) fn steps(&self, from: u64, to: u64) -> Vec<u64> {
        let step = if has_tls(&self.servers) { TLS_STEP } else { u64::MAX };
        let mut steps = Vec::new();
        let mut at = from;
        while steps.is_empty() || at < to {
            at = to.min(at.saturating_add(step));
            steps.push(at);
        }
        steps
    }

    /// Members return all at once, as after the server lost them.
    pub(super) fn at_once(&self, members: u64) -> String {
        let come = members.saturating_sub(1).max(1);
        let text = format!(
            "{}[[phase]]\nname = \"at once\"\nduration = \"1s\"\nrate = {come}\n\
             max_users = {come}\nweights = {{ speaker = 0 }}\n\
             [[phase]]\nname = \"stay\"\nduration = \"24h\"\nrate = 0\n",
            self.head()
        );
        text + &self.sessions()
    }

    fn head(&self) -> String {
        format!(
            "name = \"road\"\nseed = 1\nfollow_stamps = true\n{}{}\
             [timeouts]\nconnect = \"60s\"\nreply = \"60s\"\n\
             [[phase]]\nname = \"speaker\"\nduration = \"1s\"\nrate = 1\n\
             weights = {{ member = 0 }}\nmax_users = 1\n",
            targets(&self.servers),
            if self.tun { "[sources]\ntun = \"road\"\n" } else { "" }
        )
    }

    /// The sessions of members and the speaker. A member whose connection is refused or lost
    /// retries without limit at phoenix.js's intervals, from 10 ms to 5 s.
    fn sessions(&self) -> String {
        let stay = match self.heartbeats {
            None => "{ receive = \"end\" },\n".to_owned(),
            Some(every) => format!(
                "{{ wait = {{ contains = \"{START_HEARTBEATS}\" }}, timeout = \"24h\" }},\n\
                 {{ think = [\"0ms\", \"{0}ms\"] }},\n\
                 {{ loop = 100000000, every = \"{0}ms\", steps = [\n{HEARTBEAT}] }},\n",
                every.as_millis()
            ),
        };
        let text = FILLER.repeat(self.text / FILLER.len() + 1);
        let text = text.get(..self.text).unwrap_or_default();
        format!(
            "[[session]]\nname = \"member\"\nprotocol = \"phoenix\"\n\
             reconnect = {{ min = \"10ms\", max = \"5s\" }}\nsteps = [\n\
             {{ connect = \"/socket/websocket\" }},\n\
             {{ join = \"{LOBBY}\", payload = {{ user = \"member\" }} }},\n{stay}]\n\
             [[session]]\nname = \"speaker\"\nprotocol = \"phoenix\"\nsteps = [\n\
             {{ connect = \"/socket/websocket\" }},\n\
             {{ join = \"{LOBBY}\", payload = {{ user = \"speaker\" }} }},\n\
             {{ join = \"{CONTROL_TOPIC}\", payload = {{ user = \"speaker\" }} }},\n\
             {{ loop = 1000, steps = [\n\
             {{ wait = {{ contains = \"{START_BROADCAST}\" }}, timeout = \"24h\" }},\n\
             {{ push = \"new:msg\", topic = \"{LOBBY}\", \
             payload = {{ body = \"{{{{stamp}}}}{text}\" }}, reply = false }},\n] }},\n\
             {{ receive = \"end\" }},\n]\n"
        )
    }
}

const FILLER: &str = " thirty birds set out to find the Simurgh;";
const HEARTBEAT: &str = "{ push = \"heartbeat\", topic = \"phoenix\" },\n";

pub(super) fn probes(servers: &[String]) -> String {
    format!(
        "name = \"bystanders\"\nseed = 1\n{}\
         [timeouts]\nreply = \"60s\"\n\
         [[phase]]\nduration = \"1s\"\nrate = {PROBES}\n\
         [[phase]]\nduration = \"24h\"\nrate = 0\n\
         [[session]]\nname = \"bystander\"\nprotocol = \"phoenix\"\nsteps = [\n\
         {{ connect = \"/socket/websocket\" }},\n\
         {{ loop = 100000000, every = \"{HEARTBEAT_MS}ms\", steps = [\n{HEARTBEAT}] }},\n]\n",
        targets(servers)
    )
}

fn has_tls(servers: &[String]) -> bool {
    servers.iter().any(|url| url.starts_with("wss:"))
}

/// The servers in a scenario's syntax; a member that returns connects to its own server again. With
/// TLS, clients accept any certificate, because the test chooses the address.
fn targets(servers: &[String]) -> String {
    let mut text = String::from("spread = \"sticky\"\n");
    for url in servers {
        let _ = writeln!(text, "[[target]]\nurl = \"{url}\"");
    }
    if has_tls(servers) {
        text += "[tls]\ninsecure = true\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use simurgh_load::scenario::Overrides;
    use simurgh_load::toml;

    use super::*;

    #[test]
    fn milestones_follow_the_2015_benchmark_and_then_even_steps() {
        assert_eq!(milestones(5), [5]);
        assert_eq!(milestones(60_000), [10_000, 60_000]);
        assert_eq!(milestones(2_000_000), MILESTONES);
        let beyond = milestones(2_600_000);
        assert_eq!(beyond[6..], [2_000_000, 2_250_000, 2_500_000, 2_600_000]);
    }

    #[test]
    fn generated_scenarios_are_valid_and_start_the_exact_number_of_users() {
        let server = "ws://127.0.0.1:4000".to_owned();
        let read = |text: &str| match toml::read(text, Path::new(""), &Overrides::default()) {
            Ok(loaded) => loaded.scenario,
            Err(faults) => panic!("{faults}\n{text}"),
        };
        let servers = vec![server.clone(), "wss://127.0.0.1:4001".to_owned()];
        let crowd = Workload { servers, rate: 7_777, text: 0, heartbeats: None, tun: false };
        let busy =
            Workload { text: 10_000, heartbeats: Some(Duration::from_secs(30)), ..crowd.clone() };
        let spoken = busy.by_milestones(&[100]);
        read(&spoken);
        assert!(spoken.len() > 11_000 && spoken.contains(START_HEARTBEATS));
        let again = read(&busy.at_once(60_000));
        let without_sockets = Workload { tun: true, ..busy.clone() };
        let tun = read(&without_sockets.by_milestones(&[100])).sources.tun;
        assert_eq!(tun.as_deref(), Some("road"));
        let crowd = read(&crowd.by_milestones(&milestones(60_000)));
        let come: u64 = crowd.load.phases.iter().filter_map(|phase| phase.users_max).sum();
        assert_eq!(come, 60_000);
        // TLS: 10,000, 30,000, 50,000, 60,000; and the speaker's phase, and the last.
        assert_eq!(crowd.load.phases.len(), 6);
        assert_eq!(crowd.sessions.len(), 2);
        let come: u64 = again.load.phases.iter().filter_map(|phase| phase.users_max).sum();
        assert_eq!(come, 60_000);
        assert_eq!(crowd.targets.len(), 2);
        read(&probes(&[server]));
    }
}
