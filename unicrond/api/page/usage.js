// Where GPU time went: the ledger by cause, and what was lost by run, node, account, user or kind.

import { get } from "./api.js";
import { h, number, percent, s } from "./dom.js";
import { table } from "./tables.js";

export const CAUSES = [
  "training", "unmanaged", "starting", "detection", "decision", "transition", "requeued",
  "left out", "unmended", "ending",
];
const NOT_LOST = new Set(["training", "unmanaged"]);
const KEYS = { run: "Run", node: "Node", account: "Account", user: "User", kind: "Kind of fault" };
export const SPANS = { "1 hour": 3600, "1 day": 86_400, "1 week": 604_800, "30 days": 2_592_000 };

// The whole by cause, and the same cut by something else.
export async function usage(span, by) {
  const to = Date.now() / 1000;
  const part = { from: (to - SPANS[span]).toFixed(3), to: to.toFixed(3) };
  const [whole, cut] = await Promise.all([
    get("/ledger", { ...part, by: "cause" }),
    get("/ledger", { ...part, by, limit: 300 }),
  ]);
  return { total: whole.total, rows: cut.rows, by };
}

// Of the last day, by run: the part of what it held that trained.
export async function goodputs() {
  const { rows } = await get("/ledger", { by: "run", limit: 20_000 });
  return new Map(rows.map((row) => [row.key, row.goodput]));
}

export function controls(span, by, changed) {
  return h(
    "div",
    { class: "bar" },
    choice("The last", "span", Object.keys(SPANS), span, (value) => changed(value, by)),
    choice("lost by", "by", Object.keys(KEYS), by, (value) => changed(span, value)),
  );
}

function choice(label, id, values, chosen, changed) {
  const options = values.map((value) =>
    h("option", { value, selected: value === chosen }, KEYS[value]?.toLowerCase() ?? value));
  const select = h("select", { id, onchange: (event) => changed(event.target.value) }, options);
  return h("label", {}, `${label} `, select);
}

export function account({ total, rows, by }, open) {
  if (!total.gpu_seconds) return h("p", { class: "empty" }, "No job held a GPU in that time.");
  const lost = lossesOf(total.causes);
  const most = Math.max(...rows.map((row) => row.lost_gpu_seconds), 1e-9);
  return [
    h("h2", {}, `All GPU time: ${hours(total.gpu_seconds)}`),
    bar(total.causes, total.gpu_seconds, "wide"),
    legend(total.causes, total.gpu_seconds),
    h("h2", {}, `Lost: ${hours(total.lost_gpu_seconds)}${goodput(total)}`),
    total.lost_gpu_seconds > 0 && bar(lost, total.lost_gpu_seconds, "wide"),
    legend(lost, total.lost_gpu_seconds),
    h("h2", {}, `By ${KEYS[by].toLowerCase()}`),
    table(
      "Nothing was lost.",
      [KEYS[by], "#GPU-hours", "#Lost", "#Goodput", "Lost to"],
      rows.filter((row) => row.gpu_seconds),
      (row) => ({
        key: row.key,
        cells: [
          row.key || "none",
          inHours(row.gpu_seconds),
          inHours(row.lost_gpu_seconds),
          percent(row.goodput),
          bar(lossesOf(row.causes), most, "narrow"),
        ],
      }),
      by === "run" || by === "node" ? open : () => {},
    ),
  ];
}

const lossesOf = (causes) =>
  Object.fromEntries(Object.entries(causes).filter(([cause]) => !NOT_LOST.has(cause)));

const goodput = (total) => (total.goodput === null ? "" : ` · goodput of runs ${percent(total.goodput)}`);

const inHours = (seconds) => {
  const value = seconds / 3600;
  if (value >= 100) return number(Math.round(value));
  return value >= 0.1 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
};

const hours = (seconds) => `${inHours(seconds)} GPU-hours`;

const present = (causes) => CAUSES.filter((cause) => causes[cause] > 0);
const classOf = (cause) => `cause-${cause.replace(" ", "-")}`;

function bar(causes, whole, kind) {
  let x = 0;
  const parts = present(causes).map((cause) => {
    const width = (causes[cause] / whole) * 1000;
    x += width;
    return s("rect", { class: classOf(cause), x: x - width, y: 0, width, height: 10 },
      s("title", {}, `${cause}: ${hours(causes[cause])}`));
  });
  const words = present(causes).map((cause) => `${cause} ${hours(causes[cause])}`).join(", ");
  return s(
    "svg",
    { class: `stack ${kind}`, viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": words || "nothing" },
    parts,
  );
}

function legend(causes, whole) {
  const items = present(causes).map((cause) =>
    h("li", {}, s("svg", { class: "key", width: 11, height: 11, "aria-hidden": "true" },
      s("rect", { class: classOf(cause), width: 11, height: 11, rx: 2 })),
      `${cause} `, h("b", {}, inHours(causes[cause])),
      ` ${((100 * causes[cause]) / whole).toFixed(causes[cause] < whole / 100 ? 2 : 0)} %`));
  return h("ul", { class: "legend" }, items);
}
