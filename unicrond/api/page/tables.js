// Runs and incidents as tables. A row opens its story by click or Enter.

import { clock, day, folded, h, howLong, natural, number, percent, s, si } from "./dom.js";

const MOST_ROWS = 300;

export function runsTable(runs, plan, goodputs, words, open) {
  const waf = new Map((plan?.today?.runs ?? []).map((run) => [run.id, run.waf]));
  const found = runs.filter((run) => matches(words, run.run_id, run.name, run.user, run.state));
  return table(
    "No run that unicrond looks after. Users submit one with unicron-run.",
    ["Run", "Name", "User", "State", "Nodes", "#Gen", "#Iteration", "#WAF", "#Goodput", "#Weight", "Where"],
    found,
    (run) => ({
      key: String(run.run_id),
      cells: [
        run.run_id,
        run.name,
        run.user,
        badge(run.healing ? `${run.state}: ${run.healing}` : run.state, run.state),
        size(run),
        run.generation,
        run.iteration < 0 ? "–" : number(run.iteration),
        waf.has(run.run_id) ? si(waf.get(run.run_id)) : "–",
        percent(goodputs.get(String(run.run_id))),
        run.weight,
        h("span", { class: "hosts" }, folded(run.running_on.toSorted(natural)) || run.end_reason),
      ],
    }),
    open,
  );
}

export function incidentsTable(incidents, words, open, now) {
  const found = incidents.filter((one) =>
    matches(words, `i${one.incident_id}`, one.kind, one.state, one.root_node, one.run_id, one.summary),
  );
  return table(
    "No incident.",
    ["Incident", "Opened", "Severity", "Kind", "State", "Took", "Run", "Node", "What"],
    found,
    (one) => ({
      key: `i${one.incident_id}`,
      cells: [
        `i${one.incident_id}`,
        h("time", { title: day(one.opened_at) }, opened(one.opened_at, now)),
        badge(one.severity, one.severity.toLowerCase()),
        one.kind,
        badge(one.state, one.state),
        howLong(Math.max(0, (one.closed_at || now) - (one.first_signal_at || one.opened_at))),
        one.run_id ?? "–",
        one.root_node + (one.root_rank === null ? "" : ` rank ${one.root_rank}`) || "–",
        h("span", { class: "words" }, one.summary),
      ],
    }),
    open,
  );
}

const opened = (at, now) => (now - at < 86400 ? clock(at) : `${day(at)} ${clock(at)}`);

export const badge = (words, kind) => h("span", { class: `badge ${kind}` }, words);

export const matches = (words, ...values) =>
  !words || values.some((value) => String(value ?? "").toLowerCase().includes(words));

// How many nodes it runs on, between the fewest and the most that it may have.
export function size(run) {
  const [now, most] = [run.running_on.length, Math.max(run.max_nodes, run.running_on.length, 1)];
  const at = (nodes) => (nodes / most) * 60;
  return h(
    "span",
    { class: "size", title: `${now} nodes; from ${run.min_nodes} to ${run.max_nodes}` },
    h("b", {}, now),
    s(
      "svg",
      { width: 62, height: 10, "aria-hidden": "true" },
      s("rect", { class: "room", x: 0, y: 2, width: 60, height: 6, rx: 3 }),
      s("rect", { class: "used", x: 0, y: 2, width: at(now), height: 6, rx: 3 }),
      s("rect", { class: "least", x: at(run.min_nodes), y: 0, width: 2, height: 10 }),
    ),
    h("small", {}, ` of ${run.max_nodes}`),
  );
}

// A heading that begins with # is of numbers.
export function table(empty, headings, items, row, open) {
  if (!items.length) return h("p", { class: "empty" }, empty);
  const numbers = headings.map((heading) => heading.startsWith("#"));
  const shown = items.slice(0, MOST_ROWS).map((item) => {
    const { key, cells } = row(item);
    const act = () => open(key);
    return h(
      "tr",
      {
        "data-key": key,
        tabindex: 0,
        onclick: act,
        onkeydown: (event) => event.key === "Enter" && act(),
      },
      cells.map((cell, at) => h("td", { class: numbers[at] && "number" }, cell)),
    );
  });
  const left = items.length - shown.length;
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, headings.map((heading, at) =>
        h("th", { scope: "col", class: numbers[at] && "number" }, heading.replace("#", ""))))),
      h("tbody", {}, shown),
    ),
    left > 0 && h("p", { class: "empty" }, `${number(left)} more: filter the list to see them`),
  );
}
