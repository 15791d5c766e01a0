// `node --experimental-websocket page.mjs FOLDER CHROMIUM [PICTURES]`: clicks through the page.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

import { browse, serve } from "./devtools.mjs";

const [folder, chromium, pictures] = process.argv.slice(2);
const planner = await import(pathToFileURL(`${folder}/planner.js`));
planner.initSync({ module: readFileSync(`${folder}/planner_bg.wasm`) });

const site = await serve(folder);
const browser = await browse(chromium);
const { evaluate, until, click, type, choose, resize } = browser;
const files = mkdtempSync(join(tmpdir(), "tidegate-page-"));
const text = (id) => evaluate(`document.getElementById(${JSON.stringify(id)}).innerText`);

async function picture(name) {
  if (!pictures) return;
  const { data } = await browser.page("Page.captureScreenshot", { captureBeyondViewport: true });
  writeFileSync(join(pictures, `${name}.png`), Buffer.from(data, "base64"));
}

/** Nothing is wider than the window, at both ends of what people have. */
async function fits(name) {
  for (const width of [400, 1400]) {
    await resize(width);
    const [wide, room] = await evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    assert.equal(room, width);
    assert.ok(wide <= room, `${name}: ${wide} px wide in a window of ${room}`);
    await picture(`${name}-${width}`);
  }
}

async function planned(document) {
  await click("#plan");
  await until("!document.getElementById('plan').disabled", 300);
  assert.equal(await text("question-error"), "");
  const expected = JSON.parse(planner.plan(JSON.stringify(document), () => {}));
  assert.deepEqual(JSON.parse(await text("json")), expected);
  return expected;
}

const shown = (n) => n.toLocaleString("en");

try {
  await resize(1400);
  await browser.grant(new URL(site.url).origin);
  await browser.page("Page.navigate", { url: site.url });
  await until("document.querySelector('#shape svg') !== null");
  await fits("start");

  // Every input has a label and a place for what is wrong with it.
  const bare = await evaluate(`[...document.querySelectorAll("input, select, textarea")]
    .filter((input) => input.labels.length !== 1).map((input) => input.id)`);
  assert.deepEqual(bare, []);

  // A field that is wrong says so, where it is, with what is allowed.
  for (const [id, wrong, said, right] of [
    ["rate", "0", "found 0; allowed: 0.1 to 1000000", "4"],
    ["rate", "many", 'found "many"; allowed: a number', "4"],
    ["slo_tpot_p99", "", "allowed: a number", "0.06"],
    ["tp", "3", "found 3; allowed: a divisor of the 64 query heads", "1"],
    ["prices", "x", 'line 1: found "x"', ""],
  ]) {
    await type(`#${id}`, wrong);
    await click("#plan");
    await until(`document.getElementById("${id}-error").innerText.includes(${JSON.stringify(said)})`);
    const state = await evaluate(`[document.getElementById("${id}").getAttribute("aria-invalid"), document.activeElement.id,
      document.getElementById("${id}-error").getAttribute("aria-live"), document.getElementById("answer").hidden]`);
    assert.deepEqual(state, ["true", id, "polite", true], id);
    if (id === "tp") await fits("wrong");
    await type(`#${id}`, right);
  }

  // A plan can be called off, and the page stays alive meanwhile.
  await choose("#lengths", "lmsys");
  await choose("#model", "Llama-3.1-8B");
  await type("#max_model_len", "32768");
  await type("#rate", "400");
  await click("#plan");
  await until("/[1-9]\\d* simulations/.test(document.getElementById('progress').innerText)", 60);
  assert.equal(await evaluate("document.getElementById('plan').disabled"), true);
  await click("#cancel");
  await until("document.getElementById('progress').innerText === 'cancelled' && !document.getElementById('plan').disabled", 3);
  assert.equal(await evaluate("document.getElementById('answer').hidden"), true);

  // A preset, planned: what is shown is what the planner says. It pays to split here.
  await type("#slo_tpot_p99", "0.03");
  const asked = {
    lengths: "lmsys", rate: 400, caps: "ladder", cv: 1, model: "Llama-3.1-8B", gpu: "a100_sxm", tp: 1, weights: "bf16",
    kv: "bf16", enable_expert_parallel: false, gpu_memory_utilization: 0.9, max_model_len: 32768, slo_ttft_p99: 2,
    slo_tpot_p99: 0.03, pools: 2, seed: 1, ...JSON.parse(planner.choices()).efforts.quick,
  };
  const plan = await planned(asked);
  assert.equal(plan.plan.splits, true);
  const [verdict, sizes] = [await text("verdict"), await text("sizes")];
  assert.ok(verdict.startsWith(`Split at ${plan.plan.thresholds.map(shown).join(" and ")}: `), verdict);
  assert.ok(verdict.includes(` ${shown(plan.plan.gpus)} GPU`), verdict);
  const rows = new Map(sizes.split("\n").map((row) => row.split("\t")).map(([name, ...cells]) => [name, cells]));
  const { homogeneous, tuned_homogeneous: tuned, oracle } = plan.baselines;
  for (const [name, one] of [["homogeneous", homogeneous], ["tuned", tuned], ["two pools", plan.splits[0]], ["oracle", oracle]]) {
    if (!one) { assert.equal(rows.has(name), false); continue; }
    const [low, high] = one.gpus_by_seed;
    assert.deepEqual(rows.get(name).slice(0, 2), [shown(one.gpus), `${shown(low)} to ${shown(high)}`], name);
    assert.equal(rows.get(name).at(-1), Math.round(one.usd_per_year).toLocaleString("en"), name);
  }
  const marks = await evaluate("[...document.querySelectorAll('#shape svg text:not(.faint)')].map((text) => text.textContent)");
  assert.deepEqual(marks, plan.plan.thresholds.map((t) => `threshold ${shown(t)}`));
  await fits("plan");
  await browser.page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: "dark" }] });
  await fits("dark");
  await browser.page("Emulation.setEmulatedMedia", { features: [] });

  // What is copied is the configuration.
  await click("[aria-label='Copy Tidegate configuration']");
  await until("document.body.innerText.includes('copied')");
  assert.deepEqual(JSON.parse(await evaluate("navigator.clipboard.readText()")), plan.config);

  // A trace of one's own, gzipped, dropped onto the page: all alike, so nothing divides it.
  const line = (nth) => `2023-11-16 18:00:${String(nth % 60).padStart(2, "0")}.0000000,300,100`;
  const csv = ["TIMESTAMP,ContextTokens,GeneratedTokens", ...Array.from({ length: 50 }, (_, nth) => line(nth))].join("\n");
  writeFileSync(join(files, "mine.csv.gz"), gzipSync(csv));
  await browser.drop("#drop", join(files, "mine.csv.gz"));
  await until("document.getElementById('lengths').value === 'trace'");
  await until("document.getElementById('shape').innerText.includes('50 requests')");
  assert.equal(await evaluate("document.getElementById('answer').hidden"), true, "an old answer beside a new question");
  await choose("#caps", "actual");
  const { lengths: _, ...rest } = asked;
  const alike = await planned({ ...rest, caps: "actual", trace: csv });
  assert.equal(alike.plan.splits, false);
  assert.ok((await text("verdict")).startsWith(`Do not split: one tuned pool needs ${shown(alike.plan.gpus)} GPU`));

  // A file that is no trace.
  writeFileSync(join(files, "bad.csv"), csv.replace("300,100", "300,none"));
  await browser.drop("#drop", join(files, "bad.csv"));
  await until(`document.getElementById("trace-error").innerText.includes('line 2: GeneratedTokens is "none"; allowed: ')`);

  assert.deepEqual(browser.wrong, []);
  const own = ["/", "/page.css", "/page.js", "/draw.js", "/worker.js", "/planner.js", "/planner_bg.wasm"];
  assert.deepEqual([...new Set(site.asked)].sort(), own.sort());
} finally {
  await browser.close();
  site.close();
  rmSync(files, { recursive: true });
}
console.log("clicked through");
