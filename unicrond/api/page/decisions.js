// The newest plan, and the newest decisions on incidents, each with what else was weighed.

import { get } from "./api.js";
import { h, howLong, si, when } from "./dom.js";
import { badge, table } from "./tables.js";

const SHOWN = 24;

export function alternatives(options) {
  const rows = options.map(({ name, chosen, price }) =>
    h(
      "tr",
      { class: chosen && "chosen" },
      h("td", { "aria-label": chosen ? "chosen" : "not chosen" }, chosen ? "✓" : ""),
      h("td", {}, name),
      h("td", {}, price),
    ),
  );
  return h("table", { class: "alternatives" }, h("tbody", {}, rows));
}

export async function newest() {
  const [{ items }, trust] = await Promise.all([get("/decisions", { limit: SHOWN }), get("/trust")]);
  return { items, trust };
}

// What was decided and not carried out, beside what people did: may it be switched on?
export function trustTable({ actions, needed }) {
  if (!actions.length) return null;
  return [
    h("h2", {}, `Observed only: an action may act from a bound of ${needed}`),
    table(
      "",
      ["Action", "#Observed", "#Confirmed", "#Refuted", "#Bound", "May act", "#People took", "#Would take", "#GPU-hours saved"],
      actions,
      (one) => ({
        key: one.action,
        cells: [
          one.action, one.observed, one.confirmed, one.refuted, one.bound.toFixed(2),
          one.may_act ? badge("yes", "done") : "not yet",
          known(one.actual_seconds, howLong), known(one.predicted_seconds, howLong),
          known(one.saving_gpu_seconds, (seconds) => (seconds / 3600).toFixed(1)),
        ],
      }),
      () => {},
    ),
  ];
}

const known = (value, shown) => (value === null ? "–" : shown(value));

export function cards(decisions, open) {
  if (!decisions.length) return h("p", { class: "empty" }, "Nothing was decided yet.");
  return h("div", { class: "cards" }, decisions.map((decision) => card(decision, open)));
}

function card({ at, incident_id, run_id, choice, reason, acts, alternatives: options }, open) {
  const subjects = [incident_id && `i${incident_id}`, run_id && String(run_id)].filter(Boolean);
  return h(
    "article",
    { class: acts ? "card" : "card observed" },
    h(
      "header",
      {},
      subjects.length ? subjects.map((key) => link(key, open)) : "a plan",
      h("time", {}, when(at)),
    ),
    h("h3", {}, choice),
    h("p", {}, reason),
    !acts && h("p", { class: "empty" }, "Decided and recorded only: not carried out."),
    options.length > 0 && alternatives(options),
  );
}

const link = (key, open) =>
  h("button", { type: "button", class: "link", "data-key": key, onclick: () => open(key) },
    key.startsWith("i") ? key : `run ${key}`);

export function planCard(plan) {
  if (!plan) return h("p", { class: "empty" }, "No plan yet: one is made when a run starts or a node fails.");
  const sides = [
    ["What can be carried out today", plan.today],
    ["If everything could be", plan.unlimited],
  ];
  return h(
    "article",
    { class: "card plan" },
    h("header", {}, `Newest plan: ${plan.cause}`, h("time", {}, when(plan.at))),
    h("div", { class: "sides" }, sides.map(([title, answer]) => side(title, answer))),
    plan.foreseen && h("p", { class: "empty" }, plan.foreseen),
  );
}

function side(title, answer) {
  if (!answer?.choice) return h("section", {}, h("h3", {}, title), h("p", {}, answer?.obstacle ?? "no plan"));
  const options = (answer.alternatives ?? []).map((option) => ({
    name: option.name,
    chosen: option.chosen,
    price: option.obstacle || priced(option),
  }));
  return h("section", {}, h("h3", {}, title), h("p", {}, `${answer.choice}: ${answer.reason}`), alternatives(options));
}

function priced({ waf, price, payback_seconds }) {
  const back = payback_seconds === null ? "" : `, paid back in ${howLong(payback_seconds)}`;
  return `WAF ${si(waf)}FLOP/s${price ? `, costs ${si(price)}FLOP${back}` : ""}`;
}
