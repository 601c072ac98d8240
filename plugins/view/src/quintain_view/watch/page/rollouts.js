// The rollouts of one run: a list of which only the visible part exists, and one rollout in full.
const ROW = 68, PAGE = 100;
let colour = "logp";
const COLOURS = {
  logp: "log-prob: the redder a token, the less probable it was.",
  mask: "mask: green tokens were sampled by the policy and train. Grey ones are prompt and template, yellow ones tools.",
  version: "version: the bluer, the more updates behind the newest weights of the rollout.",
  advantage: "advantage: green tokens become more probable by the update, red ones less.",
};

class Rollouts {
  constructor(run) {
    this.run = run;
    this.pages = new Map();
    this.total = 0;
    this.at = -1;
    this.view = null;
    this.tab = "conversation";
    this.known = "";
    this.pending = null;
    this.asked = 0;
    const field = (tag, name, attributes, ...children) => make(tag, {name, ...attributes, oninput: () => this.reload()}, ...children);
    this.filters = make("form", {class: "filters", autocomplete: "off", onsubmit: event => event.preventDefault()},
      field("input", "text", {type: "search", placeholder: "Search (/)", "aria-label": "Search prompts, replies and tools"}),
      field("select", "result", {"aria-label": "Result"}, ["", "right", "wrong", "failed"].map(v => make("option", {value: v}, v || "any result"))),
      field("select", "environment", {"aria-label": "Environment"}),
      field("select", "cause", {"aria-label": "Cause of failure"}),
      make("span", {class: "soft"}, "reward"),
      field("input", "low", {type: "number", step: "any", placeholder: "min", "aria-label": "Smallest reward"}),
      field("input", "high", {type: "number", step: "any", placeholder: "max", "aria-label": "Largest reward"}),
      field("select", "order", {"aria-label": "Order"}, known.orders.map(v => make("option", {value: v}, v))),
      this.count = make("output", {class: "soft"}));
    this.space = make("div", {class: "space"});
    this.list = make("div", {class: "list", tabindex: "0", role: "listbox", "aria-label": `Rollouts of ${run.name}`,
      onscroll: () => this.draw(), onkeydown: event => this.key(event)}, this.space);
    this.detail = make("article", {class: "detail", tabindex: "-1"});
    this.pane = make("section", {class: "pane"}, this.filters, make("div", {class: "split"}, this.list, this.detail));
    new ResizeObserver(() => this.draw()).observe(this.list);
    this.reload();
  }

  query(offset, limit) {
    const words = new URLSearchParams([...new FormData(this.filters)].filter(([, value]) => value !== ""));
    words.set("offset", offset);
    words.set("limit", limit);
    return `${named(this.run.name)}/rollouts?${words}`;
  }

  async reload() {
    const mine = ++this.asked;
    try {
      const [facets, page] = await Promise.all([ask(`${named(this.run.name)}/facets`), ask(this.query(0, PAGE))]);
      if (mine !== this.asked) return;
      this.facets(facets);
      this.pages = new Map([[0, page.rows]]);
      this.total = page.total;
      this.list.scrollTop = 0;
      this.at = -1;
      this.draw();
      if (this.total && !this.view && innerWidth > 760) this.open(0);
    } catch (error) { said(error.message, true); }
  }

  // The list keeps its place while somebody reads further down; the number says that there is more.
  async refresh() {
    const state = `${this.run.step}/${this.run.live ? this.run.live.finished : 0}`;
    if (state === this.known) return;
    this.known = state;
    if (this.list.scrollTop < ROW) await this.reload();
    else this.count.textContent = `${count(this.total)} · new ones came: press r`;
  }

  facets(facets) {
    const choices = {environment: [["", "every environment"], ...facets.environments.map(e => [e, short(e)])],
      cause: [["", "any cause"], ...Object.entries(facets.causes).map(([cause, n]) => [cause, `${cause} (${n})`])]};
    for (const [name, options] of Object.entries(choices)) {
      const select = this.filters.elements[name], before = select.value;
      select.replaceChildren(...options.map(([value, title]) => make("option", {value}, title)));
      select.value = options.some(([value]) => value === before) ? before : "";
      select.hidden = options.length < 2 || (name === "environment" && options.length < 3);
    }
  }

  // Rollouts of the step that runs stand above the stored ones, while nothing is filtered.
  get fresh() {
    const plain = [...new FormData(this.filters)].every(([name, value]) => value === "" || name === "order");
    const live = plain && this.filters.elements.order.value === "newest" ? this.run.live : null;
    return live ? [...live.rollouts].reverse().map(row => ({...row, step: live.step, tokens: row.sampled, live: true})) : [];
  }

  row(index) {
    const fresh = this.fresh;
    if (index < fresh.length) return fresh[index];
    const at = index - fresh.length, page = Math.floor(at / PAGE);
    const rows = this.pages.get(page);
    if (rows) return rows[at - page * PAGE];
    if (rows === undefined) {
      this.pages.set(page, null);
      const mine = this.asked;
      ask(this.query(page * PAGE, PAGE)).then(answer => {
        if (mine !== this.asked) return;
        this.pages.set(page, answer.rows);
        this.draw();
        if (this.pending === this.at && this.row(this.at)) this.open(this.at);
      }).catch(error => { this.pages.delete(page); said(error.message, true); });
    }
    return null;
  }

  draw() {
    const total = this.total + this.fresh.length;
    this.count.textContent = `${count(total)} rollouts`;
    this.space.style.height = `${total * ROW}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 3);
    const last = Math.min(total, Math.ceil((this.list.scrollTop + this.list.clientHeight) / ROW) + 3);
    const entries = [];
    for (let index = first; index < last; index++) {
      const row = this.row(index);
      const entry = make("div", {class: `entry${index === this.at ? " chosen" : ""}`, role: "option", "aria-selected": index === this.at ? "true" : "false",
        onclick: () => this.open(index, true)}, row ? this.summary(row) : make("div", {class: "soft"}, "…"));
      entry.style.top = `${index * ROW}px`;
      entries.push(entry);
    }
    if (!total) entries.push(make("p", {class: "soft"}, "No rollout matches."));
    this.space.replaceChildren(...entries);
  }

  summary(row) {
    return [make("div", {class: "one"}, (row.prompt || "(no prompt)").replace(/\s+/g, " ")),
      make("div", {class: "one soft"}, (row.reply || "(no reply)").replace(/\s+/g, " ")),
      make("div", {class: "two"}, make("b", {class: row.result}, row.result), [`reward ${number(row.reward, 3) || "none"}`,
        row.advantage == null ? "" : `advantage ${number(row.advantage, 2)}`, `step ${row.step}`, `${count(row.tokens)} tokens`,
        row.cause ? `cause: ${row.cause}` : "", row.live ? "just now" : ""].filter(Boolean).map(part => make("span", {}, part)))];
  }

  async open(index, reading = false) {
    this.at = index;
    this.draw();
    const row = this.row(index);
    this.pending = row ? null : index;  // its page is on the way
    if (!row) return;
    if (reading) this.pane.classList.add("reading");
    if (row.live) {
      this.view = null;
      this.detail.replaceChildren(this.back(), make("h2", {}, `${short(row.environment)}, step ${row.step}, group ${row.group}, sample ${row.sample}`),
        make("p", {class: "soft"}, "Its step still runs. Messages and tokens come when the step is complete."),
        make("div", {class: "message user"}, make("b", {}, "prompt"), row.prompt), make("div", {class: "message assistant"}, make("b", {}, "reply"), row.reply));
      return;
    }
    try {
      this.view = await ask(`${named(this.run.name)}/rollouts/${row.step}/${row.row}`);
      if (this.at === index) this.show();
    } catch (error) { said(error.message, true); }
  }

  back() {
    return make("button", {type: "button", class: "back", onclick: () => this.pane.classList.remove("reading")}, "Back to the list");
  }

  show() {
    const view = this.view;
    if (!view) return;
    const tab = name => make("button", {type: "button", "aria-pressed": name === this.tab ? "true" : "false", onclick: () => { this.tab = name; this.show(); }}, name);
    const body = {conversation: conversation, tokens: rollout => tokensOf(rollout, () => this.show()), scores: scores}[this.tab](view);
    this.detail.replaceChildren(this.back(),
      make("h2", {}, `${short(view.environment)}, step ${view.step}, group ${view.group}, sample ${view.sample}: `, make("span", {class: view.result}, view.result)),
      make("div", {class: "row"}, ["conversation", "tokens", "scores"].map(tab)), body);
  }

  move(by) {
    const total = this.total + this.fresh.length;
    const next = Math.max(0, Math.min(total - 1, this.at + by));
    const top = next * ROW;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
    this.open(next);
  }

  key(event) {
    const page = Math.floor(this.list.clientHeight / ROW);
    const moves = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9};
    if (event.key in moves) { event.preventDefault(); this.move(moves[event.key]); }
    if (event.key === "Enter") { this.pane.classList.add("reading"); this.detail.focus(); }
  }
}

function messages(part) {
  return part.messages.map(m => [
    m.reasoning ? make("div", {class: "message reasoning"}, make("b", {}, "reasoning"), m.reasoning) : null,
    m.content || !(m.calls || []).length ? make("div", {class: `message ${["system", "user", "assistant", "tool"].includes(m.role) ? m.role : ""}`},
      make("b", {}, m.role + (m.name ? " " + m.name : "")), m.content || "(empty)",
      (m.pictures || []).length ? make("div", {class: "pictures"}, m.pictures.map(src => make("img", {src, alt: "picture"}))) : null) : null,
    (m.calls || []).map(call => make("div", {class: "message call"}, make("b", {}, "calls " + call.name), JSON.stringify(call.arguments, null, 1), call.error ? make("div", {class: "wrong"}, call.error) : null))]);
}

function conversation(rollout) {
  return make("div", {}, messages(rollout), rollout.conversations.map(other => [make("h3", {}, `player ${other.player}`), messages(other)]));
}

function scores(rollout) {
  const row = (name, value) => value === null || value === undefined || value === "" ? "" : make("tr", {}, make("th", {}, name), make("td", {}, typeof value === "number" ? number(value) : text(value)));
  return make("div", {class: "scroll"}, make("table", {}, row("reward", rollout.reward), row("outcome", rollout.outcome), row("shaping", rollout.shaping), row("yardstick", rollout.yardstick),
    row("advantage", rollout.advantage), Object.entries(rollout.parts).map(([name, value]) => row(`part ${name}`, value)),
    Object.entries(rollout.metrics).map(([name, value]) => row(`metric ${name}`, value)), row("reason of the score", rollout.why), row("expected", rollout.answer),
    row("ended", rollout.termination + (rollout.reason ? ": " + rollout.reason : "")), row("cause", rollout.cause), row("attempts", rollout.attempts), row("tokens", rollout.sampled),
    row("seconds", rollout.seconds), row("task", rollout.task_id), row("seed", rollout.seed)));
}

// ------------------------------------------------------------------ tokens and branches
function tokensOf(rollout, again) {
  const parts = [["", rollout], ...rollout.conversations.map(other => [other.player, other])];
  return make("div", {}, make("div", {class: "row", role: "group", "aria-label": "Colour by"}, "colour by (m)", Object.keys(COLOURS).map(name => make("button", {
    type: "button", "aria-pressed": name === colour ? "true" : "false", onclick: () => { colour = name; again(); }}, name))),
    make("p", {class: "soft"}, COLOURS[colour]),
    parts.map(([player, part]) => [player ? make("h3", {}, `player ${player}`) : "", tree(rollout.branches[player] || []), colouredTokens(rollout, part, rollout.branches[player] || [])]));
}

function background(token, newest, largest) {
  const [, source, logp, version, advantage] = token;
  if (source !== 2) return "";
  if (colour === "logp") return `rgba(var(--w0), ${Math.min(0.75, -logp / 4.6 * 0.75)})`;
  if (colour === "mask") return "rgba(var(--r0), .3)";
  if (colour === "version") return `rgba(var(--v0), ${Math.min(0.75, 0.12 + (newest - version) * 0.21)})`;
  return advantage ? `rgba(var(${advantage > 0 ? "--r0" : "--w0"}), ${0.15 + Math.abs(advantage) / largest * 0.5})` : "";
}

function colouredTokens(rollout, part, branches) {
  if (!part.tokens || !part.tokens.length) return make("p", {class: "soft"}, "The engine of this rollout returned no tokens.");
  const legend = make("p", {class: "legend"}, "Point at a token for its numbers.");
  const sampled = part.tokens.filter(t => t[1] === 2);
  const newest = Math.max(0, ...sampled.map(t => t[3])), largest = Math.max(1e-9, ...sampled.map(t => Math.abs(t[4] ?? 0)));
  const begins = new Map();
  let at = 0;
  branches.forEach((branch, i) => { if (i) begins.set(at, [i, branch]); at += branch.tokens; });
  const spans = part.tokens.map((token, i) => {
    const [id, source, logp, version, advantage] = token, name = known.sources[source] || String(source), own = source === 2;
    const about = `${JSON.stringify(rollout.texts[id])}, id ${id}, ${name}, ${own ? "in the mask" : "not in the mask"}`
      + (own ? `; log-prob ${number(logp)}, p ${number(Math.exp(logp), 3)}, advantage ${advantage == null ? "none" : number(advantage)}, weights ${version}` : "");
    const span = make("span", {class: own ? "policy" : ["tool", "forced"].includes(name) ? name : "given", title: about, onpointerenter: () => { legend.textContent = about; }}, rollout.texts[id]);
    span.style.backgroundColor = background(token, newest, largest);
    const branch = begins.get(i);
    return [branch ? make("div", {class: "branch", "data-branch": branch[0]}, `branch ${branch[0]}, leaves branch ${branch[1].parent} after ${count(branch[1].fork)} tokens`) : "", span];
  });
  return make("div", {}, make("div", {class: "tokens"}, spans), legend);
}

function tree(branches) {
  if (branches.length < 2) return "";
  const longest = Math.max(...branches.map(b => (b.parent < 0 ? 0 : b.fork) + b.tokens)), scale = 380 / longest, step = 18;
  const picture = drawn("svg", {class: "tree", width: 460, height: branches.length * step + 6, role: "img", "aria-label": `${branches.length} branches`},
    branches.map((branch, i) => {
      const from = (branch.parent < 0 ? 0 : branch.fork) * scale;
      const jump = () => picture.parentElement.querySelector(`[data-branch="${i}"]`)?.scrollIntoView({block: "center"});
      return [branch.parent < 0 ? null : drawn("path", {d: `M${from} ${branch.parent * step + 9}V${i * step + 9}`}),
        drawn("rect", {x: from, y: i * step + 4, width: Math.max(2, branch.tokens * scale), height: 9, rx: 2, tabindex: "0", onclick: jump, onkeydown: event => { if (event.key === "Enter") jump(); }},
          drawn("title", {}, `branch ${i}: ${branch.tokens} tokens of its own`)),
        drawn("text", {x: from + branch.tokens * scale + 6, y: i * step + 13}, `${i}: ${branch.tokens}`)];
    }));
  return picture;
}
