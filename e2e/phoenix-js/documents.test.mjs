// The JavaScript that README and docs show can be parsed.

import { mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";

import { run } from "../support/package.mjs";
import { ROOT } from "../support/server.mjs";

test("JavaScript in documents is valid", async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), "documents-"));
  t.after(() => rm(folder, { recursive: true }));
  const docs = (await readdir(path.join(ROOT, "docs"))).map((name) => path.join("docs", name));
  let checked = 0;
  for (const name of ["README.md", "clients/js/README.md", ...docs]) {
    if (!name.endsWith(".md")) continue;
    const text = await readFile(path.join(ROOT, name), "utf8");
    for (const [, script] of text.matchAll(/^```js\n(.*?)^```/gms)) {
      const file = path.join(folder, `${path.basename(name)}-${++checked}.mjs`);
      await writeFile(file, script);
      await run(process.execPath, ["--check", file]);
    }
  }
  if (checked < 5) throw new Error(`${checked} scripts: the documents are read wrongly`);
});
