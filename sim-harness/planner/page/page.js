// The form, the calls, the answer. The planner itself runs in worker.js.

import { bars, histogram, html, orNot, percent, table, whole } from "./draw.js";

const at = (id) => document.getElementById(id);
const NAMES = {
  azure: "Azure 2023: chat and code", lmsys: "LMSYS-Chat-1M: chat", agent: "agents: long prompts",
  ladder: "30 % none, else a round number", actual: "their answer's length", none: "none",
};
/** What the worker is given as text is copied a few times; the command has no such limit. */
const TRACE_BYTES_MAX = 200e6;
const FIELDS = ["rate", "caps", "cv", "model", "gpu", "tp", "weights", "kv", "enable_expert_parallel",
  "gpu_memory_utilization", "max_model_len", "slo_ttft_p99", "slo_tpot_p99", "pools", "seed", "prices"];

/** What can be chosen, as the planner says. */
let choices;
/** The text of a trace, and its file's name. */
let trace = null;
/** The distribution that is shown, and the plan. */
let shape = null;
let made = null;
/** Ends the plan that is being made. */
let cancel = null;

/** Calls the planner in a worker of its own: `answer`, a promise, and `cancel`. */
function call(name, question, progress = () => {}) {
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  let stop;
  const answer = new Promise((resolve, reject) => {
    stop = () => reject(null);
    worker.onmessage = ({ data }) => {
      if (data.progress) progress(data.progress);
      else if (data.error) reject(data.error);
      else resolve(JSON.parse(data.answer));
    };
    worker.onerror = () => reject({ field: "", message: "the planner could not be loaded: serve this folder by HTTP" });
    worker.postMessage({ call: name, json: JSON.stringify(question) });
  }).finally(() => worker.terminate());
  return { answer, cancel: stop };
}

/** Shows what is wrong at its field, or takes it away. */
function tell(field, message) {
  const place = at(`${field}-error`) ?? at("question-error");
  place.textContent = message && place.id === "question-error" && field && field !== "question"
    ? `${field}: ${message}` : message;
  const input = at(field);
  if (!input) return;
  if (message) {
    input.setAttribute("aria-invalid", "true");
    const folded = input.closest("details");
    if (folded) folded.open = true;
    input.focus();
  } else {
    input.removeAttribute("aria-invalid");
  }
}

function clear() {
  for (const field of [...FIELDS, "lengths", "trace", "question"]) tell(field, "");
}

/** The part of the question that says how long requests are. */
const lengths = () => (at("lengths").value === "trace" ? { trace: trace.text } : { lengths: at("lengths").value });

/** The question, as `tidegate-sim plan` has it; what is no number stays text, for the planner to refuse. */
function question() {
  const asked = { ...lengths(), ...choices.efforts[at("effort").value] };
  for (const field of FIELDS) {
    const input = at(field);
    if (input.type === "checkbox") asked[field] = input.checked;
    else if (input.value.trim() === "") continue;
    else if ("number" in input.dataset && Number.isFinite(Number(input.value))) asked[field] = Number(input.value);
    else asked[field] = input.value;
  }
  return asked;
}

function drawShape() {
  const thresholds = made?.plan.splits ? made.plan.thresholds : [];
  at("shape").replaceChildren();
  if (!shape) return;
  const within = (share) => shape.within.find(([, all]) => all >= share)[0];
  const who = shape.requests === null ? "Requests" : `${whole(shape.requests)} requests`;
  at("shape").append(
    html("h3", {}, "Prompt and answer tokens of a request"),
    histogram(shape, thresholds),
    html("p", { class: "hint" }, `${who}: half have at most ${whole(within(0.5))} tokens, nine of ten
      ${whole(within(0.9))}, 99 of 100 ${whole(within(0.99))}, all ${whole(within(1))} (upper ends of bars).`),
  );
}

/** Counts the calls, so that only the last one's answer is shown. */
let shapes = 0;

async function showShape() {
  const mine = ++shapes;
  const field = at("lengths").value === "trace" ? "trace" : "lengths";
  try {
    const found = await call("lengths", lengths()).answer;
    if (mine === shapes) shape = found;
    tell(field, "");
  } catch (error) {
    if (mine === shapes) shape = null;
    tell(error.field || field, error.message);
  }
  drawShape();
}

/** Reads a dropped or chosen file; gzip is told by its first bytes. */
async function take(file) {
  clear();
  try {
    let bytes = file.stream();
    const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
    if (head[0] === 0x1f && head[1] === 0x8b) bytes = bytes.pipeThrough(new DecompressionStream("gzip"));
    const decoder = new TextDecoder();
    let text = "";
    for (const reader = bytes.getReader(); ;) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
      if (text.length > TRACE_BYTES_MAX) {
        throw new Error(`found more than ${whole(TRACE_BYTES_MAX / 1e6)} MB of text; allowed: less, or the command`);
      }
    }
    trace = { text: text + decoder.decode(), name: file.name };
  } catch (error) {
    return tell("trace", `${file.name}: ${error.message}`);
  }
  let option = at("lengths").querySelector("[value=trace]");
  if (!option) at("lengths").append((option = html("option", { value: "trace" })));
  option.textContent = trace.name;
  at("lengths").value = "trace";
  forget();
  await showShape();
}

/** An older answer does not stand beside a newer question. */
function forget() {
  made = null;
  at("answer").hidden = true;
}

function alternatives(plan) {
  const { homogeneous, tuned_homogeneous: tuned, oracle } = plan.baselines;
  const same = (one) => plan.plan.splits && one && one.thresholds?.join() === plan.plan.thresholds.join();
  return [
    ["homogeneous", homogeneous], ["tuned", tuned, !plan.plan.splits],
    ...plan.splits.map((one, nth) => [["two", "three", "four"][nth] + " pools", one, same(one)]),
    ["oracle", oracle],
  ].filter(([, one]) => one).map(([name, one, answer]) => ({ name, one, answer: Boolean(answer) }));
}

const gpus = (n) => `${whole(n)} ${n === 1 ? "GPU" : "GPUs"}`;

function verdict({ plan, savings, splits: [two] }) {
  if (plan.gpus === null) return "No fleet of these kinds holds the promise.";
  if (plan.splits) {
    return `Split at ${plan.thresholds.map(whole).join(" and ")}: ${gpus(plan.gpus)}, ` +
      `${orNot(savings.homogeneous, percent)} less than homogeneous, ` +
      `${orNot(savings.tuned_homogeneous, percent)} less than the tuned single pool.`;
  }
  const forced = two?.gpus
    ? ` The best split, at ${two.thresholds.map(whole).join(" and ")}, needs ${whole(two.gpus)}.` : "";
  const against = savings.homogeneous ? `, ${percent(savings.homogeneous)} less than homogeneous` : "";
  return `Do not split: one tuned pool needs ${gpus(plan.gpus)}${against}.${forced}`;
}

function remarks(plan) {
  const { scale, verified } = plan;
  const all = [];
  if (!plan.plan.clear) {
    all.push("The seeds' ranges of the split and of the tuned single pool overlap: the difference is within chance.");
  }
  const rate = scale.share < 1 ? `${percent(scale.share)} of the rate, and scaled up` : "the rate itself";
  all.push(`Simulated at ${rate}: ${whole(scale.window_s)} s after ${whole(scale.warm_up_s)} s of warm-up,
    ${whole(scale.runs)} simulations, ${whole(scale.requests)} requests.`);
  for (const one of verified) {
    all.push(`At the full rate, ${whole(one.requests)} requests with each seed, ${one.name}:
      ${one.holds ? "holds" : "DOES NOT HOLD"}, ${one.replicas_added} replicas added.`);
  }
  if (!verified.length) {
    all.push("Not checked at the full rate: full effort does that.");
  }
  for (const one of plan.sensitivity) {
    all.push(`At ${whole(one.rate)} requests a second: ${orNot(one.plan, whole)} GPUs
      (homogeneous ${orNot(one.homogeneous, whole)}, tuned ${orNot(one.tuned_homogeneous, whole)}).`);
  }
  for (const one of plan.drift) {
    all.push(`With ${one.what}: ${orNot(one.plan, whole)} GPUs
      (homogeneous ${orNot(one.homogeneous, whole)}, tuned ${orNot(one.tuned_homogeneous, whole)}).`);
  }
  for (const { name, one } of alternatives(plan)) if (one.why) all.push(`${name}: ${one.why}.`);
  return all.map((text) => html("p", {}, text));
}

function copyable(title, id, text) {
  const said = html("span", { role: "status" });
  const button = html("button", { type: "button", "aria-label": `Copy ${title}` }, "Copy");
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(at(id));
      said.textContent = "selected: copy it from here";
    }
  };
  return html("div", { class: "copy" },
    html("div", {}, html("strong", {}, title), button, said), html("pre", { id, tabindex: "0" }, text));
}

function show(plan) {
  made = plan;
  const all = alternatives(plan);
  at("verdict").textContent = verdict(plan);
  at("remarks").replaceChildren(...remarks(plan));
  at("bars").replaceChildren(bars(all.map(({ name, one, answer }) =>
    ({ name, answer, gpus: one.gpus, low: one.gpus_by_seed?.[0], high: one.gpus_by_seed?.[1] }))));
  const { homogeneous, tuned_homogeneous: tuned } = plan.baselines;
  const less = (one, than) => orNot(one.gpus && than.gpus ? 1 - one.gpus / than.gpus : null, percent);
  at("sizes").replaceChildren(table("GPU counts",
    ["", "GPUs", "by seed", "saves vs homogeneous", "vs tuned", "TTFT p99 s", "TPOT p99 s", "cut short", "refused", "$ a year"],
    all.map(({ name, one, answer }) => ({
      answer,
      cells: [name, orNot(one.gpus, whole), orNot(one.gpus_by_seed, (ends) => ends.map(whole).join(" to ")),
        less(one, homogeneous), less(one, tuned),
        orNot(one.ttft_p99_s, (s) => s.toFixed(3)), orNot(one.tpot_p99_s, (s) => s.toFixed(3)),
        orNot(one.truncated, (share) => percent(share, 3)), orNot(one.refused, (share) => percent(share, 3)),
        orNot(one.usd_per_year, whole)],
    }))));
  at("sizes").append(html("p", { class: "hint" }, `Counts are medians over the seeds. The oracle knows
    lengths, which nobody can. ${plan.price
    ? `$${plan.price.usd_per_gpu_hour} a GPU-hour (${plan.price.date}, ${plan.price.source}).`
    : `No price of ${plan.gpu} is known: give one above.`}`));
  at("pool-table").replaceChildren(table("Pools",
    ["", "replicas", "requests", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "KV cache in use"],
    plan.plan.pools.map((pool) => ({
      cells: [pool.name, whole(pool.replicas), percent(pool.share), whole(pool.max_model_len),
        whole(pool.max_num_seqs), whole(pool.max_num_batched_tokens), percent(pool.kv)],
    }))));
  at("formulas").replaceChildren(table("Formulas",
    ["replicas", "closed form (papers)", "fluid", "with queueing", "simulated"],
    all.filter(({ name }) => name !== "oracle").map(({ name, one, answer }) => ({
      answer,
      cells: [name, ...["closed_form", "fluid", "queueing"].map((kind) => whole(one.replicas_by_formula[kind])),
        one.gpus === null ? "never" : whole(one.pools.reduce((sum, pool) => sum + pool.replicas, 0))],
    }))));
  const engines = plan.plan.pools.map((pool) => `# ${pool.name}: ${pool.replicas} replicas\n${pool.command}\n`).join("");
  at("paste").replaceChildren(...(plan.plan.pools.length ? [
    copyable("vLLM", "engines", engines),
    copyable("Tidegate configuration", "config", JSON.stringify(plan.config, null, 2)),
    copyable("Envoy clusters", "envoy", plan.envoy),
  ] : []), copyable("All of it as JSON", "json", JSON.stringify(plan, null, 2)));
  at("answer").hidden = false;
  drawShape();
}

async function run(event) {
  event.preventDefault();
  clear();
  forget();
  drawShape();
  const start = performance.now();
  let state = { what: "starting", done: 0 };
  const say = () => {
    const seconds = Math.round((performance.now() - start) / 1000);
    at("progress").textContent = `${state.what}; ${state.done} simulations, ${seconds} s`;
  };
  const clock = setInterval(say, 1000);
  const planning = call("plan", question(), (progress) => { state = progress; say(); });
  cancel = planning.cancel;
  at("plan").disabled = true;
  at("cancel").hidden = false;
  try {
    show(await planning.answer);
    at("progress").textContent = `done in ${((performance.now() - start) / 1000).toFixed(0)} s`;
  } catch (error) {
    at("progress").textContent = error ? "" : "cancelled";
    if (error) tell(error.field || "question", error.message);
  } finally {
    clearInterval(clock);
    cancel = null;
    at("plan").disabled = false;
    at("cancel").hidden = true;
  }
}

function fill(id, names, chosen) {
  at(id).replaceChildren(...names.map((name) => html("option", { value: name }, NAMES[name] ?? name)));
  at(id).value = chosen ?? names[0];
}

async function begin() {
  choices = await call("choices").answer;
  fill("lengths", choices.lengths);
  fill("caps", choices.caps);
  fill("model", choices.models, "Llama-3.1-70B");
  fill("gpu", choices.gpus.map((gpu) => gpu.name), "a100_sxm");
  fill("weights", choices.precisions);
  fill("kv", choices.precisions);
  fill("effort", Object.keys(choices.efforts), "quick");
  for (const [field, value] of Object.entries(choices.defaults)) at(field).value = value;
  const hint = () => {
    const { requests, seeds, verify } = choices.efforts[at("effort").value];
    at("effort-hint").textContent = `${whole(requests)} requests a simulation, ${seeds} seeds` +
      (verify ? ", checked at the full rate: minutes." : ": seconds, for a first look. In six tries it found from 6 % fewer to 14 % more GPUs than full effort, and savings up to 9 points lower.");
  };
  at("effort").onchange = hint;
  hint();
  at("lengths").onchange = () => { clear(); forget(); showShape(); };
  at("trace").onchange = ({ target }) => target.files[0] && take(target.files[0]);
  const drop = at("drop");
  for (const [event, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    drop.addEventListener(event, (dropped) => {
      dropped.preventDefault();
      drop.classList.toggle("over", over);
      if (event === "drop" && dropped.dataTransfer.files[0]) take(dropped.dataTransfer.files[0]);
    });
  }
  at("form").onsubmit = run;
  at("cancel").onclick = () => cancel?.();
  await showShape();
}

begin().catch((error) => tell("question", error?.message ?? String(error)));
