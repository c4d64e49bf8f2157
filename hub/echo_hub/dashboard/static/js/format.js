/** Numbers, sizes and times as people read them, each with its unit. Pure but for `now`. */

import { h } from "./dom.js";

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en-US");

function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

/** Three significant digits, thousands apart; whole numbers whole. */
export function number(value) {
  if (missing(value)) return NONE;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0"; // and no "−0"
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e15) text = WHOLE.format(value);
  else if (size >= 1000) text = WHOLE.format(Math.round(value));
  else if (size !== 0 && size < 0.001) text = value.toExponential(1);
  else text = String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

/** A mean reward: three decimals where it is small, without the zero that says nothing. */
export function reward(value) {
  if (missing(value)) return NONE;
  return value.toFixed(3).replace("-", "−");
}

export function percent(value, digits = 0) {
  if (missing(value)) return NONE;
  const share = value * 100;
  return `${share.toFixed(share !== 0 && Math.abs(share) < 1 ? Math.max(1, digits) : digits)} %`;
}

export function bytes(value) {
  if (missing(value)) return NONE;
  for (const [unit, size] of [
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

/** A length of time. */
export function seconds(value) {
  if (missing(value)) return NONE;
  if (!Number.isFinite(value)) return "∞";
  if (value < 1e-3 && value > 0) return `${number(value * 1e6)} µs`;
  if (value < 1 && value > 0) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${Number(value.toPrecision(2))} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function rate(value, unit = "rollouts/s") {
  return `${number(value)} ${unit}`;
}

/** "12 s ago"; a moment of the future, by clocks that differ, is now. */
export function ago(at, now = Date.now() / 1000) {
  if (missing(at)) return "never";
  const age = now - at;
  return age < 1 ? "now" : `${seconds(Math.floor(age))} ago`;
}

const two = (value) => String(value).padStart(2, "0");

/** Local date and time. */
export function moment(at) {
  if (missing(at)) return NONE;
  const date = new Date(at * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** A `time` element that says how long ago, and keeps saying it; hovering tells the moment. */
export function timeOf(at, { both = false } = {}) {
  if (missing(at)) return h("span.muted", {}, "never");
  const element = h("time", {
    datetime: new Date(at * 1000).toISOString(),
    title: moment(at),
    "data-at": at,
  });
  element.textContent = ago(at);
  return both ? [element, h("span.muted.absolute", {}, ` · ${moment(at)}`)] : element;
}

/** Bring all `timeOf` on the page up to date. */
export function tick(now = Date.now() / 1000) {
  for (const element of document.querySelectorAll("time[data-at]")) {
    const text = ago(Number(element.dataset.at), now);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A reason code or metric name as words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** The last characters of a peer id: the first ones are the same for all Ed25519 keys. */
export function shortPeer(peer) {
  return peer.length > 14 ? `…${peer.slice(-10)}` : peer;
}
