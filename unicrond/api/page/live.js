// What the API says now: asked when its events tell of a change, and now and then in any case.

import { all, get, listen, maybe } from "./api.js";

const WATCHED_MS = 10_000; // while events come
const ALONE_MS = 2_000; // while none do
const BETWEEN_MS = 1_000; // two looks
const SLOW_MS = 10_000; // between two looks at what is large

export class Live {
  constructor(changed) {
    this.changed = changed;
    this.slow = -Infinity;
    this.state = {
      health: null, runs: [], incidents: [], nodes: [], allocations: [], plan: null,
      pauses: [], loaded: false, trouble: "", stranger: false,
    };
  }

  start() {
    document.addEventListener("visibilitychange", () => this.wake());
    this.wake();
  }

  // A page that nobody sees asks nothing.
  wake() {
    this.hearing?.abort();
    clearTimeout(this.timer);
    this.timer = null;
    if (!document.hidden) this.soon(0);
  }

  async hear() {
    const hearing = (this.hearing = new AbortController());
    this.watched = true;
    await listen(() => this.soon(BETWEEN_MS), hearing.signal).catch(() => {});
    if (this.hearing === hearing) this.watched = false;
  }

  soon(milliseconds) {
    const due = performance.now() + milliseconds;
    this.missed ||= this.busy;
    if (this.busy || (this.timer && this.due <= due)) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = setTimeout(() => this.look(), milliseconds);
  }

  async look() {
    this.timer = null;
    this.busy = true;
    this.missed = false;
    await this.ask();
    this.busy = false;
    if (document.hidden) return;
    this.changed(this.state);
    if (!this.watched && !this.state.trouble) this.hear();
    if (this.missed) this.soon(BETWEEN_MS);
    else this.soon(this.watched && !this.state.trouble ? WATCHED_MS : ALONE_MS);
  }

  async ask() {
    try {
      const asked = [
        get("/health"),
        all("/runs", { live: true }),
        all("/incidents", { open: true }),
        all("/pauses"),
      ];
      const slow = performance.now() - this.slow > SLOW_MS;
      if (slow) asked.push(all("/nodes"), all("/allocations"), maybe(get("/plan")));
      const [health, runs, incidents, pauses, ...rest] = await Promise.all(asked);
      Object.assign(this.state, { health, runs, incidents, pauses });
      Object.assign(this.state, { loaded: true, trouble: "", stranger: false });
      if (!slow) return;
      [this.state.nodes, this.state.allocations, this.state.plan] = rest;
      this.slow = performance.now();
    } catch (error) {
      this.state.trouble = error.message;
      this.state.stranger = error.status === 401;
      this.slow = -Infinity;
    }
  }
}
