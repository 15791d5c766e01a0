// `node call.mjs FOLDER`: runs what standard input says, `{"call": NAME, "document": …}`, and
// prints the answer; an error as `field: message` on standard error.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const planner = await import(pathToFileURL(`${folder}/planner.js`));
planner.initSync({ module: readFileSync(`${folder}/planner_bg.wasm`) });

const { call, document } = JSON.parse(readFileSync(0, "utf8"));
let heard = 0;
try {
  const answer = planner[call](JSON.stringify(document), (what, done) => {
    if (typeof what !== "string" || !(done >= heard)) throw new Error(`heard ${what}, ${done}`);
    heard = done;
  });
  process.stdout.write(answer);
} catch (error) {
  process.stderr.write(`${error.field}: ${error.message}\n`);
  process.exitCode = 1;
}
if (call !== "lengths" && process.exitCode === undefined && heard === 0) throw new Error("no progress");
