// The story of a run, an incident or a node, in a panel beside what else is seen.

import { get, maybe } from "./api.js";
import { alternatives } from "./decisions.js";
import { clock, day, h, howLong, number, s, when } from "./dom.js";
import { badge, size } from "./tables.js";

const AGAIN_MS = 3_000;
const RUNNING = /^(?:running|ranks run again) on (\d+) nodes?\b.*\bgeneration (\d+)/;

export class Story {
  constructor(panel, closed) {
    this.panel = panel;
    this.closed = closed;
    this.subject = "";
  }

  async open(subject) {
    if (subject === this.subject) return;
    this.before ??= document.activeElement;
    this.subject = subject;
    this.shown = "";
    this.panel.hidden = false;
    this.panel.replaceChildren(this.head(subject, ""), h("p", { class: "empty" }, "…"));
    this.panel.focus();
    await this.look();
  }

  close() {
    if (!this.subject) return;
    clearTimeout(this.timer);
    this.subject = "";
    this.panel.hidden = true;
    back(this.before)?.focus();
    this.before = null;
  }

  async look() {
    clearTimeout(this.timer);
    const subject = this.subject;
    let body;
    try {
      body = document.hidden ? null : await told(subject);
    } catch (error) {
      body = { title: subject, summary: "", parts: [h("p", { class: "empty" }, error.message)] };
    }
    if (subject !== this.subject) return;
    if (body) this.fill(body);
    this.timer = setTimeout(() => this.look(), AGAIN_MS);
  }

  // Left alone while nothing changed: a person may be reading or selecting.
  fill({ title, summary, parts }) {
    const next = h("div", {}, this.head(title, summary), parts);
    if (next.textContent === this.shown) return;
    this.shown = next.textContent;
    const at = this.panel.scrollTop;
    this.panel.replaceChildren(...next.childNodes);
    this.panel.scrollTop = at;
  }

  head(title, summary) {
    return h(
      "header",
      {},
      h("h2", {}, title),
      h("button", { type: "button", class: "close", "aria-label": "Close (Esc)", onclick: this.closed }, "×"),
      summary && h("p", {}, summary),
    );
  }
}

// To where the keys were, though the list may have been drawn anew since.
function back(element) {
  if (!element || element.isConnected) return element;
  return document.querySelector(`main [data-key="${CSS.escape(element.dataset.key ?? "")}"]`);
}

async function told(subject) {
  const why = await get(`/why/${encodeURIComponent(subject)}`, { limit: 500 });
  const [kind, name] = why.subject.split(" ");
  const extra = { run: aboutRun, incident: aboutIncident, node: aboutNode }[kind];
  return {
    title: why.subject,
    summary: why.summary,
    parts: [
      await extra(name, why.lines),
      why.next !== null && h("p", { class: "empty" }, `Earlier lines: unicronctl why ${subject}`),
      timeline(why.lines),
    ],
  };
}

async function aboutRun(name, lines) {
  const run = await get(`/runs/${name}`);
  const facts = [
    ["State", badge(run.healing ? `${run.state}: ${run.healing}` : run.state, run.state)],
    ["Nodes", size(run)],
    ["Ranks", number(run.ranks.length)],
    ["Generation", run.generation],
    ["Iteration", run.iteration < 0 ? "not reported" : number(run.iteration)],
    ["Agents", `${run.agents.filter((agent) => agent.connected).length} of ${run.agents.length} connected`],
    ["Weight", run.weight],
    ["Requeued", `${run.restarts} times`],
    run.shunned.length && ["Moved off", run.shunned.join(", ")],
  ];
  return [list(facts), generations(lines)];
}

async function aboutIncident(name) {
  const one = await get(`/incidents/${name}`);
  const from = one.first_signal_at || one.opened_at;
  const facts = [
    ["State", badge(one.state, one.state)],
    ["Severity", badge(one.severity, one.severity.toLowerCase())],
    ["Root", [one.root_node, one.root_rank === null ? null : `rank ${one.root_rank}`].filter(Boolean).join(", ") || one.scope],
    one.run_id !== null && ["Run", h("a", { href: `#why/${one.run_id}` }, one.run_id)],
    ["Opened", when(one.opened_at)],
    one.decided_at > 0 && ["Decided", `${howLong(Math.max(0, one.decided_at - from))} after the first signal`],
    one.closed_at > 0 && ["Closed", `${howLong(Math.max(0, one.closed_at - from))} after it`],
    ["Signals", one.count],
    one.rule && ["Rule", one.rule + (one.review ? `: ${one.review.proof}` : "")],
  ];
  return [
    list(facts),
    one.evidence && h("details", { open: true }, h("summary", {}, "Evidence"), h("pre", {}, one.evidence)),
    one.actions.length > 0 && actions(one.actions),
  ];
}

async function aboutNode(name) {
  const node = await maybe(get(`/nodes/${encodeURIComponent(name)}`));
  if (!node) return null;
  return list([
    ["State", `${inWords(node)}${node.reason_user ? `, by ${node.reason_user}` : ""}`],
    ["GPUs", [node.gpus, node.gpu_type].filter(Boolean).join(" ") || "none"],
    node.switch && ["Switch", node.switch],
    ["Partitions", node.partitions.join(", ")],
    node.run_ids.length > 0 && ["Runs", links(node.run_ids.map(String))],
    node.incidents.length > 0 && ["Incidents", links(node.incidents.map((one) => `i${one.incident_id}`))],
    ["Since", when(node.changed_at)],
  ]);
}

const inWords = ({ state, raw_state }) => `${state} (${raw_state})`;

const links = (subjects) => subjects.flatMap((one) => [h("a", { href: `#why/${one}` }, one), " "]);

const list = (facts) =>
  h("dl", { class: "facts" }, facts.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function actions(acts) {
  const rows = acts.map((act) =>
    h("tr", {}, h("td", {}, act.kind.replaceAll("_", " ")), h("td", {}, act.node || "–"),
      h("td", {}, badge(act.outcome ?? "under way", act.outcome ?? "open")),
      h("td", { class: "words" }, act.detail)));
  return h("details", { open: true }, h("summary", {}, `Actions (${acts.length})`), h("table", {}, h("tbody", {}, rows)));
}

// Nodes over time, a step for each generation that ran; a mark where an incident was decided.
function generations(lines) {
  const points = lines.flatMap(({ at, text }) => {
    const found = RUNNING.exec(text);
    return found ? [{ at, nodes: Number(found[1]), generation: found[2] }] : [];
  });
  if (!points.length) return null;
  const marks = lines.filter(({ kind }) => kind === "decision").map(({ at }) => at);
  const [from, to] = [Math.min(points[0].at, ...marks), Math.max(lines.at(-1).at, points.at(-1).at + 1)];
  const most = Math.max(...points.map(({ nodes }) => nodes));
  const [x, y] = [(at) => 8 + ((at - from) / (to - from)) * 384, (nodes) => 84 - (nodes / most) * 62];
  const path = points.map(({ at, nodes }, i) => `${i ? `H${x(at).toFixed(1)}V` : `M${x(at).toFixed(1)} `}${y(nodes).toFixed(1)}`);
  const sparse = Math.max(1, Math.ceil(points.length / 12));
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, "Nodes by generation; marks are decisions"),
    s(
      "svg",
      { viewBox: "0 0 400 100", role: "img", "aria-label": `${points.length} generations on up to ${most} nodes` },
      s("line", { class: "axis", x1: 8, y1: 84, x2: 392, y2: 84 }),
      marks.map((at) => s("line", { class: "mark", x1: x(at), y1: 12, x2: x(at), y2: 84 })),
      s("path", { class: "steps", d: `${path.join("")}H392` }),
      points.filter((_, i) => i % sparse === 0).map(({ at, nodes, generation }) =>
        s("text", { x: Math.min(x(at) + 2, 376), y: y(nodes) - 4 }, `g${generation}: ${nodes}`)),
      s("text", { class: "time", x: 8, y: 97 }, `${day(from)} ${clock(from)}`),
      s("text", { class: "time end", x: 392, y: 97 }, clock(to)),
    ),
  );
}

function timeline(lines) {
  let today = "";
  const items = lines.map((line) => {
    const parts = [];
    if (day(line.at) !== today) {
      today = day(line.at);
      parts.push(h("li", { class: "day" }, today));
    }
    parts.push(h("li", { class: line.kind }, h("time", {}, clock(line.at)), h("div", {}, ...said(line))));
    return parts;
  });
  return h("ol", { class: "timeline" }, items);
}

function said({ kind, node, text, decision }) {
  const bad = kind === "outcome" && / (failed|refused)/.test(text);
  return [
    h("span", { class: `kind ${bad ? "bad" : kind}` }, kind),
    node && !text.includes(node) && h("a", { href: `#why/${encodeURIComponent(node)}` }, node),
    h("span", { class: "said" }, text),
    decision?.alternatives.length > 0 && alternatives(decision.alternatives),
  ].filter(Boolean);
}
