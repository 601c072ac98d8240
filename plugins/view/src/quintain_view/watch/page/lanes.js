// One step of a run as lanes, and what it waited for.
const ROOMS = {1: "run", 2: "episodes", 3: "grading", 4: "engine and replicas"};
const LANE = 15, GAP = 20, MARGIN = 8;
const KINDS = {step: "--s5", rollouts: "--s0", update: "--s3", sync: "--s4", record: "--s5", evaluation: "--s2", episode: "--line", turn: "--s0", replica: "--s4",
  tool: "--s1", score: "--line", grade: "--s2", "engine waits": "--s1", blocked: "--wrong", drain: "--s1", transfer: "--s4", ranks: "--s4", checkpoint: "--s5", paused: "--line"};
// what the chain is drawn with, by the first word of a wait
const WAITS = [["tool", "--s1"], ["sampling", "--s0"], ["grading", "--s2"], ["environment", "--wrong"], ["update", "--s3"], ["ranks", "--s4"], ["weights", "--s4"], ["replica", "--s4"]];

class Lanes {
  constructor(run) {
    this.run = run;
    this.step = null;
    this.pick = make("select", {"aria-label": "Step", onchange: event => this.load(Number(event.target.value))});
    this.body = make("div", {});
    this.pane = make("section", {class: "pane"}, make("div", {class: "filters"}, "step", this.pick, make("span", {class: "soft"}, "[ and ] change it, + and - zoom, arrows move")), this.body);
    this.refresh();
  }

  async refresh() {
    const steps = this.run.timelines, before = this.step;
    if (!steps.length) { this.body.replaceChildren(make("p", {class: "soft"}, "No step has a timeline yet. A run records them unless QUINTAIN_TIMELINE is off.")); return; }
    if (steps.length !== this.pick.options.length || String(steps.at(-1)) !== this.pick.options[this.pick.options.length - 1].value)
      this.pick.replaceChildren(...steps.map(step => make("option", {value: step}, step ? String(step) : "before 1")));
    if (before === null) await this.load(steps.at(-1));
    else this.pick.value = String(before);
  }

  shift(by) {
    const steps = this.run.timelines, at = steps.indexOf(this.step) + by;
    if (at >= 0 && at < steps.length) this.load(steps[at]);
  }

  async load(step) {
    this.step = step;
    this.pick.value = String(step);
    try {
      const data = await ask(`${named(this.run.name)}/timeline/${step}`);
      if (this.step === step) this.show(data);
    } catch (error) { said(error.message, true); }
  }

  show(data) {
    this.data = data;
    this.from = 0;
    this.to = data.seconds || 1;
    const waits = data.waits.slice(0, 12).map(wait => {
      const bar = make("div", {class: "bar"});
      bar.style.width = `${wait.share * 100}%`;
      const where = wait.example ? `${wait.count > 1 ? `${wait.count} times, the longest ${seconds(wait.longest)} ` : ""}in ${short(wait.example.split("/").slice(0, -2).join("/"))}, group ${wait.example.split("/").at(-2)}, sample ${wait.example.split("/").at(-1)}` : "";
      return make("tr", {}, make("td", {}, bar), make("td", {class: "number"}, `${(wait.share * 100).toFixed(1)} %`), make("td", {class: "number"}, seconds(wait.seconds)),
        make("td", {}, wait.label, make("span", {class: "soft"}, ` ${where}`)));
    });
    const resources = data.resources.slice(0, 12).map(r => make("tr", {}, make("td", {}, r.label), make("td", {class: "number"}, r.count), make("td", {class: "number"}, seconds(r.seconds)),
      make("td", {class: "number"}, seconds(r.median)), make("td", {class: "number"}, seconds(r.longest)), make("td", {class: "number"}, r.unit ? `${(r.unit * 1e3).toFixed(2)} ms` : "")));
    this.canvas = make("canvas", {tabindex: "0", role: "img", "aria-label": `Lanes of step ${data.step}; the table above says what it waited for`,
      onpointermove: event => this.point(event), onkeydown: event => this.key(event), onwheel: event => this.wheel(event)});
    this.about = make("p", {class: "legend"}, "Point at a span for its numbers.");
    this.body.replaceChildren(
      make("h2", {}, `Step ${data.step} took ${seconds(data.seconds)}. It waited for`),
      make("div", {class: "scroll"}, make("table", {class: "waits"}, waits)),
      data.total > data.spans.length ? make("p", {class: "soft"}, `The ${count(data.spans.length)} longest of ${count(data.total)} spans are drawn.`) : "",
      this.frame = make("div", {class: "lanes"}, this.canvas), this.about,
      make("details", {}, make("summary", {}, "Tools, rewards and replicas, on the chain or not"), make("div", {class: "scroll"}, make("table", {},
        make("tr", {}, ["", "count", "in sum", "median", "longest", "a token"].map(title => make("th", {}, title))), resources))));
    this.tops = {};
    let top = MARGIN + LANE + GAP;
    for (const room of [1, 2, 3, 4]) {
      const lanes = Math.max(0, ...data.spans.filter(s => s[2] === room).map(s => s[3]));
      if (!lanes) continue;
      this.tops[room] = top + GAP - 6;
      top = this.tops[room] + lanes * LANE + 4;
    }
    this.height = Math.min(16000, top + MARGIN);
    this.draw();
    new ResizeObserver(() => this.draw()).observe(this.frame);
  }

  x(at) { return MARGIN + (at - this.from) / (this.to - this.from) * (this.width - 2 * MARGIN); }

  draw() {
    this.width = this.frame.clientWidth - 2;
    const ratio = devicePixelRatio || 1, style = getComputedStyle(document.documentElement), colours = name => style.getPropertyValue(name).trim();
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colours("--soft");
    pen.fillText("what the step waited for", MARGIN, MARGIN + 8);
    const box = (began, ended, y, name, label) => {
      const left = Math.max(0, this.x(began)), right = Math.min(this.width, this.x(ended));
      if (right < 0 || left > this.width) return;
      pen.fillStyle = colours(name);
      pen.fillRect(left, y, Math.max(0.7, right - left - 0.5), LANE - 3);
      if (label && right - left > 40) {
        pen.save();
        pen.beginPath(); pen.rect(left, y, right - left - 2, LANE); pen.clip();
        pen.fillStyle = name === "--line" ? colours("--text") : colours("--ground");
        pen.fillText(label, left + 3, y + LANE - 5);
        pen.restore();
      }
    };
    for (const [label, began, ended] of this.data.pieces)
      box(began, ended, MARGIN + 14, (WAITS.find(([word]) => label.replace("evaluation: ", "").startsWith(word)) || ["", "--s5"])[1], label);
    for (const [room, top] of Object.entries(this.tops)) { pen.fillStyle = colours("--soft"); pen.fillText(ROOMS[room], MARGIN, top - 4); }
    for (const [kind, name, room, lane, began, ended] of this.data.spans) {
      const inner = ["turn", "tool", "grade", "replica"].includes(kind);
      box(began, ended, this.tops[room] + (lane - 1) * LANE + (inner ? 1 : 0), KINDS[kind] || "--s5", name);
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const at = this.from + (x - MARGIN) / (this.width - 2 * MARGIN) * (this.to - this.from);
    const hit = y < MARGIN + 14 + LANE ? null : this.data.spans.filter(([, , room, lane, began, ended]) => {
      const top = this.tops[room] + (lane - 1) * LANE;
      return y >= top && y < top + LANE && at >= began && at <= ended;
    }).at(-1);
    if (hit) this.about.textContent = `${hit[1]}: ${seconds(hit[5] - hit[4])}, from ${seconds(hit[4])} on. ${Object.entries(hit[6]).map(([k, v]) => `${k.replace(/^(gen_ai|quintain)\./, "")} ${text(v)}`).join(", ")}`;
    const piece = y < MARGIN + 14 + LANE && this.data.pieces.find(([, began, ended]) => at >= began && at <= ended);
    if (piece) this.about.textContent = `the step waited for ${piece[0]}: ${seconds(piece[2] - piece[1])}`;
  }

  zoom(factor, centre = (this.from + this.to) / 2) {
    const span = Math.min(this.data.seconds, Math.max(1e-4, (this.to - this.from) * factor));
    const share = (centre - this.from) / (this.to - this.from);
    this.from = Math.max(0, Math.min(this.data.seconds - span, centre - share * span));
    this.to = this.from + span;
    this.draw();
  }

  pan(share) {
    const span = this.to - this.from;
    this.from = Math.max(0, Math.min(this.data.seconds - span, this.from + share * span));
    this.to = this.from + span;
    this.draw();
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.from + (event.clientX - box.left - MARGIN) / (this.width - 2 * MARGIN) * (this.to - this.from));
  }

  key(event) {
    const keys = {"+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1.7), ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), 0: () => this.zoom(1e9)};
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  }
}
