// The map: a canvas of the size of what is seen over a space of the size of what there is, so that
// drawing costs what is in sight and not what is known.

import { hueOf, STATES, WORDS } from "./cluster.js";
import { h } from "./dom.js";
import { fitted, hit, LABEL, NAMED_FROM, neighbour, tiles } from "./layout.js";

const WORST_FIRST = ["down", "unknown", "drained", "healing", "run", "other", "idle"];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class ClusterMap {
  constructor(open) {
    this.open = open;
    this.byRun = false;
    this.wanted = "";
    this.zoom = 0;
    this.cursor = null;
    this.cluster = { groups: [], places: new Map() };
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.space = h("div", { class: "space" });
    this.frame = h(
      "div",
      {
        class: "frame",
        id: "map",
        tabindex: 0,
        role: "application",
        "aria-label": "Map of nodes: arrows walk, Enter opens",
        onscroll: () => this.later(),
        onkeydown: (event) => this.key(event),
        onpointermove: (event) => this.hover(event),
        onpointerleave: () => this.point(null),
        onclick: (event) => this.click(event),
      },
      this.canvas,
      this.space,
    );
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.element = h("div", { class: "map" }, this.frame, this.tip);
    new ResizeObserver(() => this.arrange()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    this.recolour();
  }

  show(cluster) {
    this.cluster = cluster;
    this.arrange();
    if (this.cursor) this.point(cluster.places.get(this.cursor.name) ?? null, this.told);
  }

  find(words) {
    this.wanted = words.trim().toLowerCase();
    this.later();
  }

  zoomBy(steps) {
    this.zoom += steps;
    this.arrange();
  }

  recolour() {
    const style = getComputedStyle(document.documentElement);
    const names = [...STATES, "alarm", "ink", "faint", "tile", "cursor"];
    this.colours = Object.fromEntries(names.map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
    this.light = style.getPropertyValue("--run-lightness").trim();
    this.later();
  }

  arrange() {
    const width = this.frame.clientWidth;
    if (!width) return;
    const most = Math.min(900, Math.max(300, innerHeight * 0.6));
    this.layout = fitted(this.cluster.groups, width, most, this.zoom);
    this.zoom = this.layout.zoom;
    const height = Math.min(this.layout.height, most);
    this.frame.style.height = `${height}px`;
    this.space.style.height = `${Math.max(0, this.layout.height - height)}px`;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.later();
  }

  later() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      this.draw();
    });
  }

  draw() {
    if (!this.layout) return;
    const began = performance.now();
    const pen = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    const [top, height] = [this.frame.scrollTop, this.canvas.height / ratio];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.translate(0, -top);
    const seen = this.layout.blocks.filter(({ y, h }) => y + h >= top && y <= top + height);
    this.labels(pen, seen);
    for (const tile of tiles({ ...this.layout, blocks: seen })) this.tileAt(pen, tile);
    this.drawn = performance.now() - began;
    this.frame.dataset.drawnMs = this.drawn.toFixed(1);
  }

  labels(pen, blocks) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.colours.faint;
    pen.textBaseline = "alphabetic";
    for (const { name, x, y, w } of blocks) {
      let text = name;
      while (text.length > 1 && pen.measureText(text).width > w)
        text = `${text.slice(0, text.endsWith("…") ? -2 : -1)}…`;
      pen.fillText(text, x, y + LABEL - 5);
    }
  }

  tileAt(pen, { at, x, y }) {
    const { tile } = this.layout;
    pen.globalAlpha = this.matches(at) ? 1 : 0.15;
    if (tile < 8) this.small(pen, at, x, y, tile);
    else this.large(pen, at, x, y, tile);
    if (at.incidents.length && tile < 8) this.dot(pen, x, y, tile);
    else if (at.incidents.length) this.ring(pen, x, y, tile, this.colours.alarm, 2);
    pen.globalAlpha = 1;
    if (this.cursor?.name === at.name) this.ring(pen, x, y, tile, this.colours.cursor, 2);
  }

  // The part of its GPUs that is busy, from below.
  small(pen, at, x, y, tile) {
    const state = WORST_FIRST.find((one) => at.gpus.includes(one));
    const part = at.gpus.filter((one) => one === state).length / at.gpus.length;
    if (part < 1) {
      pen.fillStyle = this.colours.idle;
      pen.fillRect(x, y, tile, tile);
    }
    pen.fillStyle = this.colour(at, state);
    pen.fillRect(x, y + tile * (1 - part), tile, tile * part);
  }

  large(pen, at, x, y, tile) {
    const { gpus, node } = at;
    const named = tile >= NAMED_FROM ? 14 : 0;
    const columns = columnsOf(gpus.length);
    const rows = gpus.length / columns;
    const thin = tile / columns < 6 ? 0.5 : tile < 24 ? 1 : 2;
    const [w, t] = [tile / columns, (tile - named) / rows];
    if (named) {
      pen.fillStyle = this.colours.tile;
      pen.fillRect(x, y, tile, tile);
    }
    for (const [index, state] of gpus.entries()) {
      pen.fillStyle = this.colour(at, state);
      const [cx, cy] = [x + (index % columns) * w, y + Math.floor(index / columns) * t];
      pen.fillRect(cx, cy, w - thin, t - thin);
    }
    if (node.state !== "up" && tile >= 10) this.crossed(pen, node, x, y, tile, tile - named);
    if (named) this.named(pen, at, x, y, tile);
  }

  // Not by colour alone: a stroke for drained, two for down.
  crossed(pen, node, x, y, w, t) {
    pen.strokeStyle = this.colours.tile;
    pen.lineWidth = w < 24 ? 1 : 2;
    pen.beginPath();
    pen.moveTo(x, y + t);
    pen.lineTo(x + w, y);
    if (node.state === "down") {
      pen.moveTo(x, y);
      pen.lineTo(x + w, y + t);
    }
    pen.stroke();
  }

  named(pen, at, x, y, tile) {
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = this.colours.ink;
    const short = at.name.length > 10 ? `…${at.name.slice(-9)}` : at.name;
    pen.fillText(short, x + 2, y + tile - 4, tile - 4);
  }

  // A ring would hide so small a tile.
  dot(pen, x, y, tile) {
    pen.fillStyle = this.colours.alarm;
    pen.fillRect(x, y, tile, tile);
    this.ring(pen, x, y, tile, this.colours.cursor, 1);
  }

  ring(pen, x, y, tile, colour, width) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    const out = width / 2;
    pen.strokeRect(x - out, y - out, tile + 2 * out, tile + 2 * out);
  }

  colour(at, state) {
    if (this.byRun && at.run && (state === "run" || state === "healing"))
      return `hsl(${hueOf(at.run)} 55% ${this.light})`;
    return this.colours[state];
  }

  matches({ name, node, run }) {
    const w = this.wanted;
    if (!w) return true;
    if (name.toLowerCase().includes(w) || node.state === w) return true;
    return Boolean(run) && (String(run.run_id) === w || run.user === w || run.name.toLowerCase().includes(w));
  }

  key(event) {
    const step = STEPS[event.key];
    if (step) {
      const next = neighbour(this.layout, this.cursor?.name, ...step);
      this.point(next, true);
      this.reveal(next);
    } else if (event.key === "Enter" && this.cursor) this.open(this.cursor.name);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1);
    else if (event.key === "-") this.zoomBy(-1);
    else if (event.key === "0") this.zoomBy(-this.zoom);
    else return;
    event.preventDefault();
  }

  reveal(at) {
    const tile = [...tiles(this.layout)].find((one) => one.at === at);
    if (!tile) return;
    const { scrollTop, clientHeight } = this.frame;
    if (tile.y < scrollTop + LABEL) this.frame.scrollTop = tile.y - 2 * LABEL;
    else if (tile.y + this.layout.pitch > scrollTop + clientHeight)
      this.frame.scrollTop = tile.y + 2 * this.layout.pitch - clientHeight;
  }

  under(event) {
    const box = this.frame.getBoundingClientRect();
    return hit(this.layout, event.clientX - box.left, event.clientY - box.top + this.frame.scrollTop);
  }

  hover(event) {
    if (event.pointerType === "touch") return;
    const at = this.under(event);
    this.point(at, false);
    this.frame.classList.toggle("over", Boolean(at));
  }

  click(event) {
    const at = this.under(event);
    if (at) this.open(at.name);
  }

  point(at, told = false) {
    this.cursor = at;
    this.told = told;
    this.tip.hidden = !at;
    if (at) {
      this.tip.replaceChildren(...words(at));
      this.beside(at);
    }
    this.later();
  }

  beside(at) {
    const tile = [...tiles(this.layout)].find((one) => one.at.name === at.name);
    if (!tile) return;
    const [width, top] = [this.frame.clientWidth, tile.y - this.frame.scrollTop];
    const right = tile.x > width / 2;
    this.tip.style.left = right ? "auto" : `${tile.x + this.layout.pitch + 6}px`;
    this.tip.style.right = right ? `${width - tile.x + 6}px` : "auto";
    this.tip.style.top = `${Math.max(0, Math.min(top, this.frame.clientHeight - 40))}px`;
  }
}

// As square as may be without an empty place.
function columnsOf(count) {
  let columns = Math.ceil(Math.sqrt(count));
  while (count % columns) columns += 1;
  return columns;
}

function words({ name, node, run, gpus, incidents }) {
  const states = STATES.filter((state) => gpus.includes(state)).map(
    (state) => `${gpus.filter((one) => one === state).length} ${WORDS[state]}`,
  );
  return [
    h("strong", {}, name),
    ` ${node.raw_state.toLowerCase()}`,
    h("div", {}, node.gpus ? `GPUs: ${states.join(", ")}` : "no GPU"),
    run && h("div", {}, `run ${run.run_id} ${run.name} of ${run.user}, ${run.state}`),
    node.reason && h("div", { class: "reason" }, node.reason),
    ...incidents.map((one) => h("div", { class: "alarm" }, `i${one.incident_id} ${one.kind}`)),
  ].filter(Boolean);
}
