/** One node: what it did, why its rollouts were rejected, and what the operator can do about it. */

import { get, send } from "../api.js";
import { bars, card, empty, pill, stat, stats } from "../bits.js";
import { act } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, percent, plural, timeOf, words } from "../format.js";
import { stranger, visible, visibleText } from "../hostile.js";
import { live } from "../live.js";
import { ADVICE, FAULTS, STANDING } from "../reasons.js";
import { groupTable } from "./group-list.js";

const RECENT = 10;

/** Show a node by its peer id. */
export async function showNode(root, peer, { signal }) {
  const path = `/nodes/${encodeURIComponent(peer)}`;
  const title = h("h1", {}, "Node");
  const buttons = h("div.buttons");
  const body = h("div.cards");
  const groups = h("div");
  root.append(
    h(
      "p.crumbs",
      {},
      h("a", { href: "#/nodes" }, "Nodes"),
      " / ",
      h("span.peer", {}, visibleText(peer, 64)),
    ),
    h("div.page-head", {}, title, buttons),
    body,
    card("Its last groups", { wide: true }, groups),
  );
  let node = await get(path, {}, { signal });

  const reload = async () => {
    node = await get(path, {}, { signal });
    draw();
  };
  const draw = () => {
    fill(
      title,
      node.name ? stranger(node.name) : h("span.peer", {}, peer),
      " ",
      pill(STANDING[node.standing].kind, STANDING[node.standing].text),
    );
    fill(buttons, actions(node, path, reload));
    fill(body, facts(node), rejected(node), annotations(node));
  };
  draw();
  live.on(
    "nodes",
    (batches) => {
      const row = batches.flat().findLast((one) => one.node === peer);
      if (!row || body.contains(document.activeElement)) return;
      node = { ...node, ...row };
      draw();
    },
    signal,
  );
  live.on("resync", () => reload().catch(() => {}), signal);
  const page = await get("/rollouts", { node: peer, limit: RECENT }, { signal });
  fill(
    groups,
    page.groups.length
      ? [
          groupTable(page.groups, { node: false }),
          h(
            "p",
            {},
            h("a", { href: `#/rollouts?node=${encodeURIComponent(peer)}` }, "All its groups"),
          ),
        ]
      : empty("It has handed in nothing yet."),
  );
}

function facts(node) {
  const why = node.why
    ? h(
        "p.why",
        {},
        h("b", {}, node.standing === "banned" ? "Banned: " : "Quarantined: "),
        visible(node.why, 500),
      )
    : null;
  return card(
    "Facts",
    {},
    why,
    h("p.muted", {}, STANDING[node.standing].means),
    stats(
      stat("Rate", `${number(node.rate)} rollouts/s`),
      stat("Version", node.version === null ? "–" : `v${node.version}`),
      stat("Accepted", plural(node.accepted, "rollout")),
      stat(
        "Trained on",
        plural(node.trained_groups, "group"),
        node.disputed_groups ? `${number(node.disputed_groups)} disputed` : null,
      ),
      stat("Valid in a row", plural(Math.round(node.valid), "group")),
      stat("Next audit", percent(node.audit_probability)),
      stat("Suspicion", percent(node.suspicion), "100 % condemns"),
      stat("Audited", plural(node.audited_tokens, "token")),
      stat("Accusers", number(node.accusers), "say it sent bad chunks"),
      stat(
        "Reachable",
        node.reachable === null
          ? "not known"
          : node.reachable
            ? "yes"
            : "no, behind a NAT or firewall",
      ),
      stat("Engine", stranger(node.engine || "–")),
      stat("Software", stranger(node.software || "–")),
      stat("Last seen", h("span", {}, timeOf(node.last_seen, { both: true }))),
      stat("First seen", h("span", {}, timeOf(node.first_seen, { both: true }))),
    ),
    h("p.muted.peer", {}, node.node),
    node.addresses.length
      ? h(
          "details",
          {},
          h("summary", {}, plural(node.addresses.length, "address", "addresses")),
          h(
            "ul",
            {},
            node.addresses.slice(0, 20).map((one) => h("li.peer", {}, visible(one, 200))),
          ),
        )
      : null,
  );
}

function rejected(node) {
  const rows = Object.entries(node.rejected).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return card("Rejected rollouts", {}, empty("None so far."));
  const faults = rows.filter(([code]) => FAULTS.has(code));
  return card(
    "Rejected rollouts",
    { note: `${number(node.rejected_total)} in all` },
    bars(
      rows.map(([code, count]) => ({
        name: h(
          "a",
          {
            href: `#/rollouts?node=${encodeURIComponent(node.node)}&reason=${encodeURIComponent(code)}`,
          },
          words(code),
        ),
        value: count,
        colour: FAULTS.has(code) ? "--c2" : "--c1",
      })),
      { label: "Rejected rollouts by reason" },
    ),
    faults.length
      ? h(
          "p.muted",
          {},
          `An honest node is never rejected for: ${faults.map(([code]) => words(code)).join(", ")}.`,
        )
      : null,
    h(
      "ul.advice",
      {},
      rows
        .filter(([code]) => ADVICE[code])
        .slice(0, 3)
        .map(([code]) => h("li", {}, h("b", {}, `${words(code)}: `), ADVICE[code])),
    ),
  );
}

function annotations(node) {
  return card(
    "Your notes",
    {},
    node.note
      ? h("p.kept-lines", {}, visible(node.note, 2000))
      : empty("No note. Notes are yours alone; a name is also shown on the public page."),
  );
}

function actions(node, path, reload) {
  const name = node.name ? visibleText(node.name, 40) : node.node;
  const button = (text, id, question, doing, kind = "") =>
    h(`button${kind}`, { type: "button", id, onclick: () => act(question, doing, reload) }, text);
  const annotate = button(
    "Annotate",
    "annotate",
    {
      title: "Name and note",
      confirm: "Save",
      consequences: ["The name is shown on the public page's leader board; the note only here."],
      fields: [
        { name: "name", label: "Name", value: node.name, most: 60 },
        { name: "note", label: "Note", value: node.note, multiline: true, most: 2000 },
      ],
    },
    ({ name: called, note }) => send("PUT", `${path}/annotation`, { name: called, note }),
  );
  if (node.standing === "banned") {
    return [
      annotate,
      button(
        "Unban",
        "unban",
        {
          title: `Unban ${name}?`,
          confirm: "Unban",
          consequences: [
            `It was banned because: ${visibleText(node.why, 300)}`,
            "It may join again, as a newcomer: all of its groups are audited at first.",
          ],
        },
        () => send("POST", `${path}/unban`),
      ),
    ];
  }
  const quarantine =
    node.standing === "quarantined"
      ? button(
          "Release",
          "release",
          {
            title: `Release ${name}?`,
            confirm: "Release",
            consequences: ["Its groups are trained on again, with the standing it has."],
          },
          () => send("POST", `${path}/release`),
        )
      : button(
          "Quarantine",
          "quarantine",
          {
            title: `Quarantine ${name}?`,
            confirm: "Quarantine",
            consequences: [
              "It works on. All of its groups are audited, and none is trained on.",
              "This lasts until you release it.",
            ],
            fields: [{ name: "why", label: "Why", hint: "Kept with the node.", value: "" }],
          },
          ({ why }) => send("POST", `${path}/quarantine`, why ? { why } : {}),
        );
  return [
    annotate,
    quarantine,
    button(
      "Ban",
      "ban",
      {
        title: `Ban ${name}?`,
        confirm: "Ban this node",
        danger: true,
        consequences: [
          "Its connection is closed and its key refused until you unban it.",
          "All of its groups that wait are thrown away; open leases are taken back.",
          `Groups of it that were trained on stay in the policy (${plural(node.trained_groups, "group")}); those that no audit passed are marked as disputed.`,
        ],
        fields: [{ name: "why", label: "Why", hint: "Told to the node.", required: true }],
      },
      ({ why }) => send("POST", `${path}/ban`, { why }),
      ".danger",
    ),
  ];
}
