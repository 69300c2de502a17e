// Pages of a test, from a server that is not Simurgh.

import http from "node:http";

const TYPES = { js: "text/javascript", mjs: "text/javascript", "": "text/html" };

/** Serves `files`, contents by path such as "/" or "/page.js"; its origin. */
export async function serveFiles(t, files) {
  const server = http.createServer(({ url }, response) => {
    const [, extension = ""] = /\.(\w+)$/.exec(url) ?? [];
    const isThere = Object.hasOwn(files, url);
    response.writeHead(isThere ? 200 : 404, { "content-type": TYPES[extension] ?? "text/plain" });
    response.end(files[url]);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => { server.closeAllConnections(); server.close(); });
  return `http://127.0.0.1:${server.address().port}`;
}

/** A page with its own icon, so that the browser requests none. */
export function htmlOf(body) {
  return `<!doctype html><title>test</title><link rel="icon" href="data:,">${body}`;
}
