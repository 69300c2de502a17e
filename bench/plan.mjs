// Flags of a benchmark in Node, and what it starts and ends.

/** The number behind `--NAME`. */
export function flag(name, otherwise) {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? otherwise : Number(process.argv[at + 1]);
}

/** Runs `bench`, which resolves to whether all limits were reached; ends what it has started. */
export async function run(bench) {
  const ends = [];
  // Ends the servers, too.
  process.on("SIGINT", () => process.exit(130));
  try {
    process.exitCode = await bench({ after: (end) => ends.unshift(end) }) ? 0 : 1;
  } finally {
    for (const end of ends) await end();
  }
  process.exit();
}
