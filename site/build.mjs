// Builds the documentation site of one version by mdBook from docs/ and the pages of the root:
//
//   cargo xtask site [--out DIR] [--version VERSION] [--repository URL]
//
// The site is OUT/VERSION. Versions that OUT already has stay; OUT/versions.json lists all, and
// OUT/index.html leads to the newest.

import { execFileSync } from "node:child_process";
import {
  cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync,
  writeFileSync,
} from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");

/** Pages outside of docs/, and their names on the site. */
const ROOT_PAGES = {
  "README.md": "index.md",
  "CHANGELOG.md": "CHANGELOG.md",
  "CONTRIBUTING.md": "CONTRIBUTING.md",
  "ROADMAP.md": "ROADMAP.md",
  // docs/SECURITY.md has the other name.
  "SECURITY.md": "REPORTING.md",
};

/** The place on the site of a file of the repository, if it has one. */
function place(file) {
  return ROOT_PAGES[file] ?? (file.startsWith("docs/") ? file.slice("docs/".length) : undefined);
}

/** A link of a page of the repository as the site needs it. */
function siteLink(page, link, source) {
  if (/^([a-z]+:|#|$)/.test(link)) return link;
  const [name, ...anchor] = link.split("#");
  const target = path.posix.join(path.posix.dirname(page), name).replace(/\/$/, "");
  const own = place(target);
  const hash = anchor.map((it) => `#${it}`).join("");
  if (own) return path.posix.relative(path.posix.dirname(place(page)), own) + hash;
  const kind = statSync(path.join(ROOT, target)).isDirectory() ? "tree" : "blob";
  return `${source.repository}/${kind}/${source.tag}/${target}${hash}`;
}

/** The text of a page with the links of the site, code unchanged. */
function sitePage(page, source) {
  const text = readFileSync(path.join(ROOT, page), "utf8");
  const replaced = (prose) => prose
    .replace(/\]\(([^)\s]*)\)/g, (_, link) => `](${siteLink(page, link, source)})`);
  const parts = text.split(/^(```[^]*?^```)/m);
  return parts.map((part) => (part.startsWith("```") ? part : replaced(part))).join("");
}

/** The folder that mdBook reads: its settings, and the pages in `src`. */
function stage(source) {
  const folder = mkdtempSync(path.join(os.tmpdir(), "simurgh-site-"));
  cpSync(path.join(ROOT, "site"), folder, { recursive: true });
  const src = path.join(folder, "src");
  cpSync(path.join(ROOT, "docs"), src, { recursive: true });
  const documents = readdirSync(path.join(ROOT, "docs"), { recursive: true })
    .filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`);
  for (const page of [...documents, ...Object.keys(ROOT_PAGES)]) {
    writeFileSync(path.join(src, place(page)), sitePage(page, source));
  }
  return folder;
}

/** Newest first. Both are `0.1.0`, or a name such as `main`, which comes last. */
function newerFirst(a, b) {
  return b.localeCompare(a, "en", { numeric: true });
}

function listVersions(out) {
  const versions = readdirSync(out)
    .filter((name) => existsSync(path.join(out, name, "index.html")))
    .sort((a, b) => /^\d/.test(b) - /^\d/.test(a) || newerFirst(a, b));
  writeFileSync(path.join(out, "versions.json"), `${JSON.stringify(versions)}\n`);
  writeFileSync(path.join(out, "index.html"), `<!doctype html>
<meta charset="utf-8">
<title>Simurgh</title>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url=${versions[0]}/">
<a href="${versions[0]}/">Simurgh ${versions[0]}</a>
`);
}

const manifest = readFileSync(path.join(ROOT, "Cargo.toml"), "utf8");
const ofManifest = (key) => new RegExp(`^${key} = "(.*)"$`, "m").exec(manifest)?.[1];
const { values } = parseArgs({
  options: {
    out: { type: "string", default: path.join(ROOT, "target/site") },
    version: { type: "string", default: ofManifest("version") },
    repository: { type: "string", default: ofManifest("repository") },
  },
});
const { out, version, repository } = values;
if (!repository) {
  console.error("--repository URL is missing, and Cargo.toml has no `repository`: links to files");
  console.error("outside of docs/ need it");
  process.exit(2);
}
const folder = stage({ repository, tag: /^\d/.test(version) ? `v${version}` : version });
try {
  const target = path.resolve(out, version);
  mkdirSync(target, { recursive: true });
  execFileSync(process.env.MDBOOK ?? "mdbook", ["build", folder, "--dest-dir", target], {
    stdio: "inherit",
    env: { ...process.env, MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL: repository },
  });
  listVersions(path.resolve(out));
  console.log(`${target} is built`);
} finally {
  rmSync(folder, { recursive: true });
}
