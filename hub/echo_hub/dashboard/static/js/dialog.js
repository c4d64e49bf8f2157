/** Questions before dangerous actions, and short messages after them. */

import { fill, h, icon } from "./dom.js";
import { ApiError } from "./api.js";

/**
 * Ask before something that cannot be undone at once; resolves to the answers, or null.
 *
 * The dialog names what will happen; the safe button has the focus unless something must be
 * written first; Escape and a click on "Cancel" change nothing; the focus goes back to where it was.
 *
 * @param {object} question `title`; `consequences`: sentences; `confirm`: the button's words;
 *   `danger`: whether it is red; `fields`: `[{name, label, hint, value, required, multiline, most}]`
 * @param {(answers: object) => Promise} act called when confirmed; the dialog stays open until it
 *   is done, and shows its error if it fails
 */
export function ask(question, act) {
  const before = document.activeElement;
  const wrong = h("div", { role: "alert" });
  const fields = (question.fields ?? []).map(field);
  const cancel = h("button", { type: "button" }, "Cancel");
  const confirm = h(
    `button${question.danger ? ".danger" : ".primary"}`,
    { type: "submit" },
    question.confirm,
  );
  const title = h("h2", { id: "dialog-title" }, question.title);
  const form = h(
    "form",
    { method: "dialog" },
    title,
    h(
      "ul.consequences",
      { id: "dialog-says" },
      question.consequences.map((one) => h("li", {}, one)),
    ),
    fields.map((one) => one.element),
    wrong,
    h("div.buttons", {}, cancel, confirm),
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-says" },
    form,
  );
  document.body.append(dialog);
  return new Promise((resolve) => {
    let result = null;
    cancel.addEventListener("click", () => dialog.close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const answers = Object.fromEntries(fields.map((one) => [one.name, one.input.value.trim()]));
      confirm.disabled = true;
      try {
        result = { ...answers, answer: await act(answers) };
        dialog.close();
      } catch (error) {
        showProblem(wrong, error);
        confirm.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      // a live page may have drawn the button anew
      const back = before?.isConnected ? before : document.getElementById(before?.id ?? "");
      back?.focus();
      resolve(result);
    });
    dialog.showModal();
    (fields[0]?.input ?? cancel).focus();
  });
}

function field({ name, label, hint, value = "", required = false, multiline = false, most = 500 }) {
  const id = `field-${name}`;
  const input = h(multiline ? "textarea" : "input", {
    id,
    name,
    required,
    maxlength: most,
    autocomplete: "off",
    "aria-describedby": hint ? `${id}-hint` : null,
    ...(multiline ? { rows: 4 } : { type: "text" }),
    value,
  });
  const element = h(
    "div.field",
    {},
    h("label", { for: id }, label),
    input,
    hint ? h("p.hint", { id: `${id}-hint` }, hint) : null,
  );
  return { name, input, element };
}

/** An error's words and what to do about it. */
export function showProblem(into, error) {
  if (!(error instanceof ApiError)) console.error(error);
  const fix =
    error instanceof ApiError ? error.fix : "Reload the page; if it comes back, tell the authors.";
  fill(
    into,
    h(
      "div.problem",
      {},
      icon("bad"),
      h("div", {}, h("p", {}, error.message), fix ? h("p.muted", {}, fix) : null),
    ),
  );
}

/** A short message at the foot of the page, also for screen readers. */
export function toast(sentence, kind = "good") {
  const box = document.getElementById("toasts");
  const message = h(
    `div.toast.${kind}`,
    {},
    icon(kind),
    h("span", {}, sentence),
    h(
      "button.quiet",
      { type: "button", "aria-label": "Dismiss", onclick: () => message.remove() },
      "×",
    ),
  );
  box.append(message);
  while (box.children.length > 3) box.firstChild.remove();
  setTimeout(() => message.remove(), kind === "bad" ? 20_000 : 7000);
}

/** Ask, act, and say what came of it; true if it was done. */
export async function act(question, doing, after) {
  const result = await ask(question, doing);
  if (!result) return false;
  toast(result.answer?.sentence ?? `${question.confirm}: done.`);
  after?.(result.answer);
  return true;
}
