/**
 * Characters that would not be seen, or would act on the page, and how they are shown instead: by
 * their code point. Marks piled on one letter are counted. Pure.
 */

// controls but tab and newline; soft hyphen; zero width, bidi, separators; fillers; variation
// selectors; private use; tags; lone surrogates
const ODD =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ue000-\uf8ff]|[\u{e0000}-\u{e0fff}]|[\u{f0000}-\u{10ffff}]|[\ud800-\udfff]/u;
const MARKS = /\p{M}{4,}/u;
const EITHER = new RegExp(`${ODD.source}|${MARKS.source}`, "u");
const SPLIT = new RegExp(`(${EITHER.source})`, "gu");

const ORDINARY = /^[\t\n -~]*$/; // most texts are, and are soon known to be

/** Is there anything in a text that must not be shown as it is? */
export function isOdd(text) {
  return !ORDINARY.test(text) && EITHER.test(text);
}

/** A text in pieces: `{text}` as it stands, and `{odd}` with what is shown in its place. */
export function pieces(text) {
  return text
    .split(SPLIT)
    .filter(Boolean)
    .map((piece) => (EITHER.test(piece) ? { odd: shown(piece) } : { text: piece }));
}

function shown(piece) {
  if (MARKS.test(piece)) return `+${[...piece].length} marks`;
  return `U+${piece.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text with what is odd written out, for where there can be no elements: titles, labels. */
export function plain(text) {
  if (!isOdd(text)) return text;
  return pieces(text)
    .map((piece) => piece.text ?? `⟨${piece.odd}⟩`)
    .join("");
}
