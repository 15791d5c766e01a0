// One call of the planner, away from the page, which ends this worker to cancel.

import init, * as planner from "./planner.js";

onmessage = async ({ data: { call, json } }) => {
  try {
    await init({ module_or_path: new URL("planner_bg.wasm", import.meta.url) });
    const progress = (what, done) => postMessage({ progress: { what, done } });
    postMessage({ answer: planner[call](json, progress) });
  } catch (error) {
    postMessage({ error: { message: error.message, field: error.field ?? "" } });
  }
};
