/**
 * What the page knows, kept up to date. `live.on(kind, fn)` hears each batch of a kind of event,
 * `live.overview` and `live.alerts` are the last of theirs, and `on("resync")` is told when events
 * may have been missed, so that what was fetched must be fetched again.
 */

import { get } from "./api.js";
import { joined } from "./history.js";
import { Stream } from "./stream.js";

const HEARTBEAT_MS = 15_000;

class Live {
  constructor() {
    this.listeners = new Map();
    this.state = { state: "connecting", since: Date.now() };
    this.overview = null;
    this.alerts = null;
    this.wasLost = false;
    this.looking = null;
  }

  /** Call `fn` with each batch of a kind, until `signal` aborts. */
  on(kind, fn, signal) {
    const heard = this.listeners.get(kind) ?? new Set();
    this.listeners.set(kind, heard);
    heard.add(fn);
    signal?.addEventListener("abort", () => heard.delete(fn));
  }

  tell(kind, data) {
    for (const fn of this.listeners.get(kind) ?? []) fn(data);
  }

  /** Open the stream, through the worker that all tabs share where the browser has such. */
  start(path) {
    const url = new URL(path, location.href).href;
    const hear = (message) => this.hear(message);
    if (typeof SharedWorker === "undefined") {
      const stream = new Stream(url, hear);
      this.retry = () => stream.retry();
      return;
    }
    const script = new URL("./live-worker.js", import.meta.url);
    const { port } = new SharedWorker(script, { type: "module", name: "echo-live" });
    port.onmessage = ({ data }) => hear(data);
    const open = () => port.postMessage({ open: url });
    open();
    setInterval(() => port.postMessage({ here: true }), HEARTBEAT_MS);
    addEventListener("pagehide", () => port.postMessage({ bye: true }));
    addEventListener("pageshow", (event) => event.persisted && open());
    document.addEventListener("visibilitychange", () => document.hidden || open());
    this.retry = () => port.postMessage({ retry: true });
  }

  hear(message) {
    if (message.state) {
      const back = message.state === "live" && this.wasLost;
      this.wasLost = message.state === "lost";
      this.state = message;
      this.tell("state", message);
      if (back) this.tell("resync", null);
      return;
    }
    if (message.missed) {
      this.tell("resync", null);
      return;
    }
    for (const [kind, data] of Object.entries(message.batch)) {
      if (kind === "overview") {
        this.follow(data.at(-1));
        continue;
      }
      if (kind === "alerts") this.alerts = data.at(-1);
      this.tell(kind, data);
    }
  }

  /** An overview of the stream, which has the last rewards only: all others are known, or asked for. */
  async follow(told) {
    const whole = this.overview && joined(this.overview, told);
    if (whole) this.overview = whole;
    else if (!(await this.look())) return;
    this.tell("overview", [this.overview]);
  }

  /** Fetch the overview with all of its rewards; false if that fails: the stream's next asks again. */
  async look() {
    this.looking ??= get("/overview").finally(() => {
      this.looking = null;
    });
    try {
      this.overview = await this.looking;
      return true;
    } catch {
      return false; // the stream's state, or the log-in, says why
    }
  }
}

export const live = new Live();
