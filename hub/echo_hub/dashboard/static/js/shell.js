/** What stands around every page: the run's name and state, the connection, actions, and the way. */

import { send } from "./api.js";
import { act } from "./dialog.js";
import { fill, h, icon, setText } from "./dom.js";
import { moment } from "./format.js";
import { live } from "./live.js";
import { explain } from "./judge.js";
import * as theme from "./theme.js";

/** Build the frame once. */
export function frame(pages, session) {
  const nav = document.getElementById("nav");
  const links = Object.entries(pages).map(([name, { title }]) =>
    h(
      "li",
      {},
      h(
        "a",
        { href: `#/${name}`, "data-name": name },
        title,
        name === "events" ? h("span.badge", { id: "alert-count", hidden: true }) : null,
      ),
    ),
  );
  fill(
    nav,
    h("ul", {}, links),
    h(
      "div.nav-foot",
      {},
      h("a", { href: "/public", target: "_blank", rel: "noopener" }, "Public page"),
      h("a", { href: "/api/docs", target: "_blank", rel: "noopener" }, "API"),
      session.required ? h("button.quiet", { type: "button", onclick: signOut }, "Sign out") : null,
    ),
  );
  const menu = h(
    "button.quiet.menu",
    { type: "button", "aria-expanded": "false", "aria-controls": "nav" },
    icon("menu"),
    h("span.label", {}, "Menu"),
  );
  menu.addEventListener("click", () => {
    const open = document.body.classList.toggle("nav-open");
    menu.setAttribute("aria-expanded", String(open));
    if (open) nav.querySelector("a").focus();
  });
  nav.addEventListener("keydown", (event) => event.key === "Escape" && closeMenu(menu, true));
  addEventListener("hashchange", () => closeMenu(menu, false));
  const state = h("span.run-state", { id: "run-state" });
  const link = h("div.link-state", { id: "link-state", role: "status" });
  const actions = h("div.actions", { id: "actions" });
  fill(
    document.getElementById("top"),
    menu,
    h("a.brand", { href: "#/overview" }, "echo-p2p"),
    h("bdi.run-name", { id: "run-name" }, session.run ?? ""),
    state,
    h("span.grow"),
    link,
    actions,
    themeButton(),
  );
  live.on("state", () => showLink(link));
  live.on("overview", () => showRun(state, actions));
  setInterval(() => showLink(link), 1000);
  showLink(link);
}

function closeMenu(menu, focus) {
  if (!document.body.classList.contains("nav-open")) return;
  document.body.classList.remove("nav-open");
  menu.setAttribute("aria-expanded", "false");
  if (focus) menu.focus();
}

/** The login and the public page have no frame. */
export function showAlone(kind) {
  document.body.classList.add("alone", kind);
  fill(
    document.getElementById("top"),
    h("span.brand", {}, "echo-p2p"),
    h("span.grow"),
    themeButton(),
  );
  document.getElementById("nav").remove();
}

/** Say which page this is. */
export function markPage(name, title) {
  document.title = `${title} · echo-p2p`;
  for (const link of document.querySelectorAll("#nav a[data-name]")) {
    if (link.dataset.name === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function themeButton() {
  const label = (name) => `Colours: ${name}`;
  const button = h(
    "button.quiet.icon-only",
    { type: "button", title: label(theme.current()), "aria-label": label(theme.current()) },
    icon("theme"),
  );
  button.addEventListener("click", () => {
    const name = label(theme.next());
    button.title = name;
    button.setAttribute("aria-label", name);
  });
  return button;
}

function showLink(link) {
  const { state, next, since } = live.state;
  link.dataset.state = state;
  document.body.classList.toggle("lost", state === "lost");
  if (state === "lost") {
    const wait = Math.max(0, Math.ceil((next - Date.now()) / 1000));
    const words = `Connection lost, retrying${wait ? ` in ${wait} s` : ""}. What you see is from ${moment(since / 1000).slice(11)}.`;
    if (!link.querySelector("button")) {
      fill(
        link,
        icon("warn"),
        h("span"),
        h("button", { type: "button", onclick: () => live.retry() }, "Retry now"),
      );
      link.setAttribute("aria-live", "off");
    }
    setText(link.querySelector("span"), words);
    return;
  }
  const words = state === "live" ? "Live" : "Connecting …";
  if (link.textContent !== words) fill(link, h("span.dot", { "aria-hidden": "true" }), words);
}

function showRun(state, actions) {
  const overview = live.overview;
  const { word, kind } = explain.state(overview);
  const text = `v${overview.version} · ${word}`;
  if (state.textContent !== text)
    fill(state, h("span.pill", { "data-kind": kind }, icon(kind), ` ${text}`));
  const paused = Boolean(overview.paused);
  if (actions.dataset.paused !== String(paused)) {
    actions.dataset.paused = String(paused);
    fill(
      actions,
      paused
        ? h(
            "button.primary",
            { type: "button", id: "resume", onclick: resume },
            icon("play"),
            h("span.label", {}, "Resume"),
          )
        : h(
            "button",
            { type: "button", id: "pause", onclick: pause },
            icon("pause"),
            h("span.label", {}, "Pause"),
          ),
      h(
        "button",
        { type: "button", id: "publish", onclick: publish },
        icon("up"),
        h("span.label", {}, "Publish"),
      ),
    );
  }
  const active = overview.alerts.filter((one) => one.active).length;
  const badge = document.getElementById("alert-count");
  badge.hidden = !active;
  setText(badge, active ? `${active}` : "");
  badge.setAttribute("aria-label", `${active} active alerts`);
}

function pause() {
  act(
    {
      title: "Pause the run?",
      confirm: "Pause the run",
      consequences: [
        "The update in hand is finished; after it none is made until you resume.",
        "Nodes stay connected and go on as far as leases allow, then wait.",
        "The pause outlives a restart of the hub.",
      ],
      fields: [
        {
          name: "why",
          label: "Why",
          hint: "Shown here and in `echo-hub status`.",
          value: "an operator paused it.",
        },
      ],
    },
    ({ why }) => send("POST", "/run/pause", why ? { why } : {}),
  );
}

function resume() {
  const why = live.overview?.paused?.why;
  act(
    {
      title: "Resume the run?",
      confirm: "Resume the run",
      consequences: [
        why ? `It was paused: ${why}` : "It is paused.",
        "The learner makes updates again. The first one is not compared with those before.",
      ],
    },
    () => send("POST", "/run/resume"),
  );
}

function publish() {
  const { version, published } = live.overview ?? {};
  act(
    {
      title: "Publish the newest version now?",
      confirm: "Publish",
      consequences: [
        `Version ${version} goes out to all nodes; the last one published was ${published ?? "none"}.`,
        "The usual rhythm of publications goes on afterwards.",
      ],
    },
    () => send("POST", "/run/publish"),
  );
}

async function signOut() {
  await send("DELETE", "/session");
  location.reload();
}
