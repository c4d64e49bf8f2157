/** The door: a token, and what to do without one. */

import { send } from "../api.js";
import { showProblem } from "../dialog.js";
import { fill, h } from "../dom.js";

export function show(root) {
  const wrong = h("div", { role: "alert" });
  const token = h("input", {
    id: "token",
    type: "password",
    name: "token",
    required: true,
    maxlength: 1024,
    autocomplete: "current-password",
    autocapitalize: "off",
    spellcheck: "false",
  });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h(
    "form.login",
    {},
    h("h1", {}, "Sign in"),
    h("p.muted", {}, "This hub can be reached from elsewhere, so it asks for its token."),
    h(
      "div.field",
      {},
      h("label", { for: "token" }, "Token"),
      token,
      h(
        "p.hint",
        {},
        "It is in the run's folder on the hub's machine; docs/operator.md says where.",
      ),
    ),
    wrong,
    button,
    h("p", {}, h("a", { href: "/public" }, "The public page needs none.")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await send("POST", "/session", { token: token.value });
      location.assign("/");
    } catch (error) {
      showProblem(wrong, error);
      token.select();
      token.focus();
    } finally {
      button.disabled = false;
    }
  });
  document.title = "Sign in · echo-p2p";
  fill(root, form);
  token.focus();
}
