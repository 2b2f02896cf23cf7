// The cluster as the map shows it: what each node and each of its GPUs does. Pure.
//
// A node is out (down, drained, unknown) or up; a GPU of a node that is up is in a run, in a run
// that heals, in another job, or idle. What is wrong wins over what goes on.

import { natural } from "./dom.js";

export const STATES = ["run", "healing", "other", "idle", "drained", "down", "unknown"];

export const WORDS = {
  run: "in a run",
  healing: "run heals",
  other: "other job",
  idle: "idle",
  drained: "drained",
  down: "down",
  unknown: "unknown",
};

const HOLDING = new Set(["running", "completing", "suspended"]);
const UNSETTLED = new Set(["healing", "starting"]);

export function describe({ nodes, runs, allocations, incidents }) {
  const places = new Map(nodes.map((node) => [node.name, place(node)]));
  for (const allocation of allocations) occupy(places, allocation);
  for (const run of runs) settle(places, run);
  for (const incident of incidents) places.get(incident.root_node)?.incidents.push(incident);
  for (const at of places.values()) at.gpus = gpus(at);
  return { places, groups: groups([...places.values()]), counts: counts(places.values()) };
}

function place(node) {
  return { node, name: node.name, run: null, ranks: 0, held: 0, incidents: [], gpus: [] };
}

function occupy(places, allocation) {
  if (!HOLDING.has(allocation.state) || allocation.nodes.length === 0) return;
  const each = Math.ceil(allocation.gpus / allocation.nodes.length);
  for (const name of allocation.nodes) {
    const at = places.get(name);
    if (at && !allocation.managed) at.held += each;
  }
}

function settle(places, run) {
  for (const name of run.running_on.length ? run.running_on : run.nodes) {
    const at = places.get(name);
    if (at) at.run = run;
  }
}

function gpus({ node, run, held }) {
  const count = Math.max(node.gpus, 1);
  if (node.state !== "up") return Array(count).fill(node.state);
  if (run) return Array(count).fill(UNSETTLED.has(run.state) ? "healing" : "run");
  return Array.from({ length: count }, (_, index) => (index < held ? "other" : "idle"));
}

// By switch; where Slurm tells of none, by partition.
function groups(places) {
  const found = new Map();
  for (const at of places) {
    const { switch: leaf, partitions } = at.node;
    const name = leaf || (partitions.length ? partitions.join(", ") : "no partition");
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(at);
  }
  const list = [...found].map(([name, members]) => ({ name, members }));
  for (const { members } of list) members.sort((a, b) => natural(a.name, b.name));
  return list.sort((a, b) => natural(a.name, b.name));
}

function counts(places) {
  const found = Object.fromEntries(STATES.map((state) => [state, 0]));
  let nodes = 0;
  let all = 0;
  for (const { node, gpus } of places) {
    nodes += 1;
    if (!node.gpus) continue;
    for (const state of gpus) found[state] += 1;
    all += gpus.length;
  }
  return { ...found, nodes, all };
}

// A hue for each run that is the same at every look, and far from that of its neighbour in number.
export const hueOf = (run) => 30 + Math.round((run.run_id * 137.508) % 300); // none is red: that is down
