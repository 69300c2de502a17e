// Pages of a test, from a server that is not Simurgh.

import { existsSync, readFileSync, statSync } from "node:fs";
import http from "node:http";
import path from "node:path";

const TYPES = {
  "": "text/html", css: "text/css", html: "text/html", js: "text/javascript",
  json: "application/json", mjs: "text/javascript", svg: "image/svg+xml",
};

/** Serves `files`, contents by path such as "/" or "/page.js"; its origin. */
export function serveFiles(t, files) {
  return serve(t, (name) => (Object.hasOwn(files, name) ? files[name] : undefined));
}

/** Serves the files of a folder, as any host of static pages does; its origin. */
export function serveFolder(t, folder) {
  return serve(t, (name) => {
    const file = path.join(folder, name.endsWith("/") ? `${name}index.html` : name);
    return existsSync(file) && statSync(file).isFile() ? readFileSync(file) : undefined;
  });
}

async function serve(t, contentOf) {
  const server = http.createServer(({ url }, response) => {
    const { pathname } = new URL(url, "http://127.0.0.1");
    const [, extension = ""] = /\.(\w+)$/.exec(pathname) ?? [];
    const content = contentOf(decodeURIComponent(pathname));
    const type = TYPES[extension] ?? "text/plain";
    response.writeHead(content === undefined ? 404 : 200, { "content-type": type });
    response.end(content);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => { server.closeAllConnections(); server.close(); });
  return `http://127.0.0.1:${server.address().port}`;
}

/** A page with its own icon, so that the browser requests none. */
export function htmlOf(body) {
  return `<!doctype html><title>test</title><link rel="icon" href="data:,">${body}`;
}
