/** Groups of rollouts: found by reward, node, version, state or words; and one read token by token. */

import { get } from "../api.js";
import { card, choice, empty, heading, labelled, later, pill, stat, stats } from "../bits.js";
import { showProblem } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, plural, reward, shortPeer, timeOf, words } from "../format.js";
import { stranger, visible, visibleText } from "../hostile.js";
import { live } from "../live.js";
import { ADVICE } from "../reasons.js";
import { groupTable, meanReward, stateOf } from "./group-list.js";
import { probabilityKey, transcript } from "./transcript.js";

const PAGE = 50;
const FIELDS = ["sort", "search", "state", "reason", "node", "version"];

export async function show(root, place) {
  return place.rest[0] ? showGroup(root, Number(place.rest[0]), place) : showList(root, place);
}

function showList(root, { signal, query }) {
  const asked = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""]));
  const list = h("div");
  const news = h("div", { role: "status" });
  const more = h("div.more");
  let groups = [];
  let loading = new AbortController();

  const load = async (before = null) => {
    loading.abort();
    loading = new AbortController();
    signal.addEventListener("abort", () => loading.abort());
    try {
      const page = await get(
        "/rollouts",
        { ...asked, before, limit: PAGE },
        { signal: loading.signal },
      );
      groups = before === null ? page.groups : [...groups, ...page.groups];
      fill(news);
      fill(list, groups.length ? groupTable(groups) : none(asked, page));
      fill(
        more,
        page.next_before === null
          ? null
          : h(
              "button",
              { type: "button", onclick: () => load(page.next_before) },
              groups.length
                ? "More"
                : `Search further (${number(page.scanned)} groups looked through)`,
            ),
      );
    } catch (error) {
      if (error.name !== "AbortError") showProblem(list, error);
    }
  };
  const change = (name, value) => {
    asked[name] = value;
    const kept = new URLSearchParams(Object.entries(asked).filter(([, one]) => one));
    history.replaceState(null, "", `#/rollouts${kept.size ? `?${kept}` : ""}`);
    load();
  };
  root.append(
    heading("Rollouts", h("span.note", {}, "groups of answers to one prompt")),
    filters(asked, change),
    news,
    list,
    more,
  );
  live.on(
    "overview",
    () => {
      if (asked.sort || news.firstChild || !groups.length) return;
      if (
        live.overview.counts.rollouts_accepted >
        (groups.accepted ??= live.overview.counts.rollouts_accepted)
      ) {
        fill(
          news,
          h(
            "button.news",
            { type: "button", onclick: () => load() },
            "New groups have come in: show them",
          ),
        );
      }
    },
    signal,
  );
  live.on("resync", () => load(), signal);
  return load();
}

function filters(asked, change) {
  const text = (name, label, attributes = {}) => {
    const input = h("input", {
      type: "search",
      value: asked[name],
      maxlength: 200,
      autocomplete: "off",
      spellcheck: "false",
      ...attributes,
    });
    input.addEventListener(
      "input",
      later(() => change(name, input.value.trim())),
    );
    return labelled(label, input, `filter-${name}`);
  };
  return h(
    "div.filters",
    {},
    labelled(
      "Order",
      choice(
        [
          ["", "newest"],
          ["best", "best reward"],
          ["worst", "worst reward"],
        ],
        asked.sort,
        (value) => change("sort", value),
      ),
      "filter-sort",
    ),
    text("search", "Words in the answers"),
    labelled(
      "State",
      choice(
        [
          ["", "any"],
          ["received", "being checked"],
          ["scored", "buffered"],
          ["consumed", "trained on"],
          ["dropped", "dropped"],
        ],
        asked.state,
        (value) => change("state", value),
      ),
      "filter-state",
    ),
    labelled(
      "Reason",
      choice(
        [
          ["", "any"],
          ...Object.keys(ADVICE)
            .concat("banned", "not_audited", asked.reason)
            .filter((one, at, all) => one && all.indexOf(one) === at)
            .sort()
            .map((one) => [one, words(one)]),
        ],
        asked.reason,
        (value) => change("reason", value),
      ),
      "filter-reason",
    ),
    text("node", "Node (peer id)"),
    text("version", "Version", { inputmode: "numeric", pattern: "[0-9]*" }),
  );
}

function none(asked, page) {
  const narrowed = Object.values(asked).some(Boolean);
  if (narrowed)
    return empty(
      `No group matches${page.scanned ? ` among ${plural(page.scanned, "group")} looked through` : ""}.`,
      "Take a filter away, or search further.",
    );
  return empty(
    "No rollouts yet.",
    "They come as soon as a node is in session and has the newest version.",
  );
}

async function showGroup(root, id, { signal }) {
  const group = await get(`/rollouts/${id}`, {}, { signal });
  const rollouts = group.rollouts.map((one, at) => ({ ...one, at }));
  root.append(
    h("p.crumbs", {}, h("a", { href: "#/rollouts" }, "Rollouts"), ` / group ${id}`),
    heading(`Group ${id}`, stateOf(group)),
    h("div.cards", {}, facts(group), auditCard(group)),
    card(
      "Prompt",
      { wide: true },
      h(
        "div.transcript",
        { tabindex: 0, role: "region", "aria-label": "Text of the prompt" },
        visible(group.prompt, 8000),
      ),
    ),
  );
  const order = choice(
    [
      ["given", "as drawn"],
      ["best", "best first"],
      ["worst", "worst first"],
    ],
    "best",
    (value) => draw(value),
  );
  const coloured = h("input", {
    type: "checkbox",
    checked: true,
    id: "coloured",
    onchange: () => answers.classList.toggle("plain", !coloured.checked),
  });
  const answers = h("div.answers-list");
  root.append(
    h(
      "div.filters",
      {},
      labelled("Order of answers", order, "answer-order"),
      h("div.check", {}, coloured, h("label", { for: "coloured" }, "Colour tokens by probability")),
      probabilityKey(),
    ),
    answers,
  );
  function draw(way) {
    const sorted = [...rollouts];
    if (way !== "given")
      sorted.sort((a, b) => ((b.reward ?? 0) - (a.reward ?? 0)) * (way === "best" ? 1 : -1));
    fill(
      answers,
      sorted.map((one) => transcript(one, rollouts.length)),
    );
  }
  draw("best");
}

function facts(group) {
  return card(
    "Facts",
    {},
    group.sentence ? h("p.why", {}, visible(group.sentence, 1000)) : null,
    group.reason && ADVICE[group.reason] ? h("p.muted", {}, ADVICE[group.reason]) : null,
    stats(
      stat("Mean reward", reward(meanReward(group))),
      stat("Task", stranger(group.task)),
      stat("Prompt", `${stranger(group.split).textContent} ${number(group.prompt_index)}`),
      stat("Version", `v${group.version}`),
      stat(
        "Trained on",
        group.update ? h("a", { href: `#/versions/${group.update}` }, `v${group.update}`) : "no",
        group.update ? `lag ${Math.max(0, group.update - 1 - group.version)}` : null,
      ),
      stat(
        "Node",
        h("a.peer", { href: `#/nodes/${encodeURIComponent(group.node)}` }, shortPeer(group.node)),
      ),
      stat("Received", h("span", {}, timeOf(group.received_at, { both: true }))),
      stat("Trace", h("code", {}, visibleText(group.trace, 40)), "for `echo-hub trace`"),
    ),
  );
}

function auditCard({ audit, audited, disputed, state }) {
  const word = disputed
    ? pill("warn", "disputed: its node was banned later")
    : audited
      ? pill("good", "audited, and passed")
      : null;
  if (!audit) {
    const why =
      state === "received"
        ? "It is still being checked."
        : audited
          ? "What the audit measured was not kept."
          : "It was not audited: it was taken on its node's standing.";
    return card("Audit", {}, word, empty(why));
  }
  return card(
    "Audit",
    { note: "derived again by the hub" },
    word,
    stats(
      stat("Greatest margin", number(audit.max_margin), "logits; 0 is the token the policy draws"),
      stat("Greatest difference", number(audit.max_logprob_difference), "nats of log-probability"),
      stat("Other tokens", number(audit.mismatches), `of ${plural(audit.tokens, "token")}`),
    ),
  );
}
