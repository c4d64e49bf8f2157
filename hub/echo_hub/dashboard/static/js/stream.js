/**
 * The stream of the hub's events: one EventSource that is opened again, from where it was, whenever
 * it is lost or silent. What arrives is handed on in batches, so that a busy run wakes the page
 * four times a second, not a hundred. Used by the page or, for many tabs, by `live-worker.js`.
 */

const KINDS = ["overview", "update", "nodes", "version", "event", "alerts", "evaluation"];
const LATEST = new Set(["overview", "alerts"]);
const BATCH_MS = 250;
const SILENT_MS = 12_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export class Stream {
  /** @param {(message: object) => void} tell hears {state, ...} and {batch: {kind: [data]}} */
  constructor(url, tell) {
    this.url = url;
    this.tell = tell;
    this.lastId = null;
    this.wait = FIRST_WAIT_MS;
    this.batch = {};
    this.flushing = null;
    this.state = { state: "connecting", since: Date.now() };
    this.open();
  }

  open() {
    const url = new URL(this.url);
    if (this.lastId !== null) url.searchParams.set("last_event_id", this.lastId);
    this.source = new EventSource(url);
    this.source.onopen = () => this.heard();
    this.source.onerror = () => this.lost();
    this.source.addEventListener("ping", (event) => this.take(event));
    this.source.addEventListener("reset", (event) => {
      this.take(event);
      this.tell({ missed: true }); // more than the hub still had
    });
    for (const kind of KINDS) this.source.addEventListener(kind, (event) => this.take(event, kind));
    this.watch();
  }

  /** Say that we are live, if we were not, and expect to hear again soon. */
  heard() {
    this.wait = FIRST_WAIT_MS;
    this.watch();
    if (this.state.state !== "live") this.say({ state: "live", since: Date.now() });
  }

  watch() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lost(), SILENT_MS);
  }

  take(event, kind) {
    this.heard();
    if (event.lastEventId) this.lastId = event.lastEventId;
    if (!kind) return;
    const data = JSON.parse(event.data);
    if (LATEST.has(kind)) this.batch[kind] = [data];
    else (this.batch[kind] ??= []).push(data);
    this.flushing ??= setTimeout(() => this.flush(), BATCH_MS);
  }

  flush() {
    const batch = this.batch;
    this.batch = {};
    this.flushing = null;
    this.tell({ batch });
  }

  lost() {
    this.source.close();
    clearTimeout(this.silence);
    clearTimeout(this.again);
    if (this.state.state !== "lost") {
      this.say({ state: "lost", since: Date.now(), next: Date.now() + this.wait });
    } else {
      this.say({ ...this.state, next: Date.now() + this.wait });
    }
    this.again = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(LONGEST_WAIT_MS, 2 * this.wait);
  }

  /** Try at once. */
  retry() {
    if (this.state.state !== "lost") return;
    clearTimeout(this.again);
    this.wait = FIRST_WAIT_MS;
    this.open();
  }

  say(state) {
    this.state = state;
    this.tell(state);
  }

  close() {
    this.source.close();
    clearTimeout(this.silence);
    clearTimeout(this.again);
    clearTimeout(this.flushing);
  }
}
