// Runs Autobahn's fuzzing client against the conformance server's `/echo` and
// holds the outcome against expected-results.json. The suite runs on Python 2.7 only; where there
// is none the run says so and exits with 77, which `cargo xtask test` reports as SKIPPED.
//
//   node autobahn/run.mjs            compare
//   node autobahn/run.mjs --write    accept today's results as the expected ones
//   AUTOBAHN_URL=ws://127.0.0.1:9001/echo node autobahn/run.mjs    against a running server

import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync }
  from "node:fs";
import { homedir } from "node:os";
import path from "node:path";

import { ROOT, startServer } from "../support/server.mjs";

const HERE = path.join(ROOT, "e2e/autobahn");
const CACHE = process.env.E2E_CACHE_DIR ?? path.join(ROOT, "target/e2e-cache");
const EXPECTED = path.join(HERE, "expected-results.json");
const REQUIREMENTS = path.join(HERE, "requirements.txt");
// Of the 180 cases about compression, of which all pass in 20 minutes, three of each kind: 16 bytes
// to 128 KiB, a thousand times each. 13.3 and 13.5 want a window of 512 bytes, which is declined.
const COMPRESSED = ["12.1", "12.2", "12.3", "12.4", "12.5", "13.1", "13.2", "13.4", "13.6", "13.7"]
  .flatMap((kind) => [`${kind}.1`, `${kind}.8`, `${kind}.15`]);
const CASES = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*", ...COMPRESSED];
const CASES_TOTAL = 301 + COMPRESSED.length; // The suite has no groups 8 and 11.
const SUITE_MS_MAX = 10 * 60_000;
const INSTALL_MS_MAX = 5 * 60_000;
const EXIT_SKIPPED = 77;

const GOOD = new Set(["OK", "NON-STRICT", "INFORMATIONAL"]);

/** The first Python 2.7 that really starts (a pyenv shim may exist and refuse). */
function findPython() {
  const pyenv = process.env.PYENV_ROOT ?? path.join(homedir(), ".pyenv");
  const versions = path.join(pyenv, "versions");
  const installed = existsSync(versions)
    ? readdirSync(versions).filter((name) => name.startsWith("2.7."))
    : [];
  const candidates = [
    process.env.PYTHON27,
    "python2.7",
    ...installed.map((name) => path.join(versions, name, "bin/python2.7")),
  ];
  return candidates.filter(Boolean).find((python) => {
    try {
      const code = "import sys, ssl, pip; print(sys.version_info[:2])";
      const out = execFileSync(python, ["-c", code], { stdio: "pipe", timeout: 20_000 });
      return out.toString().trim() === "(2, 7)";
    } catch {
      return false;
    }
  });
}

/** Installs the pinned suite into a directory named after the pins, once. */
function installSuite(python) {
  const pins = readFileSync(REQUIREMENTS);
  const hash = createHash("sha256").update(pins).update(python).digest("hex").slice(0, 12);
  const site = path.join(CACHE, `autobahn-${hash}`);
  if (existsSync(site)) return site;
  console.log(`installing the Autobahn test suite into ${site}`);
  const partial = `${site}.${process.pid}`;
  mkdirSync(CACHE, { recursive: true });
  const args = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
  try {
    execFileSync(python, [...args, "--target", partial, "-r", REQUIREMENTS], {
      stdio: ["ignore", "ignore", "inherit"],
      timeout: INSTALL_MS_MAX,
    });
    renameSync(partial, site);
  } finally {
    rmSync(partial, { recursive: true, force: true });
  }
  return site;
}

/** Runs the fuzzing client; resolves to `{case: {behavior, behaviorClose}}`. */
async function runSuite(python, site, url) {
  const work = path.join(CACHE, `autobahn-run-${process.pid}`);
  const reports = path.join(work, "reports");
  mkdirSync(reports, { recursive: true });
  const spec = path.join(work, "spec.json");
  writeFileSync(spec, JSON.stringify({
    outdir: reports,
    servers: [{ agent: "simurgh", url }],
    cases: CASES,
    "exclude-cases": [],
    "exclude-agent-cases": {},
  }));
  // addsitedir also reads the .pth files that make `zope` a namespace, as PYTHONPATH does not.
  const start = "import site, sys; site.addsitedir(sys.argv.pop(1)); "
    + "from autobahntestsuite.wstest import run; run()";
  const child = spawn(python, ["-c", start, site, "-m", "fuzzingclient", "-s", spec], {
    cwd: work,
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, PYTHONPATH: site, PYTHONDONTWRITEBYTECODE: "1" },
  });
  let output = "";
  const keep = (chunk) => { output = (output + chunk).slice(-8192); };
  child.stdout.on("data", keep);
  child.stderr.on("data", keep);
  const timer = setTimeout(() => child.kill("SIGKILL"), SUITE_MS_MAX);
  const code = await new Promise((resolve) => child.once("exit", (c, s) => resolve(s ?? c)));
  clearTimeout(timer);
  try {
    const index = JSON.parse(readFileSync(path.join(reports, "index.json"), "utf8")).simurgh;
    return Object.fromEntries(Object.entries(index).map(
      ([name, { behavior, behaviorClose }]) => [name, { behavior, behaviorClose }],
    ));
  } catch (error) {
    throw new Error(`the suite wrote no report (exit ${code}): ${error.message}\n${output}`);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Sentences about every case that is bad or is not what was expected. */
export function differences(expected, results) {
  const found = [];
  const say = ({ behavior, behaviorClose }) => `${behavior} (close: ${behaviorClose})`;
  for (const [name, result] of Object.entries(results)) {
    if (!GOOD.has(result.behavior) || !GOOD.has(result.behaviorClose)) {
      found.push(`case ${name}: ${say(result)}`);
    } else if (!expected[name]) {
      found.push(`case ${name}: ${say(result)}, but no result is committed for it`);
    } else if (say(result) !== say(expected[name])) {
      found.push(`case ${name}: ${say(result)}, expected ${say(expected[name])}`);
    }
  }
  for (const name of Object.keys(expected)) {
    if (!results[name]) found.push(`case ${name}: did not run`);
  }
  const ran = Object.keys(results).length;
  if (ran !== CASES_TOTAL) found.push(`${ran} cases ran, not ${CASES_TOTAL}`);
  return found;
}

function byNumber([a], [b]) {
  return a.localeCompare(b, "en", { numeric: true });
}

function count(results) {
  const counts = {};
  for (const { behavior } of Object.values(results)) {
    counts[behavior] = (counts[behavior] ?? 0) + 1;
  }
  return Object.entries(counts).map(([behavior, n]) => `${n} ${behavior}`).join(", ");
}

function write(results) {
  const lines = Object.entries(results).sort(byNumber)
    .map(([name, result]) => `  ${JSON.stringify(name)}: ${JSON.stringify(result)}`);
  writeFileSync(EXPECTED, `{\n${lines.join(",\n")}\n}\n`);
}

async function main() {
  const python = findPython();
  if (!python) {
    console.log("SKIPPED: no working python2.7 with pip on PATH or in pyenv (set PYTHON27)");
    return EXIT_SKIPPED;
  }
  const site = installSuite(python);
  const server = process.env.AUTOBAHN_URL ? null : await startServer("conformance");
  try {
    const url = process.env.AUTOBAHN_URL ?? `${server.wsUrl}/echo`;
    const results = await runSuite(python, site, url);
    console.log(`${Object.keys(results).length} cases: ${count(results)}`);
    if (process.argv.includes("--write")) write(results);
    const expected = existsSync(EXPECTED) ? JSON.parse(readFileSync(EXPECTED, "utf8")) : {};
    const found = differences(expected, results);
    for (const line of found.slice(0, 50)) console.log(line);
    if (found.length > 50) console.log(`and ${found.length - 50} more`);
    return found.length === 0 ? 0 : 1;
  } finally {
    await server?.kill();
  }
}

process.exitCode = await main();
