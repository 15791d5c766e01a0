// Numbers to tables and SVG. No state.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children; strings become text. */
export function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const whole = (n) => Math.round(n).toLocaleString("en");
export const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)} %`;
export const orNot = (value, show) => (value === null || value === undefined ? "–" : show(value));

/** A table that scrolls by itself where it is too wide. */
export function table(label, heads, rows) {
  const line = (kind, cells) => cells.map((cell) => html(kind, {}, cell));
  const body = rows.map(({ cells, answer }) =>
    html("tr", answer ? { class: "answer" } : {}, ...line("td", cells)));
  const whole = html("table", {},
    html("thead", {}, html("tr", {}, ...line("th", heads))), html("tbody", {}, ...body));
  return html("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, whole);
}

/**
 * Shares of requests by length, in half octaves, as far as `lengths` gives them;
 * thresholds as lines.
 */
export function histogram({ within }, thresholds) {
  const [width, height, left, top, bottom] = [380, 150, 14, 22, 20];
  const bars = within.map(([edge, share], nth) =>
    ({ edge, from: nth ? within[nth - 1][0] : edge / 1.5, share: share - (nth ? within[nth - 1][1] : 0) }));
  // The thin ends say nothing at this size, and are in the figures below.
  while (bars.length > 4 && bars[0].share < 0.0005) bars.shift();
  const [low, high] = [Math.log(bars[0].from), Math.log(bars.at(-1).edge)];
  const x = (tokens) => left + ((Math.log(tokens) - low) / (high - low)) * (width - 2 * left);
  const most = Math.max(...bars.map((bar) => bar.share));
  const floor = height - bottom;
  const first = thresholds[0] ?? 0;
  const parts = bars.map(({ from, edge, share }) => {
    const tall = (share / most) * (floor - top);
    return svg("rect", {
      class: edge <= first ? "bar short" : "bar",
      x: x(from) + 0.5, width: Math.max(x(edge) - x(from) - 1, 1), y: floor - tall, height: tall,
    }, svg("title", {}, `${whole(from)} to ${whole(edge)} tokens: ${percent(share, 2)}`));
  });
  parts.push(svg("line", { class: "axis", x1: left, x2: width - left, y1: floor, y2: floor }));
  for (const { edge } of bars.filter(({ edge }) => Math.log2(edge) % 2 === 0)) {
    const label = edge >= 1024 ? `${edge / 1024}K` : edge;
    parts.push(svg("text", { class: "faint", x: x(edge), y: height - 5, "text-anchor": "middle" }, label));
  }
  for (const threshold of thresholds) {
    const at = x(threshold);
    const end = at > width / 2;
    parts.push(svg("line", { class: "mark", x1: at, x2: at, y1: 4, y2: floor }),
      svg("text", { x: at + (end ? -5 : 5), y: 14, "text-anchor": end ? "end" : "start" },
        `threshold ${whole(threshold)}`));
  }
  const label = `Share of requests by prompt and answer tokens${thresholds.map((t) => `, threshold ${t}`).join("")}`;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}

/** A bar for each `{name, gpus, low, high, answer}`, whiskers over the seeds. */
export function bars(all) {
  const [width, line, left, right] = [380, 30, 96, 64];
  const most = Math.max(...all.map((one) => one.high ?? 0), 1);
  const x = (gpus) => left + (gpus / most) * (width - left - right);
  const parts = all.flatMap((one, nth) => {
    const [y, middle] = [nth * line + 5, nth * line + 15];
    const name = svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, one.name);
    if (one.gpus === null) {
      return [name, svg("text", { class: "faint", x: left, y: middle + 4 }, "never holds")];
    }
    return [
      name,
      svg("rect", { class: one.answer ? "bar answer" : "bar", x: left, y, width: x(one.gpus) - left, height: 20 }),
      svg("line", { class: "whisker", x1: x(one.low), x2: x(one.high), y1: middle, y2: middle }),
      ...[one.low, one.high].map((gpus) =>
        svg("line", { class: "whisker", x1: x(gpus), x2: x(gpus), y1: middle - 5, y2: middle + 5 })),
      svg("text", { x: Math.max(x(one.high), x(one.gpus)) + 6, y: middle + 4 }, whole(one.gpus)),
    ];
  });
  const label = all.map((one) => `${one.name}: ${one.gpus ?? "never"}`).join(", ");
  return svg("svg", { viewBox: `0 0 ${width} ${all.length * line + 4}`, role: "img", "aria-label": `GPUs. ${label}` }, ...parts);
}
