//! `simurgh load` on several hosts: agents in network namespaces of their own, the server and the
//! controller here. What the network lets through is real; the hosts share one kernel and clock.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use wire_tests::{Network, Server};

/// The longest a whole run may take.
const RUN: Duration = Duration::from_secs(60);
const TOKEN: &str = "between-us";

/// A child that does not outlive the test.
struct Running(Child);

impl Running {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Agents in namespaces, and a server here that they reach. Fields drop in this order: the network
/// goes when nothing runs in it any more.
struct Stage {
    agents: Vec<Running>,
    addresses: Vec<String>,
    server: Server,
    directory: PathBuf,
    network: Network,
}

impl Stage {
    fn set(agents: u8) -> Self {
        let network = Network::of(agents).unwrap();
        let server = Server::serve().listen(&[&format!("{}:0", network.here())]).start();
        let directory = std::env::temp_dir().join(format!("simurgh-agents-{}", network.here()));
        fs::create_dir_all(&directory).unwrap();
        let mut stage =
            Self { agents: Vec::new(), addresses: Vec::new(), server, directory, network };
        for host in 0..usize::from(agents) {
            let mut command = simurgh();
            let listen = format!("{}:0", stage.network.address(host));
            command.args(["load", "agent", "--listen", &listen, "--token", TOKEN]);
            let mut command = stage.network.on(host, &command);
            let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            stage.agents.push(Running(child));
            let line = output.lines().next().expect("the agent says where it listens").unwrap();
            let address = line.strip_prefix("agent listening on ").expect(&line).to_owned();
            stage.addresses.push(address);
        }
        stage
    }

    /// Writes a scenario for these agents: 40 users in one second, who do these `steps`.
    fn scenario(&self, name: &str, agents: &[usize], steps: &str) -> PathBuf {
        let mut text = format!(
            "name = \"{name}\"\n[target]\nurl = \"ws://{}\"\n\
             [[phase]]\nduration = \"1s\"\nrate = 40\n\
             [[session]]\nprotocol = \"phoenix\"\nsteps = [\n\
             {{ connect = \"/socket/websocket\" }},\n{{ join = \"rooms:lobby\" }},\n{steps}\n]\n",
            self.server.addr()
        );
        for agent in agents {
            let address = &self.addresses[*agent];
            text += &format!("[[agent]]\naddress = \"{address}\"\ntoken = \"$AGENTS_TOKEN\"\n");
        }
        let file = self.directory.join(format!("{name}.toml"));
        fs::write(&file, text).unwrap();
        file
    }

    fn controller(&self, scenario: &Path) -> Command {
        let mut command = simurgh();
        command.arg("load").arg(scenario).args(["--quiet", "--overwrite", "--dashboard", "off"]);
        command.arg("--out").arg(out(scenario)).env("AGENTS_TOKEN", TOKEN).stdin(Stdio::null());
        command
    }

    fn start(&self, scenario: &Path) -> Running {
        let mut command = self.controller(scenario);
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn connections(&self, host: usize) -> usize {
        self.network.connections(host, self.server.addr().port())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.agents.clear();
        // Files of an earlier run may be left in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn simurgh() -> Command {
    Command::new(Server::serve().command().get_program())
}

fn out(scenario: &Path) -> PathBuf {
    scenario.with_extension("out")
}

fn report(scenario: &Path) -> Value {
    let text = fs::read(out(scenario).join("report.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Users alive in the last second that the journal has.
fn users_in_journal(scenario: &Path) -> Option<u64> {
    let text = fs::read_to_string(out(scenario).join("journal.jsonl")).ok()?;
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    last["all"]["users"].as_u64()
}

#[track_caller]
fn eventually(awaited: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < RUN, "waited {RUN:?} in vain for: {awaited}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn assert_success(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
}

fn sum_of_started(report: &Value, host: &str) -> u64 {
    let workers = report["workers"].as_array().unwrap();
    let of_host = workers.iter().filter(|worker| worker["host"] == host);
    of_host.map(|worker| worker["started"].as_u64().unwrap()).sum()
}

#[test]
#[ignore = "needs root"]
fn users_of_two_hosts_meet_and_one_broadcast_reaches_all_of_them() {
    let stage = Stage::set(2);
    let steps = "{ gather = 40, timeout = \"60s\" }, { set = \"id\", value = \"{{user_id}}\" },\n\
                 { if = \"id == 7\", steps = [\n\
                 { push = \"new:msg\", payload = { body = \"{{stamp}}\" } } ] },\n\
                 { receive = \"10s\" }";
    let scenario = stage.scenario("meeting", &[0, 1], steps);
    let mut run = stage.start(&scenario);
    eventually("20 users from either network", || {
        (stage.connections(0), stage.connections(1)) == (20, 20)
    });
    let status = run.0.wait().unwrap();
    assert!(status.success(), "{status}");
    let report = report(&scenario);
    assert_eq!(report["ending"], "finished");
    assert_eq!(report["errors_total"], 0, "{report:#}");
    assert_eq!(report["hosts"], serde_json::json!(stage.addresses));
    for address in &stage.addresses {
        assert_eq!(sum_of_started(&report, address), 20);
    }
    let counts = &report["counts"];
    for (name, count) in [
        ("users_started", 40),
        ("users_finished", 40),
        ("joins_ok", 40),
        ("pushes", 1),
        ("broadcasts", 1),
        ("deliveries", 40),
        ("broadcasts_complete", 1),
    ] {
        assert_eq!(counts[name], count, "{name} in {counts:#}");
    }
    // Both clocks are one here, so whatever is wrong is the correction's fault.
    assert_eq!(counts["deliveries_before_sent"].as_u64().unwrap_or(0), 0);
    let metrics = report["metrics"].as_array().unwrap();
    let delivery = metrics.iter().find(|metric| metric["name"] == "delivery");
    let delivery = delivery.unwrap_or_else(|| panic!("{metrics:#?}"));
    assert_eq!(delivery["count"], 40);
    assert!(delivery["max"].as_u64().unwrap() < 10_000_000, "{delivery:#}");
}

#[test]
#[ignore = "needs root"]
fn a_killed_agent_is_reported_and_its_users_counted_and_the_rest_ends_well() {
    let mut stage = Stage::set(2);
    let scenario = stage.scenario("killed", &[0, 1], "{ receive = \"6s\" }");
    let mut run = stage.start(&scenario);
    eventually("40 users", || users_in_journal(&scenario) == Some(40));
    stage.agents[1].kill();
    let status = run.0.wait().unwrap();
    assert!(status.success(), "{status}");
    let report = report(&scenario);
    assert_eq!(report["ending"], "finished");
    let counts = &report["counts"];
    assert_eq!((&counts["users_started"], &counts["users_finished"]), (&40.into(), &20.into()));
    assert_eq!(report["errors_total"], 20, "{report:#}");
    assert_eq!(report["errors"][0]["kind"], "worker_lost");
    let warnings = report["warnings"].as_array().unwrap();
    let lost = warnings.iter().find(|warning| warning["code"] == "agent_lost").unwrap();
    let text = lost["text"].as_str().unwrap();
    assert!(text.contains(&format!("{} is lost with 20 users", stage.addresses[1])), "{text}");
}

#[test]
#[ignore = "needs root"]
fn an_agent_outlives_its_controller_and_serves_the_next() {
    let stage = Stage::set(1);
    let long = stage.scenario("long", &[0], "{ receive = \"50s\" }");
    let mut run = stage.start(&long);
    eventually("40 users", || stage.connections(0) == 40);
    // A second controller hears why it has to wait.
    let short = stage.scenario("short", &[0], "{ receive = \"100ms\" }");
    let refused = stage.controller(&short).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("busy with a run of \"long\""), "{text}");
    run.kill();
    eventually("the end of the users", || stage.connections(0) == 0);
    let output = stage.controller(&short).output().unwrap();
    assert_success(&output);
    let report = report(&short);
    assert_eq!(report["counts"]["users_finished"], 40);
    assert_eq!(report["errors_total"], 0);
}
