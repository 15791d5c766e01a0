// A headless Chromium, driven by its own protocol: needs Node's WebSocket
// (`--experimental-websocket` before Node 22) and no package.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };

/** Serves a folder on a free port; also `asked`, the paths that were asked for. */
export async function serve(folder) {
  const asked = [];
  const server = createServer((request, response) => {
    asked.push(request.url);
    try {
      const path = request.url === "/" ? "/index.html" : request.url;
      const body = readFileSync(join(folder, path));
      response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "text/plain" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, asked, close: () => server.close() };
}

/** Starts Chromium with one empty page. */
export async function browse(chromium) {
  const profile = mkdtempSync(join(tmpdir(), "tidegate-chromium-"));
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", `--user-data-dir=${profile}`, "--remote-debugging-port=0", "about:blank"];
  const child = spawn(chromium, flags, { stdio: ["ignore", "ignore", "pipe"] });
  const url = await new Promise((resolve, reject) => {
    let said = "";
    child.stderr.on("data", (bytes) => {
      said += bytes;
      const found = /DevTools listening on (ws:\S+)/.exec(said);
      if (found) resolve(found[1]);
    });
    child.on("exit", () => reject(new Error(`Chromium ended: ${said.slice(-500)}`)));
  });
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  const waiting = new Map();
  const wrong = [];
  socket.onmessage = ({ data }) => {
    const { id, result, error, method, params } = JSON.parse(data);
    if (method === "Runtime.exceptionThrown") wrong.push(params.exceptionDetails.exception?.description);
    if (method === "Log.entryAdded" && params.entry.level === "error") wrong.push(params.entry.text);
    waiting.get(id)?.(error ? Promise.reject(new Error(error.message)) : result);
    waiting.delete(id);
  };
  let ids = 0;
  const send = (method, params = {}, sessionId) => new Promise((resolve) => {
    waiting.set(++ids, resolve);
    socket.send(JSON.stringify({ id: ids, method, params, sessionId }));
  });
  const { targetInfos } = await send("Target.getTargets");
  const { targetId } = targetInfos.find(({ type }) => type === "page");
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  const page = (method, params) => send(method, params, sessionId);
  for (const domain of ["Page", "Runtime", "Log", "DOM"]) await page(`${domain}.enable`);

  /** The value of an expression in the page. */
  const evaluate = async (expression) => {
    const { result, exceptionDetails } =
      await page("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true, userGesture: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
    return result.value;
  };
  /** Waits for an expression to be true. */
  const until = async (expression, seconds = 20) => {
    for (const end = Date.now() + seconds * 1000; Date.now() < end;) {
      if (await evaluate(expression)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`not within ${seconds} s: ${expression}; the page said: ${wrong.join("; ") || "nothing"}`);
  };
  /** The middle of an element that is to be seen. */
  const middle = (selector) => evaluate(`(() => {
    const element = document.querySelector(${JSON.stringify(selector)});
    element.scrollIntoView({ block: "center" });
    const { x, y, width, height } = element.getBoundingClientRect();
    return { x: x + width / 2, y: y + height / 2 };
  })()`);
  return {
    page, evaluate, until, wrong,
    /** Presses the mouse on an element. */
    async click(selector) {
      const at = await middle(selector);
      for (const type of ["mousePressed", "mouseReleased"]) {
        await page("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
      }
    },
    /** Writes over what a field holds; what it is folded into is closed again. */
    async type(selector, text) {
      const field = `document.querySelector(${JSON.stringify(selector)})`;
      const folded = (open) => evaluate(`{ const over = ${field}.closest("details"); if (over) over.open = ${open}; }`);
      await folded(true);
      await evaluate(`{ ${field}.focus(); ${field}.select(); }`);
      if (text) await page("Input.insertText", { text });
      else await page("Input.dispatchKeyEvent", { type: "keyDown", key: "Backspace", code: "Backspace", windowsVirtualKeyCode: 8 });
      await folded(false);
    },
    /** Chooses a value of a select. */
    choose: (selector, value) => evaluate(`{
      const field = document.querySelector(${JSON.stringify(selector)});
      field.value = ${JSON.stringify(value)};
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }`),
    /** Drags a file onto an element and lets it go. */
    async drop(selector, file) {
      const at = await middle(selector);
      const data = { items: [], files: [file], dragOperationsMask: 1 };
      for (const type of ["dragEnter", "dragOver", "drop"]) await page("Input.dispatchDragEvent", { type, ...at, data });
    },
    resize: (width, height = 900) =>
      page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false }),
    grant: (origin) => send("Browser.grantPermissions", { origin, permissions: ["clipboardReadWrite", "clipboardSanitizedWrite"] }),
    async close() {
      await send("Browser.close").catch(() => {});
      await new Promise((resolve) => (child.exitCode === null ? child.on("exit", resolve) : resolve()));
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}
