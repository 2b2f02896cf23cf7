// The page: what is asked, which view is seen, and the keys.

import { describe, STATES, WORDS } from "./cluster.js";
import { get, token } from "./api.js";
import { cards, newest, planCard, trustTable } from "./decisions.js";
import { ago, h, number } from "./dom.js";
import { Live } from "./live.js";
import { ClusterMap } from "./map.js";
import { Story } from "./story.js";
import { badge, incidentsTable, runsTable } from "./tables.js";
import { account, controls, goodputs, usage } from "./usage.js";

const VIEWS = {
  cluster: "Cluster", runs: "Runs", incidents: "Incidents", decisions: "Decisions", usage: "GPU time",
};
const ASKED = {
  decisions: { again: 5_000, ask: newest, into: "decisions" },
  runs: { again: 60_000, ask: goodputs, into: "goodputs" },
  usage: { again: 60_000, ask: () => usage(page.span, page.by), into: "usage" },
};
const at = (id) => document.getElementById(id);
const open = (subject) => (location.hash = `why/${encodeURIComponent(subject)}`);

const page = { view: "", words: "", everything: false, decisions: null, past: null, usage: null, span: "1 day", by: "run", goodputs: new Map() };
const story = new Story(at("story"), () => (location.hash = page.view));
const map = new ClusterMap(open);
const live = new Live(refresh);

function route() {
  const [name, subject] = location.hash.slice(1).split("/");
  if (name === "why" && subject) {
    if (!page.view) show("cluster");
    story.open(decodeURIComponent(subject));
    return;
  }
  story.close();
  show(name in VIEWS ? name : "cluster");
}

function show(view) {
  if (view === page.view) return;
  Object.assign(page, { view, words: "", everything: false, past: null, refusal: "" });
  for (const link of at("views").children)
    link.toggleAttribute("aria-current", link.hash === `#${view}`);
  map.find("");
  at("main").replaceChildren(...frames[view]());
  refresh(live.state);
  more();
}

const filter = (hint) =>
  h("input", {
    type: "search", id: "filter", placeholder: `${hint}  ( / )`, "aria-label": hint,
    oninput: (event) => {
      page.words = event.target.value.trim().toLowerCase();
      map.find(page.words);
      refresh(live.state);
    },
  });

const everything = (label) =>
  h("label", {}, h("input", {
    type: "checkbox",
    onchange: (event) => {
      page.everything = event.target.checked;
      past().then(() => refresh(live.state));
    },
  }), ` ${label}`);

// What stands in each view and stays; what changes is filled in by `fills`.
const frames = {
  cluster: () => [
    h("div", { id: "figures" }),
    h(
      "section",
      { "aria-label": "Map" },
      h(
        "div",
        { class: "bar" },
        filter("Find a node, run or user"),
        h("button", { type: "button", id: "colouring", onclick: recolour }, "Colour: state"),
        h("span", { class: "pair" },
          h("button", { type: "button", "aria-label": "Smaller", onclick: () => map.zoomBy(-1) }, "−"),
          h("button", { type: "button", "aria-label": "Larger", onclick: () => map.zoomBy(1) }, "+")),
        h("ul", { id: "legend" }),
      ),
      map.element,
    ),
    h("section", {}, h("h2", {}, "Open incidents"), h("div", { id: "incidents" })),
    h("section", {}, h("h2", {}, "Runs"), h("div", { id: "runs" })),
  ],
  runs: () => [
    h("div", { class: "bar" }, filter("Filter runs"), everything("those that ended too")),
    h("div", { id: "runs" }),
  ],
  incidents: () => [
    h("div", { class: "bar" }, filter("Filter incidents"), everything("those that are over too")),
    h("div", { id: "incidents" }),
  ],
  decisions: () => [
    h("div", { id: "plan" }),
    h("h2", {}, "Newest decisions"),
    h("div", { id: "decisions" }),
    h("div", { id: "trust" }),
  ],
  usage: () => [
    controls(page.span, page.by, (span, by) => {
      Object.assign(page, { span, by });
      more();
    }),
    h("div", { id: "usage" }),
  ],
};

const fills = {
  figures: (state, cluster) => figures(state, cluster),
  legend: (_, cluster) => legend(cluster.counts),
  runs: ({ runs, plan }) =>
    runsTable(page.past ?? runs, plan, page.goodputs, page.view === "runs" ? page.words : "", open),
  incidents: ({ incidents }) =>
    incidentsTable(page.past ?? incidents, page.view === "incidents" ? page.words : "", open, Date.now() / 1000),
  plan: ({ plan }) => planCard(plan),
  decisions: () => (page.decisions ? cards(page.decisions.items, open) : waiting()),
  trust: () => page.decisions && trustTable(page.decisions.trust),
  usage: () => (page.usage ? account(page.usage, open) : waiting()),
};

const waiting = () => h("p", { class: "empty" }, page.refusal || "…");

// What only one view needs is asked while it is seen.
async function more() {
  clearTimeout(page.timer);
  const { view } = page;
  const asked = ASKED[view];
  if (!asked) return;
  if (!document.hidden) {
    page[asked.into] = await asked.ask().catch((error) => {
      page.refusal = error.message;
      return page[asked.into];
    });
    if (view !== page.view) return;
    refresh(live.state);
  }
  clearTimeout(page.timer);
  page.timer = setTimeout(more, asked.again);
}

async function past() {
  const { view } = page;
  const found = page.everything && (await get(`/${view}`, { limit: 1000 }).catch(() => null));
  if (view === page.view) page.past = found ? found.items : null;
}

function refresh(state) {
  const cluster = describe(state);
  header(state);
  at("views").querySelector("[href='#incidents'] b").textContent = state.incidents.length || "";
  at("views").querySelector("[href='#runs'] b").textContent = state.runs.length || "";
  if (!state.loaded) return;
  if (page.view === "cluster") map.show(cluster);
  for (const [id, fill] of Object.entries(fills)) if (at(id)) swap(at(id), fill(state, cluster));
}

// Only where something changed, and without taking away the place of whoever uses keys.
function swap(box, content) {
  const next = h("div", {}, content);
  if (next.innerHTML === box.innerHTML) return;
  const key = box.contains(document.activeElement) && document.activeElement.dataset.key;
  box.replaceChildren(...next.childNodes);
  if (key) box.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

function header({ health, pauses, trouble, loaded, stranger }) {
  if (stranger && !at("login").open) at("login").showModal();
  at("trouble").hidden = !trouble;
  at("trouble").textContent = loaded && trouble ? `${trouble}: what is shown may be old` : trouble;
  document.body.classList.toggle("stale", Boolean(trouble));
  if (!health) return;
  at("cluster").textContent = health.cluster;
  document.title = `${health.cluster} · Unicron`;
  swap(at("health"), [
    health.mode && badge(health.mode, health.mode),
    pauses.map(({ scope, value, who, why }) =>
      h("span", { class: "badge paused", title: `by ${who}: ${why}` }, `paused: ${scope} ${value}`)),
    sign("unicrond", health.loop === "alive", health.loop === "alive" ? "alive" : `${health.loop}, heard ${ago(health.loop_age_seconds)}`),
    sign("Slurm", health.slurm === "ok", health.slurm),
    sign("database", health.database === "ok", health.database),
    h("span", {}, `${health.agents_connected ?? "?"} agents`),
  ]);
}

const sign = (name, well, words) =>
  h("span", { class: well ? "sign well" : "sign ill" }, h("i", { "aria-hidden": "true" }), `${name} ${words}`);

function figures({ runs, incidents, nodes }, { counts }) {
  const healing = runs.filter((run) => run.state === "healing").length;
  const people = incidents.filter((one) => one.state === "person").length;
  const out = nodes.filter((node) => node.state !== "up").length;
  const share = counts.all ? Math.round((100 * (counts.run + counts.healing)) / counts.all) : 0;
  return [
    figure(number(runs.length), runs.length === 1 ? "run" : "runs", healing ? `${healing} heal` : "all go on"),
    figure(number(counts.run + counts.healing), "GPUs in runs", `${share} % of ${number(counts.all)}`),
    figure(number(counts.idle), "GPUs idle", `${number(counts.other)} in other jobs`),
    figure(number(out), out === 1 ? "node out" : "nodes out", `of ${number(counts.nodes)}`, out > 0),
    figure(number(incidents.length), incidents.length === 1 ? "open incident" : "open incidents", people ? `${people} for a person` : "none for a person", people > 0),
  ];
}

const figure = (value, name, more, ill = false) =>
  h("div", { class: ill ? "figure ill" : "figure" }, h("b", {}, value), h("span", {}, name), h("small", {}, more));

const legend = (counts) =>
  STATES.filter((state) => counts[state]).map((state) =>
    h("li", {}, h("i", { class: `swatch ${state}`, "aria-hidden": "true" }), `${WORDS[state]} `, h("b", {}, number(counts[state]))));

function recolour() {
  map.byRun = !map.byRun;
  at("colouring").textContent = map.byRun ? "Colour: run" : "Colour: state";
  map.later();
}

const THEMES = ["", "dark", "light"];

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  at("theme").textContent = { "": "Theme: system", dark: "Theme: dark", light: "Theme: light" }[wanted];
  localStorage.setItem("theme", wanted);
  map.recolour();
}

const nextTheme = () =>
  theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);

const KEYS = {
  "/": () => at("filter")?.focus(),
  "?": () => at("help").showModal(),
  t: nextTheme,
  c: () => page.view === "cluster" && recolour(),
  m: () => (show("cluster"), at("map").focus()),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && story.subject) location.hash = page.view;
  const typing =
    event.target.matches("input, textarea, select") || at("help").open || at("login").open;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const view = Object.keys(VIEWS)[Number(event.key) - 1];
  if (view) location.hash = view;
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

at("views").append(...Object.entries(VIEWS).map(([name, title]) =>
  h("a", { href: `#${name}` }, title, " ", h("b", {}))));
at("theme").addEventListener("click", nextTheme);
at("login").addEventListener("close", () => {
  token.set(at("token").value.trim().replace(/^SLURM_JWT=/, ""));
  at("token").value = "";
  live.wake();
});
at("help-button").addEventListener("click", KEYS["?"]);
addEventListener("hashchange", route);
theme(localStorage.getItem("theme") ?? "");
route();
live.start();
