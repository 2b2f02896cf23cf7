// What the API says now, asked again and again: what changes fast often, what is large seldom.

import { all, get, maybe } from "./api.js";

const FAST_MS = 2_000;
const SLOW_EVERY = 5; // of the fast ones

export class Live {
  constructor(changed) {
    this.changed = changed;
    this.turn = 0;
    this.state = {
      health: null, runs: [], incidents: [], nodes: [], allocations: [], plan: null,
      loaded: false, trouble: "",
    };
  }

  start() {
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
    this.look();
  }

  async look() {
    clearTimeout(this.timer);
    if (!document.hidden && !this.busy) {
      this.busy = true;
      await this.ask();
      this.busy = false;
      this.changed(this.state);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), FAST_MS);
  }

  async ask() {
    try {
      const asked = [
        get("/health"),
        all("/runs", { live: true }),
        all("/incidents", { open: true }),
      ];
      const slow = this.turn % SLOW_EVERY === 0;
      if (slow) asked.push(all("/nodes"), all("/allocations"), maybe(get("/plan")));
      const [health, runs, incidents, ...rest] = await Promise.all(asked);
      Object.assign(this.state, { health, runs, incidents, loaded: true, trouble: "" });
      if (slow) [this.state.nodes, this.state.allocations, this.state.plan] = rest;
      this.turn += 1;
    } catch (error) {
      this.state.trouble = error.message;
      this.turn = 0;
    }
  }
}
