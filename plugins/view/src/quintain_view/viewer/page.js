"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const MORE = 200;  // groups that the list shows at once

// Every text of a model, a task or a tool becomes a text node; nothing is parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(4).filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

const number = value => value === null || value === undefined ? "none" : String(Math.round(value * 1e4) / 1e4);
const signed = value => (value > 0 ? "+" : "") + number(value);

const groups = [];
{
  const index = new Map();
  for (const rollout of data.rollouts) {
    const key = JSON.stringify([rollout.step, rollout.environment, rollout.group]);
    if (!index.has(key)) { index.set(key, groups.length); groups.push({key, at: groups.length, samples: [], first: rollout}); }
    groups[index.get(key)].samples.push(rollout);
    rollout.text = [rollout.prompt, ...[rollout, ...rollout.conversations].flatMap(c => c.messages).map(m => [m.content, m.reasoning, JSON.stringify(m.calls || "")].join("\n"))]
      .join("\n").toLowerCase();
  }
}
for (const group of groups) {
  const rewards = group.samples.map(s => s.reward).filter(r => r !== null);
  group.mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
  group.spread = rewards.length ? Math.max(...rewards) - Math.min(...rewards) : 0;
  group.right = group.samples.filter(s => s.result === "right").length;
  group.length = Math.max(...group.samples.map(s => s.sampled));
  group.mixed = new Set(group.samples.filter(s => s.result !== "failed").map(s => s.result)).size > 1;
}

let chosen = null, sample = null, tab = "conversation", colour = "logp", shown = MORE;

function matches(rollout) {
  const text = by("search").value.trim().toLowerCase(), result = by("result").value;
  const low = by("low").value, high = by("high").value;
  return (!text || rollout.text.includes(text))
    && (!result || result === "mixed" || rollout.result === result)
    && (!by("step").value || String(rollout.step) === by("step").value)
    && (!by("environment").value || rollout.environment === by("environment").value)
    && (low === "" || (rollout.reward !== null && rollout.reward >= Number(low)))
    && (high === "" || (rollout.reward !== null && rollout.reward <= Number(high)));
}

const ORDERS = {
  new: (a, b) => b.first.step - a.first.step || a.at - b.at,
  old: (a, b) => a.first.step - b.first.step || a.at - b.at,
  high: (a, b) => (b.mean ?? -1e9) - (a.mean ?? -1e9),
  low: (a, b) => (a.mean ?? 1e9) - (b.mean ?? 1e9),
  spread: (a, b) => b.spread - a.spread,
  long: (a, b) => b.length - a.length,
};

let visible = [];
function refresh() {
  visible = groups.filter(g => (by("result").value !== "mixed" || g.mixed) && g.samples.some(matches));
  visible.sort(ORDERS[by("order").value]);
  const count = visible.reduce((sum, g) => sum + g.samples.filter(matches).length, 0);
  by("count").textContent = `${count.toLocaleString("en")} rollouts in ${visible.length.toLocaleString("en")} groups`;
  shown = MORE;
  if (!visible.includes(chosen)) { chosen = visible.find(g => g.key === JSON.stringify(data.open)) || visible[0] || null; sample = null; }
  list();
  detail();
}

function list() {
  const rows = visible.slice(0, shown).map(group => make("button", {
    type: "button", class: group === chosen ? "group chosen" : "group", "aria-current": group === chosen ? "true" : null,
    onclick: () => { open(group); document.body.classList.add("reading"); window.scrollTo(0, 0); },
  },
    make("span", {class: "excerpt"}, group.first.prompt.replace(/\s+/g, " ").slice(0, 160) || "(no prompt)"),
    make("span", {class: "about"},
      make("span", {class: "dots", title: group.samples.map(s => `${s.sample}: ${s.result}, reward ${number(s.reward)}`).join("\n")},
        group.samples.slice(0, 16).map(s => make("i", {class: "dot " + s.result})), `${group.right}/${group.samples.length} right`),
      make("span", {}, `step ${group.first.step}`))));
  if (visible.length > shown) rows.push(make("button", {
    type: "button", class: "group", onclick: () => { shown += MORE; list(); }}, `show ${Math.min(MORE, visible.length - shown)} more`));
  if (!rows.length) rows.push(make("p", {class: "empty"}, "No rollout matches. Change or clear the filters."));
  by("list").replaceChildren(...rows);
}

function open(group) { chosen = group; sample = null; list(); detail(); by("detail").scrollTop = 0; }

function bar(advantage, largest) {
  if (advantage === null) return null;
  const half = largest ? Math.abs(advantage) / largest * 50 : 0;
  const fill = make("i", {class: advantage >= 0 ? "plus" : "minus"});
  fill.style.left = (advantage >= 0 ? 50 : 50 - half) + "%";
  fill.style.width = half + "%";
  return make("div", {class: "bar", title: `advantage ${number(advantage)}`}, fill);
}

function highlighted(text) {
  const wanted = by("search").value.trim().toLowerCase();
  if (!wanted) return [text];
  const parts = [], lower = text.toLowerCase();
  if (lower.length !== text.length) return [text];
  let from = 0, at;
  while ((at = lower.indexOf(wanted, from)) >= 0) {
    parts.push(text.slice(from, at), make("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}

function detail() {
  const before = by("detail").querySelector(".samples")?.scrollLeft ?? 0;
  if (!chosen) { by("detail").replaceChildren(); return; }
  const {first, samples} = chosen;
  const fitting = samples.filter(matches);
  if (!sample || !samples.includes(sample)) sample = fitting[0] || samples[0];
  const largest = Math.max(...samples.map(s => Math.abs(s.advantage ?? 0)));
  const cards = samples.map(s => make("div", {
    class: ["sample", s === sample ? "chosen" : "", fitting.includes(s) ? "" : "other"].join(" "), tabindex: "0", role: "button",
    "aria-pressed": s === sample ? "true" : "false", onclick: () => { sample = s; detail(); },
    onkeydown: event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sample = s; detail(); } },
  },
    make("div", {}, make("b", {class: s.result}, s.result), ` · sample ${s.sample}`),
    make("div", {}, `reward ${number(s.reward)}`, s.advantage === null ? "" : `, advantage ${signed(s.advantage)}`),
    bar(s.advantage, largest),
    make("div", {class: "meta"}, `${s.termination}${s.reason ? ": " + s.reason.slice(0, 80) : ""} · ${s.sampled} tokens`),
    make("div", {class: "reply"}, ...highlighted(s.reply || "(no reply)"))));
  by("detail").replaceChildren(
    make("button", {type: "button", class: "back", onclick: () => document.body.classList.remove("reading")}, "Back to the list"),
    make("h2", {}, `${first.environment}, step ${first.step}, group ${first.group}`),
    make("div", {class: "prompt"}, ...highlighted(first.prompt), first.messages.filter(m => m.role === "user").slice(0, 1).map(pictures)),
    make("table", {}, first.answer === null ? "" : make("tr", {}, make("th", {}, "expected"), make("td", {}, text(first.answer)))),
    make("h3", {}, `${samples.length} samples: ${chosen.right} right, mean reward ${number(chosen.mean)}`),
    make("div", {class: "samples"}, cards),
    make("div", {class: "tabs", role: "group"}, ["conversation", "scores", "tokens"].map(name => make("button", {
      type: "button", "aria-pressed": name === tab ? "true" : "false", onclick: () => { tab = name; detail(); }}, name))),
    make("h3", {}, `sample ${sample.sample}`),
    {conversation, scores, tokens}[tab](sample));
  const card = by("detail").querySelector(".sample.chosen"), row = card.parentElement;
  const left = card.offsetLeft - row.offsetLeft - 2, right = left + card.offsetWidth + 4;  // with its shadow
  row.scrollLeft = Math.min(left, Math.max(before, right - row.clientWidth));  // no further than the card needs
}

const text = value => typeof value === "string" ? value : JSON.stringify(value);

// The policy's own conversation, then those of the other players: seats of a game, sub-agents.
function conversation(rollout) {
  return make("div", {}, messages(rollout), rollout.conversations.map(other => [heading(other), messages(other)]));
}

function heading(other) {
  return make("h3", {}, `player ${other.player}`, other.score === null ? "" : `, score ${number(other.score)}`);
}

// Where the context was compacted, truncated or rendered anew, after a number of messages or tokens.
function rewrites(part, unit, number) {
  return part.rewrites.filter(place => place[unit] === number).map(place => make("div", {class: "rewrite"},
    `context rewritten: ${place.before.toLocaleString("en")} tokens before, ${place.after.toLocaleString("en")} after`));
}

// Small copies in this file: nothing is fetched.
function pictures(message) {
  const found = (message.pictures || []).map(number => make("img", {src: data.pictures[number], alt: "picture"}));
  return found.length ? make("div", {class: "pictures"}, found) : null;
}

function messages(part) {
  return make("div", {}, part.messages.map((m, i) => [
    rewrites(part, "messages", i),
    m.reasoning ? make("div", {class: "message reasoning"}, make("b", {}, "reasoning"), ...highlighted(m.reasoning)) : null,
    m.content || !(m.calls || []).length
      ? make("div", {class: "message " + m.role}, make("b", {}, m.role + (m.name ? " " + m.name : "")), ...highlighted(m.content || "(empty)"), pictures(m)) : null,
    ...(m.calls || []).map(call => make("div", {class: "message call"}, make("b", {}, "calls " + call.name),
      ...highlighted(JSON.stringify(call.arguments, null, 1)), call.error ? make("div", {class: "wrong"}, call.error) : null)),
  ]));
}

function scores(rollout) {
  const row = (name, value, isNumber) => value === null || value === undefined || value === "" ? "" :
    make("tr", {}, make("th", {}, name), make("td", {class: isNumber ? "number" : ""}, isNumber ? number(value) : text(value)));
  return make("div", {class: "wide"}, make("table", {},
    row("reward", rollout.reward, true), row("outcome", rollout.outcome, true), row("shaping", rollout.shaping, true),
    row("yardstick", rollout.yardstick, true),
    row("advantage", rollout.advantage, true),
    Object.entries(rollout.parts).map(([name, value]) => row(`part ${name}`, value, true)),
    Object.entries(rollout.metrics).map(([name, value]) => row(`metric ${name}`, value, true)),
    row("reason of the score", rollout.why), row("ended", rollout.termination + (rollout.reason ? ": " + rollout.reason : "")),
    row("attempts", rollout.attempts, true), row("sampled tokens", rollout.sampled, true), row("seconds", rollout.seconds, true),
    row("task", rollout.task_id), row("level", rollout.level, true), row("seed", rollout.seed)));
}

const CLASSES = {prompt: "prompt-token"};
function tokens(rollout) {
  return make("div", {}, tokensOf(rollout), rollout.conversations.map(other => [heading(other), tokensOf(other)]));
}

function tokensOf(rollout) {
  if (!rollout.tokens) return make("p", {class: "empty"}, "The page has no tokens of this rollout: write it with --tokens, or with fewer rollouts.");
  if (!rollout.tokens.length) return make("p", {class: "empty"}, "The engine of this rollout returned no tokens.");
  const legend = make("p", {class: "legend"}, "Point at a token for its numbers. Grey tokens were not sampled.");
  const largest = Math.max(1e-9, ...rollout.tokens.map(t => Math.abs(t[4] ?? 0)));
  const spans = rollout.tokens.map(([id, source, logp, version, advantage], i) => {
    const name = data.sources[source] || String(source), sampled = logp !== undefined;
    const about = [`${JSON.stringify(data.texts[id])}, id ${id}, ${name}`]
      .concat(sampled ? [`log-prob ${number(logp)}, p ${number(Math.exp(logp))}, advantage ${number(advantage)}, weights ${version}`] : []).join("; ");
    const span = make("span", {class: CLASSES[name] || name, title: about,
      onmouseenter: () => { legend.textContent = about; }, onclick: () => { legend.textContent = about; }}, data.texts[id]);
    if (sampled && colour === "logp") span.style.backgroundColor = `rgba(var(--w0), ${Math.min(0.75, -logp / 4.6 * 0.75)})`;
    if (sampled && colour === "advantage" && advantage)
      span.style.backgroundColor = `rgba(var(${advantage > 0 ? "--r0" : "--w0"}), ${0.15 + Math.abs(advantage) / largest * 0.5})`;
    return [rewrites(rollout, "tokens", i), span];
  });
  const names = {logp: "log-prob", source: "source", advantage: "advantage"};
  const hints = {
    logp: "The redder a token, the less probable it was (white: p = 1).",
    source: "Green: sampled by the policy. Yellow: tools. Grey: prompt and template.",
    advantage: "Green: the update makes the token more probable. Red: less.",
  };
  return make("div", {},
    make("div", {class: "tabs", role: "group"}, "colour by ", Object.entries(names).map(([key, name]) => make("button", {
      type: "button", "aria-pressed": key === colour ? "true" : "false", onclick: () => { colour = key; detail(); }}, name))),
    make("p", {class: "legend"}, hints[colour]),
    make("div", {class: "tokens " + (colour === "source" ? "source" : "")}, spans), legend);
}

by("title").append(data.name, make("small", {}, data.rollouts.length < data.total
  ? `${data.rollouts.length.toLocaleString("en")} of ${data.total.toLocaleString("en")} rollouts, ${data.why}` : `${data.total.toLocaleString("en")} rollouts`));
for (const [id, every, values] of [
  ["step", "every step", [...new Set(data.rollouts.map(r => r.step))].sort((a, b) => a - b)],
  ["environment", "every environment", [...new Set(data.rollouts.map(r => r.environment))].sort()],
]) {
  by(id).append(make("option", {value: ""}, every), ...values.map(v => make("option", {value: String(v)}, id === "step" ? `step ${v}` : v)));
  by(id).hidden = values.length < 2;
}
// #search=TEXT&tab=tokens&colour=advantage: where the page begins; a group is open on a narrow screen with &reading=1.
const start = new URLSearchParams(location.hash.slice(1));
for (const id of ["search", "step", "environment", "result", "low", "high", "order"]) if (start.has(id)) by(id).value = start.get(id);
if (["conversation", "scores", "tokens"].includes(start.get("tab"))) tab = start.get("tab");
if (["logp", "source", "advantage"].includes(start.get("colour"))) colour = start.get("colour");
if (start.has("reading")) document.body.classList.add("reading");
by("filters").addEventListener("submit", event => event.preventDefault());
by("filters").addEventListener("input", refresh);
document.addEventListener("keydown", event => {
  if (event.target.matches("input, select") || !["j", "k"].includes(event.key) || !chosen) return;
  const next = visible[visible.indexOf(chosen) + (event.key === "j" ? 1 : -1)];
  if (next) open(next);
});
refresh();
// On a narrow screen the list is the page, whose head has the title and the search.
if (!matchMedia("(max-width: 760px)").matches) document.querySelector(".group.chosen")?.scrollIntoView({block: "center"});
