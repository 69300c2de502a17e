//! Runs on several hosts, which here are threads of this process: agents behind real sockets, with
//! users that think and gather but load no server. `e2e/wire` uses real hosts.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::outside::{WAIT, eventually};
use simurgh_load::engine::{Options, Outcome, Run, RunError};
use simurgh_load::fleet::Agent;
use simurgh_load::fleet::wire::{
    Greeting, Hello, STRANGER_BYTES_MAX, frame, is_this_version, read,
};
use simurgh_load::record::{Count, Ending, ErrorKind, Record, Warning};
use simurgh_load::report::Outputs;
use simurgh_load::scenario::{Overrides, Scenario};
use simurgh_load::toml;

const TOKEN: &str = "a token";

/// An agent and its log. It listens until the process ends.
struct TestAgent {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl TestAgent {
    fn start() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let log = Arc::new(move |line: &str| kept.lock().unwrap().push(line.to_owned()));
        let any = "127.0.0.1:0".parse().unwrap();
        let agent = Agent::bind(any, TOKEN.to_owned(), log).unwrap();
        let address = agent.address().unwrap();
        thread::spawn(move || agent.run());
        Self { address, lines }
    }

    fn lines_with(&self, what: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(what)).count()
    }

    #[track_caller]
    fn said(&self, what: &str) {
        eventually(&format!("{what:?} in {:?}", self.lines), || self.lines_with(what) > 0);
    }
}

/// A scenario with these agents; `phases` is TOML, so are the `steps` of its one session.
fn scenario(agents: &[(String, f64)], phases: &str, steps: &str) -> Scenario {
    let mut text = format!(
        "seed = 3\n[target]\nurl = \"ws://127.0.0.1:9\"\n{phases}\n\
         [[session]]\nprotocol = \"phoenix\"\nsteps = [{steps}]\n"
    );
    for (address, weight) in agents {
        let token = if address == "local" { "" } else { "token = \"a token\"\n" };
        text += &format!("[[agent]]\naddress = \"{address}\"\n{token}weight = {weight:?}\n");
    }
    match toml::read(&text, Path::new(""), &Overrides::default()) {
        Ok(loaded) => loaded.scenario,
        Err(faults) => panic!("{faults}\n{text}"),
    }
}

const PHASE: &str = "[[phase]]\nduration = \"1s\"\nrate = 200";
const THINK: &str = "{ think = \"300ms\" }";

fn go(run: Run) -> (Outcome, Record) {
    let record = run.record();
    let outcome = run.go(Outputs::new());
    let record = record.lock().unwrap().clone();
    (outcome, record)
}

#[track_caller]
fn prepare(scenario: Scenario) -> Run {
    Run::prepare(scenario, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(agents: &[(String, f64)]) -> Vec<String> {
    match Run::prepare(scenario(agents, PHASE, THINK), &Options::default()) {
        Err(RunError::Agents(why)) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was prepared"),
    }
}

fn started(record: &Record) -> Vec<u64> {
    let mut started = vec![0; record.meta().hosts.len()];
    for (id, worker) in record.workers() {
        started[usize::from(id.host)] += worker.started;
    }
    started
}

#[track_caller]
fn assert_all_well(record: &Record, users: u64) {
    assert_eq!(record.counts()[Count::UsersStarted], users);
    assert_eq!(record.counts()[Count::UsersFinished], users);
    assert_eq!(record.errors().total(), 0, "{:?}", record.errors());
    assert!(record.warnings().iter().all(|w| w.code() != "agent_lost"), "{:?}", record.warnings());
}

#[test]
fn totals_of_two_agents_add_up_and_follow_the_weights() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let named =
        |a: f64, b: f64| [(agents[0].address.to_string(), a), (agents[1].address.to_string(), b)];
    let run = prepare(scenario(&named(1.0, 1.0), PHASE, THINK));
    assert!(run.workers() >= 2 && run.capacity() > 100);
    let (outcome, record) = go(run);
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(record.meta().hosts, agents.each_ref().map(|agent| agent.address.to_string()));
    assert_eq!(started(&record), [100, 100]);
    assert_all_well(&record, 200);
    // The same agents again, with other weights.
    let (outcome, record) = go(prepare(scenario(&named(1.0, 3.0), PHASE, THINK)));
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(started(&record), [50, 150]);
    assert_all_well(&record, 200);
    agents[0].said("its run is over");
}

#[test]
fn local_host_takes_part_only_if_it_is_named() {
    let agent = TestAgent::start();
    let agents = [("local".to_owned(), 1.0), (agent.address.to_string(), 1.0)];
    let (outcome, record) = go(prepare(scenario(&agents, PHASE, THINK)));
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(record.meta().hosts, ["local".to_owned(), agent.address.to_string()]);
    assert_eq!(started(&record), [100, 100]);
    assert_all_well(&record, 200);
    let (_, record) = go(prepare(scenario(&agents[1..], PHASE, THINK)));
    assert_eq!(record.meta().hosts, [agent.address.to_string()]);
    assert_all_well(&record, 200);
}

#[test]
fn phases_wait_and_users_gather_across_hosts() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let agents = agents.each_ref().map(|agent| (agent.address.to_string(), 1.0));
    let phases = "[[phase]]\nduration = \"200ms\"\nrate = 100\nwait_for_users = true\n\
                  [[phase]]\nduration = \"200ms\"\nrate = 50";
    // The first 20 wait for each other, half of them on each host; the last ten do not wait.
    let steps = "{ gather = 20, timeout = \"15s\" }, { think = \"50ms\" }";
    let (outcome, record) = go(prepare(scenario(&agents, phases, steps)));
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(record.phases().values().map(|users| users.started).collect::<Vec<_>>(), [20, 10]);
    assert_all_well(&record, 30);
    assert!(record.at_ms() < 14_000, "it ended by timeouts, after {} ms", record.at_ms());
}

#[test]
fn user_on_one_host_can_end_the_run_on_all_hosts() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let agents = agents.each_ref().map(|agent| (agent.address.to_string(), 1.0));
    let steps = "{ set = \"id\", value = \"{{user_id}}\" },\n\
                 { if = \"id == 20\", steps = [{ abort = \"run\" }] },\n\
                 { think = \"60s\" }";
    let (outcome, record) = go(prepare(scenario(&agents, PHASE, steps)));
    assert_eq!(outcome.ending, Ending::Aborted);
    assert!(record.at_ms() < 14_000);
    let counts = record.counts();
    assert_eq!(
        counts[Count::UsersStarted],
        counts[Count::UsersFinished] + counts[Count::UsersAborted]
    );
    assert_eq!(record.users(), 0);
}

struct Cable {
    address: SocketAddr,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    fn to(agent: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&ends);
        thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let to = TcpStream::connect(agent).unwrap();
                for (mut from, mut to) in [
                    (from.try_clone().unwrap(), to.try_clone().unwrap()),
                    (to.try_clone().unwrap(), from.try_clone().unwrap()),
                ] {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                kept.lock().unwrap().extend([from, to]);
            }
        });
        Self { address, ends }
    }

    fn cut(&self) {
        for end in self.ends.lock().unwrap().iter() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn lost_agent_is_reported_with_its_users_and_the_run_continues() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let cable = Cable::to(agents[1].address);
    let named = [(agents[0].address.to_string(), 1.0), (cable.address.to_string(), 1.0)];
    // The next phase must not wait for lost users.
    let phases = format!("{PHASE}\nwait_for_users = true\n[[phase]]\nduration = \"1s\"\nrate = 20");
    let run = prepare(scenario(&named, &phases, "{ think = \"3s\" }"));
    let record = run.record();
    let going = thread::spawn(move || go(run));
    // Both have reported all users of the first phase.
    eventually("200 users", || record.lock().unwrap().users() == 200);
    cable.cut();
    let (outcome, record) = going.join().unwrap();
    assert_eq!(outcome.ending, Ending::Finished);
    let lost = Warning::AgentLost { host: cable.address.to_string(), users: 100 };
    assert!(record.warnings().contains(&lost), "{:?}", record.warnings());
    assert_eq!(record.errors().of_kind(ErrorKind::WorkerLost), 100);
    assert_eq!(record.errors().total(), 100);
    // 20 users of the second phase, of which the lost agent's are missing too.
    assert_eq!(record.counts()[Count::UsersStarted], 210);
    assert_eq!(record.counts()[Count::UsersFinished], 110);
    assert_eq!(record.users(), 0);
    // That agent lost its controller; it ended its users and is free.
    agents[1].said("its run was ended here");
    let named = agents.each_ref().map(|agent| (agent.address.to_string(), 1.0));
    let (outcome, record) = go(prepare(scenario(&named, PHASE, THINK)));
    assert_eq!(outcome.ending, Ending::Finished);
    assert_all_well(&record, 200);
}

#[test]
fn run_that_lost_all_agents_fails_and_is_recorded() {
    let agent = TestAgent::start();
    let cable = Cable::to(agent.address);
    let run = prepare(scenario(&[(cable.address.to_string(), 1.0)], PHASE, "{ think = \"1m\" }"));
    let record = run.record();
    let going = thread::spawn(move || go(run));
    eventually("users", || record.lock().unwrap().users() > 0);
    cable.cut();
    let (outcome, record) = going.join().unwrap();
    assert_eq!(outcome.ending, Ending::Failed);
    assert_eq!(record.ending(), Some(Ending::Failed));
    assert!(record.errors().of_kind(ErrorKind::WorkerLost) > 0);
}

/// A connection that the test drives.
struct Talk {
    stream: TcpStream,
}

impl Talk {
    fn with(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(WAIT)).unwrap();
        Self { stream }
    }

    fn to(address: SocketAddr) -> Self {
        Self::with(TcpStream::connect(address).unwrap())
    }

    fn say(&mut self, hello: &impl serde::Serialize) {
        self.stream.write_all(&frame(hello).unwrap()).unwrap();
    }

    /// `None`: it was closed instead.
    #[track_caller]
    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Option<T> {
        match read(&mut self.stream, STRANGER_BYTES_MAX) {
            Ok(message) => Some(message),
            Err(error) => match error.kind() {
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => None,
                _ => panic!("{error}"),
            },
        }
    }
}

#[test]
fn agent_closes_unknown_clients_silently_and_logs_one_line_each() {
    let agent = TestAgent::start();
    let mut talk = Talk::to(agent.address);
    talk.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(talk.hear::<Greeting>(), None);
    let mut talk = Talk::to(agent.address);
    talk.stream.write_all(b"\0\0\0\x02[]").unwrap();
    assert_eq!(talk.hear::<Greeting>(), None);
    // It is closed a moment before that is logged.
    eventually("two lines", || agent.lines_with("no controller") == 2);
    let mut talk = Talk::to(agent.address);
    talk.say(&Hello::new("another token".into()));
    assert_eq!(talk.hear::<Greeting>(), None);
    agent.said("refused, wrong token");
    assert_eq!(agent.lines.lock().unwrap().len(), 3, "{:?}", agent.lines);
    // More than it accepts at a time: the others are closed at once, and it continues.
    let silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(agent.address).unwrap()).collect();
    agent.said("others have not authenticated yet");
    drop(silent);
    let named = [(agent.address.to_string(), 1.0)];
    eventually("a run", || {
        Run::prepare(scenario(&named, PHASE, THINK), &Options::default()).is_ok()
    });
}

#[test]
fn version_mismatch_is_reported_by_agent_and_controller() {
    let agent = TestAgent::start();
    let mut talk = Talk::to(agent.address);
    talk.say(&Hello { version: "77.0.0".into(), ..Hello::new(TOKEN.into()) });
    let greeting: Greeting = talk.hear().unwrap();
    assert!(is_this_version(greeting.protocol, &greeting.version) && greeting.busy.is_none());
    assert_eq!(talk.hear::<Greeting>(), None);
    agent.said("refused, it is simurgh 77.0.0");
    agent.said(&format!("this is {}", env!("CARGO_PKG_VERSION")));
    // An agent of another version.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap();
    let agent = thread::spawn(move || {
        let mut talk = Talk::with(listener.accept().unwrap().0);
        let hello: Hello = talk.hear().unwrap();
        assert!(hello.knows(TOKEN));
        let here = Greeting::of_this_host();
        talk.say(&Greeting { protocol: 9, version: "99.9.9".into(), ..here });
    });
    let why = refused(&[(other.to_string(), 1.0)]);
    agent.join().unwrap();
    assert!(why[0].contains(&format!("agent {other}")), "{why:?}");
    assert!(why[0].contains("simurgh 99.9.9 (protocol 9)"), "{why:?}");
    assert!(why[0].contains(env!("CARGO_PKG_VERSION")), "{why:?}");
}

#[test]
fn unusable_agents_are_all_reported_with_advice() {
    let agent = TestAgent::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // Sends what no agent sends.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let odd = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        let _ = stream.read(&mut [0; 100]);
    });
    let mut all = scenario(
        &[closed, agent.address, odd, agent.address].map(|address| (address.to_string(), 1.0)),
        PHASE,
        THINK,
    );
    all.agents[1].token = "wrong".into();
    all.agents[3].token = "$NO_SUCH_VARIABLE_HERE".into();
    let Err(RunError::Agents(why)) = Run::prepare(all, &Options::default()) else {
        panic!("agents that cannot take part were taken");
    };
    assert_eq!(why.len(), 4, "{why:?}");
    assert!(why[0].starts_with(&format!("agent {closed}: cannot connect: ")), "{why:?}");
    assert!(why[0].contains(&format!("--listen 0.0.0.0:{}", closed.port())), "{why:?}");
    assert!(
        why[1].contains("wrong token. Use the token that the agent was started with"),
        "{why:?}"
    );
    assert!(why[2].contains("the maximum is 4096; is it `simurgh load agent`?"), "{why:?}");
    assert!(why[3].contains("NO_SUCH_VARIABLE_HERE is not set; set it"), "{why:?}");
}

#[test]
fn agent_serves_one_run_at_a_time_and_survives_its_controllers() {
    let agent = TestAgent::start();
    let named = [(agent.address.to_string(), 1.0)];
    let run = prepare(scenario(&named, PHASE, THINK));
    let why = refused(&named);
    assert!(why[0].contains("busy with a run of"), "{why:?}");
    agent.said("refused, this agent is busy with a run of");
    // The controller closes without a message.
    drop(run);
    agent.said("its run was ended here");
    let (outcome, record) = go(prepare(scenario(&named, PHASE, THINK)));
    assert_eq!(outcome.ending, Ending::Finished);
    assert_all_well(&record, 200);
    // A silent controller is lost as well.
    let mut silent = Talk::to(agent.address);
    silent.say(&Hello::new(TOKEN.into()));
    assert_eq!(silent.hear::<Greeting>().unwrap().busy, None);
    agent.said("it sent nothing for 5 s");
    let (outcome, _) = go(prepare(scenario(&named, PHASE, THINK)));
    assert_eq!(outcome.ending, Ending::Finished);
}
