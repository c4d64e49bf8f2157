/**
 * Text that an adversary may have written (transcripts, names, notes): cut to a length, and kept
 * apart from the direction of the text around it. What is odd in it is shown by `dom.js`, as in any
 * other text.
 */

import { h } from "./dom.js";
import { plain } from "./odd.js";

/** Nodes for a string of at most `most` characters; what is cut off is counted. */
export function visible(value, most = 200) {
  const letters = [...String(value ?? "")];
  if (letters.length <= most) return [letters.join("")];
  const rest = letters.length - most;
  return [letters.slice(0, most).join(""), h("span.cut", {}, `… ${rest} more characters`)];
}

/** The same as one plain string, for titles and labels. */
export function visibleText(value, most = 200) {
  const letters = [...String(value ?? "")];
  const text = plain(letters.slice(0, most).join(""));
  return letters.length > most ? `${text}…` : text;
}

/** A name of a stranger's choosing. */
export function stranger(value, most = 60) {
  return h("bdi.stranger", { dir: "ltr" }, visible(value, most));
}
