/**
 * Making elements. Strings only ever become text nodes; there is no way here to set HTML or a
 * style attribute, so nothing that an adversary wrote can become markup. Characters that would not
 * be seen, or would act (see `odd.js`), are shown by their code point, whoever wrote them.
 */

import { isOdd, pieces, plain } from "./odd.js";

/** An element: `h("td.num", {title}, children...)`. A child is a node, a string, a number, an
 * array of these, or null. `on*` attributes are listeners, `class` adds to those of the tag. */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {})) setOne(element, key, value);
  append(element, children);
  return element;
}

function setOne(element, key, value) {
  if (value === null || value === undefined || value === false) return;
  if (key.startsWith("on") && typeof value === "function") {
    element.addEventListener(key.slice(2), value);
  } else if (key === "class") {
    element.classList.add(...String(value).split(" ").filter(Boolean));
  } else if (key === "value" || key === "checked" || key === "disabled") {
    element[key] = value;
  } else if (key === "style" || key.startsWith("on")) {
    throw new Error(`${key} is not set this way`);
  } else {
    element.setAttribute(key, value === true ? "" : plain(String(value)));
  }
}

/** Append children as `h` takes them. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else element.append(...textNodes(String(child)));
  }
  return element;
}

function textNodes(text) {
  if (!isOdd(text)) return [text];
  return pieces(text).map((piece) => {
    if (piece.text !== undefined) return piece.text;
    const mark = document.createElement("span");
    mark.className = "odd";
    mark.title = "a character that would not be seen, or would act on the page";
    mark.textContent = piece.odd;
    return mark;
  });
}

/** Replace all children. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Set text only where it differs, so that an unchanged page is not laid out again. */
export function setText(element, text) {
  const shown = plain(text);
  if (element.textContent !== shown) element.textContent = shown;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  __proto__: null, // a name from outside finds nothing that is not here
  good: "M3 8.5 6.5 12 13 4.5",
  warn: "M8 2 14.5 13.5H1.5ZM8 6.5v3.2M8 11.4v.6",
  bad: "M4 4l8 8M12 4l-8 8",
  info: "M8 7v5M8 4v.6",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6L12.5 8Z",
  menu: "M2 4h12M2 8h12M2 12h12",
  up: "M8 13V3M4 7l4-4 4 4",
  theme: "M8 2a6 6 0 1 0 6 6 4.6 4.6 0 0 1-6-6Z",
  wait: "M8 4v4.3l2.8 1.6M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8Z",
};

/** A small line drawing, hidden from screen readers: words beside it say what it says. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name] ?? ICONS.info);
  svg.append(path);
  return svg;
}
