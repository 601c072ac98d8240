// The runs that are shown, the tabs, the keys, and the clock that asks for news.
const TABS = {curves: null, rollouts: Rollouts, now: Now, timeline: Lanes};
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 4"];
const KEYS = [["1 2 3 4", "curves, rollouts, now, timeline"], ["/", "search the rollouts"], ["j k", "next and last rollout"], ["Enter", "read it"], ["Escape", "back to the list"],
  ["r", "newest rollouts"], ["m", "colour of the tokens"], ["[ ]", "step of the timeline"], ["+ -", "zoom the lanes"], ["t", "light or dark"], ["?", "this list"]];
let known = {runs: [], first: [], sources: [], orders: []};
let tab = "curves";
const shown = [];  // runs
let panes = [];
let rounds = 1;

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  for (const pane of panes) if (pane.draw && pane.data) pane.draw();
}

async function news(run) {
  const last = run.metrics.length ? run.metrics.at(-1).step : -1;
  const state = await ask(`${named(run.name)}?after=${last}`);
  // a resumed run repeats steps
  const metrics = state.step < last ? (await ask(named(run.name))).metrics : [...run.metrics, ...state.metrics];
  Object.assign(run, state, {metrics});
}

async function add(name) {
  if (shown.some(run => run.name === name)) return;
  const place = [0, 1, 2, 3, 4, 5].find(i => !shown.some(run => run.place === i)) ?? 5;
  const run = {name, place, colour: `var(--s${place})`, dash: DASHES[place], metrics: [], alerts: [], timelines: [], steering: [], workers: [], asked: []};
  await news(run);
  shown.push(run);
  render();
}

function render() {
  by("chosen").replaceChildren(...shown.map(run => {
    const chip = make("button", {type: "button", class: "chip", title: "Leave it out", "aria-label": `${run.name}: leave it out`, onclick: () => { shown.splice(shown.indexOf(run), 1); render(); }},
      `${run.name} · ${run.state} ${run.step}/${run.steps}`);
    chip.style.setProperty("--own", run.colour);
    return chip;
  }));
  const others = known.runs.filter(r => !shown.some(run => run.name === r.name));
  by("add").replaceChildren(make("option", {value: ""}, "add a run"), ...others.map(r => make("option", {value: r.name}, `${r.name} · ${r.state} ${r.step}/${r.steps}`)));
  by("add").hidden = !others.length;
  by("tabs").replaceChildren(...Object.keys(TABS).map((name, i) => make("button", {type: "button", role: "tab", "aria-selected": name === tab ? "true" : "false", title: `key ${i + 1}`, onclick: () => go(name)}, name)));
  const main = by("main");
  panes = [];
  if (!shown.length) { main.replaceChildren(make("p", {class: "soft"}, known.runs.length ? "Add a run." : "There are no runs in this folder yet.")); return; }
  if (tab === "curves") { showCurves(main, shown); return; }
  panes = shown.map(run => new TABS[tab](run));
  const grid = make("div", {class: `beside${shown.length > 1 ? " several" : ""}`}, panes.map((pane, i) => {
    if (shown.length > 1) {
      const title = make("h2", {}, shown[i].name);
      title.style.setProperty("--own", shown[i].colour);
      pane.pane.prepend(title);
    }
    return pane.pane;
  }));
  grid.style.setProperty("--runs", String(shown.length));
  main.replaceChildren(grid);
}

function go(name) {
  tab = name;
  render();
  by("main").focus();
}

async function tick() {
  try {
    if (rounds++ % 10 === 0) known = {...known, ...(await ask("runs"))};  // reads every run of the folder
    for (const run of shown) {
      const before = run.metrics.length;
      await news(run);
      run.grown = run.metrics.length !== before;
    }
    if (!by("status").classList.contains("bad")) said("");
    [...by("chosen").children].forEach((chip, i) => { if (shown[i]) chip.textContent = `${shown[i].name} · ${shown[i].state} ${shown[i].step}/${shown[i].steps}`; });
    if (tab === "curves" && shown.some(run => run.grown)) showCurves(by("main"), shown);
    for (const pane of panes) await pane.refresh();
  } catch (error) { said(error.message === "Failed to fetch" ? "quintain watch has ended" : error.message, true); }
  const active = shown.some(run => run.running);
  setTimeout(tick, active ? 1000 : 5000);
}

document.addEventListener("keydown", event => {
  if (event.target.matches("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const pane = panes.find(p => p.pane.contains(document.activeElement)) || panes[0];
  const names = Object.keys(TABS);
  if (names[Number(event.key) - 1]) go(names[Number(event.key) - 1]);
  else if (event.key === "?") by("keys").showModal();
  else if (event.key === "t") theme(!document.documentElement.classList.contains("dark"));
  else if (pane instanceof Rollouts) {
    const keys = {j: () => pane.move(1), k: () => pane.move(-1), r: () => pane.reload(), "/": () => pane.filters.elements.text.focus(), Escape: () => { pane.pane.classList.remove("reading"); pane.list.focus(); },
      m: () => { const all = Object.keys(COLOURS); colour = all[(all.indexOf(colour) + 1) % all.length]; panes.forEach(p => p.show()); }};
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  } else if (pane instanceof Lanes && event.target !== pane.canvas) {
    if (event.key === "[" || event.key === "]") pane.shift(event.key === "]" ? 1 : -1);
    else pane.data && pane.key(event);
  } else if (pane instanceof Lanes && (event.key === "[" || event.key === "]")) pane.shift(event.key === "]" ? 1 : -1);
});

by("add").addEventListener("change", event => { if (event.target.value) add(event.target.value).catch(error => said(error.message, true)); });
by("theme").addEventListener("click", () => theme(!document.documentElement.classList.contains("dark")));
by("help").addEventListener("click", () => by("keys").showModal());
by("keylist").append(...KEYS.map(([keys, what]) => make("tr", {}, make("td", {}, keys.split(" ").map(key => [make("kbd", {}, key), " "])), make("td", {}, what))));
theme(matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", event => theme(event.matches));
(async () => {
  try {
    known = await ask("runs");
    for (const name of known.first) await add(name);
    if (!shown.length) render();
  } catch (error) { said(error.message, true); }
  setTimeout(tick, 1000);
})();
