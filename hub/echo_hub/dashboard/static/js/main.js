/** The page's start: who asks, which page is wanted, and what stands around each of them. */

import { get, useSession } from "./api.js";
import { showProblem } from "./dialog.js";
import { fill, h } from "./dom.js";
import { tick } from "./format.js";
import { live } from "./live.js";
import { frame, markPage, showAlone } from "./shell.js";
import * as theme from "./theme.js";

const PAGES = {
  __proto__: null, // a name from outside finds nothing that is not here
  overview: { title: "Overview", load: () => import("./pages/overview.js") },
  nodes: { title: "Nodes", load: () => import("./pages/nodes.js") },
  versions: { title: "Versions", load: () => import("./pages/versions.js") },
  rollouts: { title: "Rollouts", load: () => import("./pages/rollouts.js") },
  learner: { title: "Learner", load: () => import("./pages/learner.js") },
  planner: { title: "Planner", load: () => import("./pages/planner.js") },
  events: { title: "Events", load: () => import("./pages/events.js") },
};

const TICK_MS = 5000;
let leaving = new AbortController();
let shown = { name: null, rest: null };

/** `#/nodes/PEER?q=x` as page, rest of the path, and query. */
function wanted() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name: PAGES[name] ? name : "overview", rest, query: new URLSearchParams(query ?? "") };
}

async function go() {
  if (location.hash === "#main") return; // the skip link
  const place = wanted();
  const page = PAGES[place.name];
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const moved = shown.name !== null;
  shown = place;
  const main = document.getElementById("main");
  delete main.dataset.ready;
  markPage(place.name, page.title);
  try {
    const { show } = await page.load();
    if (signal.aborted) return;
    const content = h("div.page", { "data-page": place.name });
    fill(main, content);
    if (moved) main.focus({ preventScroll: true });
    scrollTo(0, 0);
    await show(content, { signal, rest: place.rest, query: place.query });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    showProblem(main.appendChild(h("div", { role: "alert" })), error);
  }
  if (!signal.aborted) main.dataset.ready = place.name;
}

async function start() {
  theme.apply();
  setInterval(tick, TICK_MS);
  if (location.pathname.startsWith("/public")) {
    const { show } = await import("./pages/public.js");
    showAlone("public");
    await show(document.getElementById("main"));
    return;
  }
  const session = await get("/session");
  useSession(session);
  if (session.required && !session.authenticated) {
    const { show } = await import("./pages/login.js");
    showAlone("login");
    show(document.getElementById("main"));
    return;
  }
  frame(PAGES, session);
  live.start("/api/v1/events");
  addEventListener("hashchange", go);
  addEventListener("echo-signed-out", () => location.reload(), { once: true });
  await go();
}

start().catch((error) => {
  const main = document.getElementById("main");
  showProblem(main, error);
  main.append(
    h("button.primary", { type: "button", onclick: () => location.reload() }, "Try again"),
  );
});
