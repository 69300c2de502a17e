//! The steps of `cargo xtask test`, each with its time limit, in two rows beside each other: what
//! computes, and what waits for clients. A failed step does not stop the later ones, unless they
//! need its results.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::Args;

use crate::bench::instructions::{self, Verdict};
use crate::outcome::{self, Outcome, Skipped, Step as Done, Timed};
use crate::process::{self, Finished, Task, lock};
use crate::provide::{self, Tool};
use crate::rust_tests::{self, Program};
use crate::{crates, dist, engine, fuzz, msrv, sim, site, tidy};

/// The exit code of a script that did not run; the reason is on a line `SKIPPED: …`.
const EXIT_SKIPPED: i32 = 77;

/// Checks licences, duplicates and sources of all dependencies, by deny.toml.
const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", debug: true };

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Also check formatting, clippy and rustdoc with warnings as errors, rust-version and what is
    /// depended on, count instructions, and run each fuzz target for some seconds (implied by CI)
    #[arg(long)]
    pub(crate) lints: bool,
    /// Run these steps only, by the names of the summary (several with commas)
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    pub(crate) only: Vec<String>,
    /// Run this part only
    #[arg(long, value_enum, conflicts_with = "only")]
    pub(crate) part: Option<Part>,
}

/// The parts of all steps, which may run on different machines.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Formatting, lints, documentation, dependencies, house rules
    Check,
    /// The tests of Rust, the packed crates, and the end-to-end suites
    Test,
    /// The simulator, counts of instructions, fuzzing, and a release
    Prove,
}

type Run = fn(&Ready) -> Result<Outcome>;

struct Step {
    name: &'static str,
    part: Part,
    /// Runs only with `--lints`, or by its name or part.
    is_lint: bool,
    run: Run,
}

const fn step(name: &'static str, part: Part, run: Run) -> Step {
    Step { name, part, is_lint: false, run }
}

const fn lint(name: &'static str, part: Part, run: Run) -> Step {
    Step { name, part, is_lint: true, run }
}

/// Steps that compile or compute, in the order they run.
const COMPUTING: &[Step] = &[
    step("tidy", Part::Check, |_| tidy()),
    lint("fmt", Part::Check, |_| fmt()),
    step("cargo test", Part::Test, cargo_test),
    lint("clippy", Part::Check, |_| clippy()),
    lint("rustdoc", Part::Check, |_| rustdoc()),
    lint("msrv", Part::Check, |_| msrv::check()),
    lint("deny", Part::Check, |_| deny()),
    step("crates", Part::Test, |_| crates::try_out()),
    step("sim", Part::Prove, |_| sim::try_out()),
    step("dist", Part::Prove, dist),
    lint("instructions", Part::Prove, count_instructions),
    lint("fuzz", Part::Prove, |_| fuzz::try_each()),
];

/// Steps that mostly wait for clients and servers. They run beside the others.
const WAITING: &[Step] = &[
    step("phoenix-js", Part::Test, |ready| node_tests(ready, CLIENTS, None)),
    step("phoenix-js-cluster", Part::Test, cluster_tests),
    step("playwright", Part::Test, |ready| node_tests(ready, "playwright", Some(CHROMIUM))),
    step("playwright-cluster", Part::Test, pages_of_a_cluster),
    step("backends", Part::Test, backends),
    step("supabase-py", Part::Test, supabase_py),
    step("load", Part::Test, |ready| node_tests(ready, "load", None)),
    step("migration", Part::Test, |ready| node_tests(ready, "migration", None)),
    step("nginx", Part::Test, |ready| node_tests(ready, "nginx", Some("/usr/sbin/nginx"))),
    step("autobahn", Part::Test, autobahn),
    step("site", Part::Check, site_tests),
];

/// Steps that need the binaries, beside those of [`Part::Test`].
const OF_BINARIES: &[&str] = &["dist"];

const CLIENTS: &str = "phoenix-js";
const BACKENDS: &str = "backends";
/// Suites of `phoenix-js` that are not run on a cluster, because they have no server.
const ON_ONE_NODE: &[&str] = &["package", "presence", "tls"];
/// The ending of suites about several nodes, which are run only there.
const ON_A_CLUSTER: &str = "-cluster.test.mjs";
/// Suites of pages that are also run there: those of histories.
const PAGES_ON_A_CLUSTER: [&str; 2] = ["chat-history", "longpoll-history"];
const CHROMIUM: &str = "/usr/bin/chromium";
const NODES: &str = "3";
const MINUTES: u64 = 12;
const NODES_MINUTES: u64 = 15;

/// The prerequisites of the tests and the end-to-end steps.
struct Ready {
    /// The test programs, or why there are none; with them all binaries and examples are built.
    tests: Result<Vec<Program>>,
    npm: bool,
    debian: Option<String>,
    /// nats-server, or the reason why it is missing.
    engine: Result<PathBuf>,
    /// Of the test programs.
    times: Mutex<Vec<Timed>>,
}

impl Ready {
    /// CI runs all tests, and those fail that lack something.
    fn flags(&self) -> &'static [&'static str] {
        let has_engine = self.engine.as_ref().is_ok_and(|path| engine::is_built(path));
        let has_all = has_engine && self.debian.is_none() && provide::is_root();
        if has_all || in_ci() { &[rust_tests::ALL] } else { &[] }
    }

    /// The test programs; the binaries are there, too.
    fn tests(&self) -> Result<&[Program]> {
        self.tests.as_deref().map_err(|why| anyhow!("the tests do not build: {why:#}"))
    }

    /// The broker. Without it a developer's tests go on.
    fn engine(&self) -> Result<&Path> {
        self.engine.as_deref().map_err(|why| lacking(format!("no nats-server: {why:#}")))
    }
}

/// Runs the steps and prints the summary; fails if one of them fails.
pub(crate) fn run(options: &Options) -> ExitCode {
    let all = || COMPUTING.iter().chain(WAITING);
    let unknown = options.only.iter().find(|name| all().all(|step| step.name != **name));
    if let Some(name) = unknown {
        let names: Vec<&str> = all().map(|step| step.name).collect();
        eprintln!("there is no step \"{name}\": {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let is_asked = |step: &&Step| match (options.part, options.only.as_slice()) {
        (Some(part), _) => step.part == part,
        (None, []) => !step.is_lint || options.lints || in_ci(),
        (None, only) => only.iter().any(|wanted| wanted == step.name),
    };
    let computing: Vec<&Step> = COMPUTING.iter().filter(is_asked).collect();
    let waiting: Vec<&Step> = WAITING.iter().filter(is_asked).collect();
    let mut asked = computing.iter().chain(&waiting);
    let needs_build = asked.any(|step| step.part == Part::Test || OF_BINARIES.contains(&step.name));
    let done = Mutex::default();
    let ready = prepare(needs_build, &done);
    thread::scope(|scope| {
        scope.spawn(|| {
            process::show_at_end();
            waiting.iter().for_each(|step| timed(&done, step.name, || (step.run)(&ready)));
        });
        computing.iter().for_each(|step| timed(&done, step.name, || (step.run)(&ready)));
    });
    let steps = lock(&done);
    println!("\n{}\n{}", outcome::slowest(&lock(&ready.times)), outcome::summary(&steps));
    if steps.iter().any(|(_, outcome, _)| outcome.failed > 0) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn timed(done: &Mutex<Vec<Done>>, name: &'static str, step: impl FnOnce() -> Result<Outcome>) {
    println!("\n==> {name}");
    let start = Instant::now();
    let outcome = Outcome::of(step());
    let Outcome { passed, failed, skipped, note, failures } = &outcome;
    println!("\n<== {name}: {passed} passed, {failed} failed, {skipped} skipped  {note}");
    failures.iter().for_each(|failure| println!("FAILED {name}: {failure}"));
    lock(done).push((name, outcome, start.elapsed()));
}

/// Installs and builds. A missing package skips the steps that need it on a developer's machine; in
/// CI, where everything can be installed, it is a failure.
fn prepare(needs_build: bool, done: &Mutex<Vec<Done>>) -> Ready {
    let not_asked = || anyhow!("not asked for");
    let mut ready = Ready {
        tests: Err(not_asked()),
        npm: false,
        debian: None,
        engine: Err(not_asked()),
        times: Mutex::default(),
    };
    timed(done, "install", || {
        ready.debian = provide::debian_packages().err().map(|why| format!("{why:#}"));
        let npm = provide::npm_packages();
        ready.npm = npm.is_ok();
        npm?;
        match &ready.debian {
            Some(note) => bail!(Skipped(note.clone())),
            None => Ok(Outcome::passed(1)),
        }
    });
    if !needs_build {
        return ready;
    }
    timed(done, "engine", || {
        ready.engine = engine::installed();
        let note = ready.engine()?.display().to_string();
        Ok(Outcome { note, ..Outcome::passed(1) })
    });
    timed(done, "build", || {
        ready.tests = rust_tests::compile();
        ready.tests().map(|_| Outcome::passed(1))
    });
    ready
}

/// Something that can be installed is not there: in CI that is a failure.
fn lacking(why: String) -> Error {
    if in_ci() { Error::msg(why) } else { Skipped(why).into() }
}

fn by_exit(done: &Finished) -> Outcome {
    if done.ok() { Outcome::passed(1) } else { Outcome::failed(done.reason()) }
}

fn tidy() -> Result<Outcome> {
    let findings = tidy::check(&crate::root()).map_err(Error::msg)?;
    findings.iter().for_each(|finding| println!("{finding}"));
    ensure!(findings.is_empty(), "{} findings", findings.len());
    Ok(Outcome::passed(1))
}

/// The workspace, and the separate project.
fn fmt() -> Result<Outcome> {
    let format = || Task::new("cargo", &["fmt", "--all", "--check"], 2);
    let mut all = by_exit(&format().run());
    all.add(by_exit(&format().directory(&crate::root().join(crates::PROJECT)).run()));
    Ok(all)
}

fn clippy() -> Result<Outcome> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    Ok(by_exit(&Task::new("cargo", &arguments, 12).run()))
}

/// With private items, then as on docs.rs: a link from there to a private item is broken.
fn rustdoc() -> Result<Outcome> {
    let published = crates::published()?;
    let mut shown = vec!["doc", "--no-deps", "--all-features"];
    shown.extend(published.packages.iter().flat_map(|package| ["--package", &package.name]));
    let all = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    let mut pages = Outcome::default();
    for arguments in [all.as_slice(), &shown] {
        let task = Task::new("cargo", arguments, 10).env("RUSTDOCFLAGS", "-D warnings");
        pages.add(by_exit(&task.run()));
    }
    Ok(pages)
}

/// Not the advisories, which come from outside crates.io and change by themselves.
fn deny() -> Result<Outcome> {
    let tool = provide::cargo_tool(&DENY).map_err(|why| Skipped(format!("{why:#}")))?;
    let arguments = ["--workspace", "--locked", "check", "bans", "licenses", "sources"];
    Ok(by_exit(&Task::new(&tool.display().to_string(), &arguments, 5).run()))
}

/// Unit, integration and doc tests of every crate, this one included.
fn cargo_test(ready: &Ready) -> Result<Outcome> {
    let (programs, engine) = (ready.tests()?, ready.engine.as_deref().ok());
    Ok(rust_tests::run(programs, ready.flags(), engine, &mut lock(&ready.times)))
}

fn node_tests(ready: &Ready, directory: &str, needs: Option<&str>) -> Result<Outcome> {
    let is_for_all = |file: &String| directory != CLIENTS || !file.ends_with(ON_A_CLUSTER);
    let files = test_files(directory, is_for_all)?;
    run_node_tests(ready, needs, &files, MINUTES, |task| match &ready.engine {
        Ok(engine) => task.env(engine::VARIABLE, engine),
        Err(_) => task,
    })
}

/// The official client on several nodes behind a balancer.
fn cluster_tests(ready: &Ready) -> Result<Outcome> {
    let is_for_several = |file: &String| {
        ON_ONE_NODE.iter().all(|name| *file != format!("{CLIENTS}/{name}.test.mjs"))
    };
    tests_on_nodes(ready, None, &test_files(CLIENTS, is_for_several)?)
}

fn pages_of_a_cluster(ready: &Ready) -> Result<Outcome> {
    let files = PAGES_ON_A_CLUSTER.map(|name| format!("playwright/{name}.test.mjs"));
    tests_on_nodes(ready, Some(CHROMIUM), &files)
}

/// Runs files of `e2e` with this many nodes in place of each server.
fn tests_on_nodes(ready: &Ready, needs: Option<&str>, files: &[String]) -> Result<Outcome> {
    let engine = ready.engine()?;
    run_node_tests(ready, needs, files, NODES_MINUTES, |task| {
        task.env(engine::VARIABLE, engine).env("E2E_NODES", NODES)
    })
}

/// Runs files of `e2e` one after the other, since the servers under test need the cores.
fn run_node_tests(
    ready: &Ready,
    needs: Option<&str>,
    files: &[String],
    minutes: u64,
    set_up: impl FnOnce(Task) -> Task,
) -> Result<Outcome> {
    check(ready, needs)?;
    let task = set_up(node_task(files, minutes));
    let done = task.env("E2E_BIN_DIR", crate::bin_dir()).run();
    Ok(outcome::counted(outcome::of_node_test(&done.output), &done))
}

fn node_task(files: &[String], minutes: u64) -> Task {
    let mut arguments = vec!["--test", "--test-concurrency=1", "--test-force-exit"];
    arguments.push("--test-reporter=spec");
    arguments.extend(files.iter().map(String::as_str));
    Task::new("node", &arguments, minutes).directory(&crate::root().join("e2e"))
}

/// Applications of web frameworks that answer the server's questions. The tests skip those that are
/// not installed; in CI they fail.
fn backends(ready: &Ready) -> Result<Outcome> {
    let python = provide::python_packages(BACKENDS);
    let files = test_files(BACKENDS, |_| true)?;
    run_node_tests(ready, None, &files, MINUTES, |task| match python {
        Ok(python) => task.env("E2E_PYTHON", python),
        Err(_) => task,
    })
}

/// Supabase's Python client, in the versions of its list.
fn supabase_py(ready: &Ready) -> Result<Outcome> {
    ready.tests()?;
    let python = provide::python_packages("supabase-py")?;
    let directory = crate::root().join("e2e/supabase-py");
    let arguments = ["-B", "-m", "unittest", "-v", "test_supabase"];
    let task = Task::new(&python.display().to_string(), &arguments, 4).directory(&directory);
    let done = task.env("E2E_BIN_DIR", crate::bin_dir()).run();
    Ok(outcome::counted(outcome::of_unittest(&done.output), &done))
}

/// The documentation site, which needs no binary.
fn site_tests(ready: &Ready) -> Result<Outcome> {
    ensure!(ready.npm, "the npm packages are not installed");
    check_program(ready, CHROMIUM)?;
    let mdbook = site::mdbook().map_err(|why| lacking(format!("no mdBook: {why:#}")))?;
    let task = node_task(&test_files(site::SUITE, |_| true)?, MINUTES).env(site::VARIABLE, mdbook);
    let done = task.run();
    Ok(outcome::counted(outcome::of_node_test(&done.output), &done))
}

/// The suite of cases 1 to 10; needs a Python 2.7, which Debian no longer packages.
fn autobahn(ready: &Ready) -> Result<Outcome> {
    check(ready, None)?;
    let e2e = crate::root().join("e2e");
    let cache = crate::bin_dir().parent().unwrap_or(Path::new("target")).join("e2e-cache");
    let done = Task::new("node", &["autobahn/run.mjs"], 17)
        .directory(&e2e)
        .env("E2E_BIN_DIR", crate::bin_dir())
        .env("E2E_CACHE_DIR", cache)
        .run();
    if done.code == Some(EXIT_SKIPPED) {
        let reason = done.output.lines().find_map(|line| line.strip_prefix("SKIPPED: "));
        bail!(Skipped(reason.unwrap_or("it did not say why").to_owned()));
    }
    Ok(by_exit(&done))
}

/// A release from the test build: all except the optimised binary, whose build takes too long here.
fn dist(ready: &Ready) -> Result<Outcome> {
    ready.tests()?;
    let bin = crate::bin_dir();
    let out = bin.parent().unwrap_or(Path::new("target")).join("packages-of-tests");
    dist::try_out(out)
}

/// Checks that fixed pieces of work do not take many more instructions.
fn count_instructions(ready: &Ready) -> Result<Outcome> {
    check_program(ready, provide::VALGRIND)?;
    let baseline = instructions::baseline()?;
    let counts = instructions::count(&[])?;
    println!("{}", instructions::table(Some(&baseline), &counts));
    match instructions::judge(&baseline, &counts, true) {
        Verdict::Fine(count) => Ok(Outcome::passed(count)),
        Verdict::Incomparable(why) => bail!(Skipped(why)),
        Verdict::Worse(lines) => {
            let failed = lines.len() as u64;
            Ok(Outcome { failed, note: lines.join("; "), ..Outcome::default() })
        }
    }
}

/// Checks the prerequisites of a step.
fn check(ready: &Ready, needs: Option<&str>) -> Result<()> {
    ready.tests()?;
    ensure!(ready.npm, "the npm packages are not installed");
    needs.map_or(Ok(()), |program| check_program(ready, program))
}

fn check_program(ready: &Ready, program: &str) -> Result<()> {
    let why = ready.debian.as_deref().unwrap_or("installed, but not there");
    if provide::has(program) { Ok(()) } else { Err(lacking(format!("no {program} ({why})"))) }
}

fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// The wanted test files of `e2e/<directory>`, relative to `e2e`, in order of name.
fn test_files(directory: &str, is_wanted: impl Fn(&String) -> bool) -> Result<Vec<String>> {
    let e2e = crate::root().join("e2e");
    let entries = fs::read_dir(e2e.join(directory)).context(directory.to_owned())?;
    let mut files: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".test.mjs"))
        .map(|name| format!("{directory}/{name}"))
        .filter(is_wanted)
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "{directory} has no tests");
    Ok(files)
}
