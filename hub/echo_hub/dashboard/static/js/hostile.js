/**
 * Text that an adversary may have written (transcripts, names, notes), made fit to be looked at.
 *
 * It is cut to a length, control and bidirectional characters are shown by their code point
 * instead of acting, invisible ones are made visible, and marks piled on one letter are counted.
 */

import { h } from "./dom.js";

const ODD =
  // controls but tab and newline; soft hyphen; zero width, bidi, separators; fillers; tags; lone
  // surrogates; private use
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ue000-\uf8ff]|[\u{e0000}-\u{e0fff}]|[\u{f0000}-\u{10ffff}]|[\ud800-\udfff]/u;
const MARKS = /\p{M}{4,}/u;
const SPLIT = new RegExp(`(${ODD.source}|${MARKS.source})`, "gu");

/** The name of an odd character, or how many marks were left out. */
function shown(piece) {
  if (MARKS.test(piece)) return `+${[...piece].length} marks`;
  return `U+${piece.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Nodes for a string of at most `most` characters; what is cut off is counted. */
export function visible(value, most = 200) {
  const letters = [...String(value ?? "")];
  const kept = letters.length > most ? letters.slice(0, most).join("") : letters.join("");
  const nodes = kept
    .split(SPLIT)
    .filter(Boolean)
    .map((piece) =>
      ODD.test(piece) || MARKS.test(piece)
        ? h(
            "span.odd",
            { title: "a character that would not be seen, or would act on the page" },
            shown(piece),
          )
        : document.createTextNode(piece),
    );
  if (letters.length > most) {
    nodes.push(h("span.cut", {}, `… ${letters.length - most} more characters`));
  }
  return nodes;
}

/** The same as one plain string, for titles and labels. */
export function visibleText(value, most = 200) {
  const letters = [...String(value ?? "")];
  const kept = letters.slice(0, most).join("");
  const text = kept
    .split(SPLIT)
    .map((piece) => (piece && (ODD.test(piece) || MARKS.test(piece)) ? `⟨${shown(piece)}⟩` : piece))
    .join("");
  return letters.length > most ? `${text}…` : text;
}

/** A name of a stranger's choosing, kept apart from the direction of the text around it. */
export function stranger(value, most = 60) {
  return h("bdi.stranger", { dir: "ltr" }, visible(value, most));
}
