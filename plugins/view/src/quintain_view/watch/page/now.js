// What runs now: open spans with their ages, the queue, replicas and ranks, alerts, cost, and the orders.
const ORDERS_OF = [["pause", "Begin no further step"], ["resume", "Go on"], ["evaluate", "Evaluate at the end of this step"], ["checkpoint", "Save at the end of this step"], ["stop", "Finish after this step"]];

class Now {
  constructor(run) {
    this.run = run;
    this.body = make("div", {class: "boxes"});
    this.pane = make("section", {class: "pane"}, this.body);
    this.numbers = ["concurrency", "max_staleness", "replicas"].map(name => make("input", {type: "number", min: 1, step: 1, placeholder: name, "aria-label": name, name}));
    this.orders = make("div", {class: "row"}, ORDERS_OF.map(([action, title]) => make("button", {type: "button", title, onclick: () => this.give({action})}, action)),
      this.numbers.map(input => [input, make("button", {type: "button", onclick: () => { if (input.value) this.give({action: input.name, value: Number(input.value)}); }}, "set")]));
    this.refresh();
  }

  async give(order) {
    try {
      await ask(`${named(this.run.name)}/steer`, order);
      said(`${this.run.name}: ${order.action} is on its way`);
    } catch (error) { said(error.message, true); }
  }

  refresh() {
    const run = this.run;
    for (const control of this.orders.querySelectorAll("button, input")) control.disabled = !run.running;
    const steered = run.steering.slice(-6).map(r => make("tr", {}, make("td", {}, `step ${r.step}`), make("td", {}, Object.entries(r.steering).map(([k, v]) => `${k} ${number(v) === "NaN" || typeof v !== "number" ? v : number(v)}`).join(", "))));
    this.body.replaceChildren(this.open(), this.workers(), this.alerts(), this.cost(),
      make("section", {class: "box"}, make("h2", {}, "Steer"), this.orders,
        make("p", {class: "soft"}, run.running ? "What the run does is noted in provenance.jsonl, so that it can be repeated." : "The run does not run."),
        run.asked.length ? make("p", {class: "soft"}, `waits to be taken: ${run.asked.map(o => o.action).join(", ")}`) : "",
        make("table", {}, steered)));
  }

  open() {
    const live = this.run.live, last = this.run.metrics.at(-1) || {};
    const queue = [["complete groups that wait for the learner", last["queue.complete"]], ["groups that run", last["queue.running"]], ["learner idle", last["idle.learner"]],
      ["sampler idle", last["idle.sampler"]], ["staleness, mean", last["staleness.mean"]], ["staleness, largest", last["staleness.max"]]].filter(([, v]) => v !== undefined && v !== null);
    const queued = queue.length ? [make("h3", {}, "Queue at the last step"), make("table", {}, queue.map(([name, v]) => make("tr", {}, make("th", {}, name), make("td", {class: "number"}, number(v)))))] : "";
    if (!live) return make("section", {class: "box"}, make("h2", {}, `${this.run.state}, step ${this.run.step} of ${this.run.steps}`), queued);
    const kinds = new Map();
    for (const span of live.open) kinds.set(span.kind, [...(kinds.get(span.kind) || []), span]);
    const longest = Math.max(0.01, ...live.open.map(span => span.seconds));
    const rows = live.open.filter(span => ["tool", "turn", "replica", "grade", "episode", "ranks"].includes(span.kind)).slice(0, 14).map(span => {
      const bar = make("i", {});
      bar.style.width = `${Math.max(2, span.seconds / longest * 120)}px`;
      const what = {tool: span.tool, grade: span.reward, episode: `${short(span.environment || "")} ${span.group}/${span.sample}`, replica: span.replica, turn: span.engine}[span.kind] ?? "";
      return make("tr", {}, make("td", {}, bar, seconds(span.seconds)), make("td", {}, `${span.kind} ${what}`));
    });
    const ages = (live.queue || []).map(([, age]) => age).sort((a, b) => b - a);
    const waiting = ages.length ? make("p", {}, `${count(ages.length)} complete groups wait for the learner, the oldest for ${seconds(ages[0])}, half of them for ${seconds(ages[ages.length >> 1])} or more`) : "";
    const missing = this.run.metrics.length ? "" : make("p", {class: "soft"}, "No step is complete yet.");
    return make("section", {class: "box"}, make("h2", {}, `${this.run.state}, step ${live.step} of ${this.run.steps}`), missing,
      make("p", {}, [...kinds].map(([kind, spans]) => `${spans.length} × ${kind}`).join(", ") || "between two steps", `; ${count(live.finished)} rollouts of the step are done`), waiting,
      rows.length ? make("h3", {}, "Open, by age") : "", make("table", {class: "ages"}, rows), queued);
  }

  workers() {
    if (!this.run.workers.length) return "";
    return make("section", {class: "box"}, make("h2", {}, "Replicas and ranks"), make("div", {class: "scroll"}, make("table", {},
      make("tr", {}, ["", "state", "calls", "busy", "a token", "new weights"].map(title => make("th", {}, title))),
      this.run.workers.map(w => make("tr", {}, make("td", {}, w.name), make("td", {class: w.state === "works" ? "right" : "wrong"}, w.state), make("td", {class: "number"}, w.turns),
        make("td", {class: "number"}, seconds(w.seconds)), make("td", {class: "number"}, w.tokens ? `${(w.seconds / w.tokens * 1e3).toFixed(2)} ms` : ""),
        make("td", {class: "number"}, w.transfer === undefined ? "" : seconds(w.transfer)))))),
      make("p", {class: "soft"}, `As in step ${this.run.workers[0].step}.`));
  }

  alerts() {
    const alerts = [...this.run.alerts].reverse();
    return make("section", {class: "box"}, make("h2", {}, "Alerts"), alerts.length ? alerts.map(alert => make("div", {class: `alert${alert.on ? " on" : ""}`},
      make("b", {}, alert.name), alert.on ? `, since step ${alert.first}` : `, steps ${alert.first} to ${alert.last}, over`,
      make("div", {class: "soft"}, alert.metrics.map(name => {
        const record = this.run.metrics.find(r => r.step === alert.first) || {};
        return `${name} ${record[name] === undefined ? "" : number(record[name])}`;
      }).join(", "), ` at step ${alert.first}`), make("div", {}, alert.message))) : make("p", {class: "soft"}, "None so far."));
  }

  cost() {
    const cost = this.run.cost, phases = Object.entries(cost.seconds).sort((a, b) => b[1] - a[1]);
    return make("section", {class: "box"}, make("h2", {}, "Cost"), make("p", {}, `${seconds(cost.total)}, ${count(cost.tokens)} sampled tokens`,
      cost.money === undefined ? "" : `, ${cost.money.toFixed(2)} at ${cost.price} an hour`),
      make("table", {}, phases.map(([phase, s]) => make("tr", {}, make("th", {}, phase), make("td", {class: "number"}, seconds(s)), make("td", {class: "number"}, `${(s / (cost.total || 1) * 100).toFixed(1)} %`)))),
      make("p", {class: "soft"}, this.run.machine.device ? `on ${this.run.machine.device}` : ""));
  }
}
