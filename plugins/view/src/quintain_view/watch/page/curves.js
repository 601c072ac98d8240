// Curves of all runs that are shown, in one panel for each metric, with their intervals.
const CURVES = [
  {name: "held_out.accuracy", title: "held-out accuracy", low: "held_out.low", high: "held_out.high", dots: true, share: true},
  {name: "success", title: "right in training", share: true},
  {name: "reward.mean", title: "reward", spread: "reward.spread"},
  {name: "length.mean", title: "length (tokens)"},
  {name: "entropy", title: "entropy (nats per token)"},
  {name: "grad_norm", title: "norm of the gradient"},
];
const WIDE = 420, HIGH = 190, LEFT = 46, BOTTOM = 22, TOP = 8;

function ticks(low, high) {
  const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) found.push(Number(at.toPrecision(10)));
  return found;
}

// 95 % interval of the mean of a step. Rollouts of one task are alike, so tasks count and not rollouts:
// the spread of their means is at most that of the rollouts, and the interval at most this wide.
function bounds(curve, record) {
  const value = record[curve.name];
  if (curve.low && record[curve.low] != null && record[curve.high] != null) return [record[curve.low], record[curve.high]];
  const groups = record.groups, z = 1.96;
  if (curve.name === "success" && groups) {  // Wilson 1927
    const centre = (value + z * z / (2 * groups)) / (1 + z * z / groups);
    const half = z / (1 + z * z / groups) * Math.sqrt(value * (1 - value) / groups + z * z / (4 * groups * groups));
    return [centre - half, centre + half];
  }
  const spread = record[curve.spread];
  if (spread == null || !groups) return [value, value];
  const half = z * spread / Math.sqrt(groups);
  return [value - half, value + half];
}

function chart(curve, runs) {
  const series = runs.map(run => ({run, points: run.metrics.filter(record => Number.isFinite(record[curve.name])).map(record => {
    const [low, high] = bounds(curve, record);
    return {step: record.step, value: record[curve.name], low, high};
  })})).filter(one => one.points.length);
  if (!series.length) return null;
  const all = series.flatMap(one => one.points);
  const first = Math.min(...all.map(p => p.step)), last = Math.max(...all.map(p => p.step), first + 1);
  let low = Math.min(...all.map(p => p.low)), high = Math.max(...all.map(p => p.high));
  if (curve.share) [low, high] = [Math.min(0, low), Math.max(1, high)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const x = step => LEFT + (step - first) / (last - first) * (WIDE - LEFT - 8);
  const y = value => TOP + (high - value) / (high - low) * (HIGH - TOP - BOTTOM);
  const path = points => points.map((p, i) => `${i ? "L" : "M"}${x(p.step).toFixed(1)} ${y(p.value).toFixed(1)}`).join("");
  const about = make("div", {class: "about"});
  const picture = drawn("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: "0",
    "aria-label": `${curve.title}: ${series.map(s => `${s.run.name} ${number(s.points.at(-1).value)} at step ${s.points.at(-1).step}`).join(", ")}`},
    ticks(low, high).map(value => [
      drawn("line", {class: "grid", x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value)}),
      drawn("text", {x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, curve.share ? `${Math.round(value * 100)} %` : number(value, 3))]),
    ticks(first, last).filter(Number.isInteger).map(step => drawn("text", {x: x(step), y: HIGH - 6, "text-anchor": "middle"}, String(step))),
    runs.flatMap(run => run.alerts.filter(alert => alert.metrics.includes(curve.name)).map(alert =>
      drawn("rect", {class: "alarm", x: x(alert.first) - 2, width: Math.max(4, x(alert.last) - x(alert.first) + 4), y: TOP, height: HIGH - TOP - BOTTOM},
        drawn("title", {}, `${run.name}: ${alert.name}, steps ${alert.first} to ${alert.last}`)))),
    series.map(({run, points}) => {
      const band = points.some(p => p.high > p.low) && points.length > 1;
      const outline = points.map((p, i) => `${i ? "L" : "M"}${x(p.step)} ${y(p.high)}`).join("")
        + [...points].reverse().map(p => `L${x(p.step)} ${y(p.low)}`).join("") + "Z";
      return [
        band ? drawn("path", {class: "band", d: outline, fill: run.colour}) : null,
        drawn("path", {class: "line", d: path(points), stroke: run.colour, "stroke-dasharray": run.dash}),
        curve.dots || points.length === 1 ? points.map(p => drawn("circle", {cx: x(p.step), cy: y(p.value), r: 3, fill: run.colour})) : null];
    }));
  const point = at => {
    const step = first + (at - LEFT) / (WIDE - LEFT - 8) * (last - first);
    about.textContent = series.map(({run, points}) => {
      const nearest = points.reduce((a, b) => Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a);
      const interval = nearest.high > nearest.low ? ` (${number(nearest.low, 3)} to ${number(nearest.high, 3)})` : "";
      return `${runs.length > 1 ? run.name + ", " : ""}step ${nearest.step}: ${number(nearest.value)}${interval}`;
    }).join(" · ");
  };
  picture.addEventListener("pointermove", event => {
    const box = picture.getBoundingClientRect();
    point((event.clientX - box.left) / box.width * WIDE);
  });
  point(WIDE);
  return make("figure", {class: "chart", style: null}, make("h2", {}, curve.title), picture, about);
}

function allMetrics(runs) {
  const names = new Set(runs.flatMap(run => run.metrics.flatMap(record => Object.keys(record).filter(name => typeof record[name] === "number"))));
  return [...names].filter(name => name !== "step").sort();
}

const extra = [];  // metrics that the reader has added
function showCurves(main, runs) {
  const names = allMetrics(runs);
  const more = make("select", {"aria-label": "Add a metric", onchange: event => { extra.push(event.target.value); showCurves(main, runs); }},
    make("option", {value: ""}, "add a metric"), names.map(name => make("option", {value: name}, name)));
  const curves = [...CURVES, ...extra.map(name => ({name, title: name}))];
  const charts = curves.map(curve => chart(curve, runs)).filter(Boolean);
  main.replaceChildren(
    make("p", {class: "row"}, more, extra.length ? make("button", {type: "button", onclick: () => { extra.length = 0; showCurves(main, runs); }}, "only the first six") : "",
      make("span", {class: "soft"}, "Shades are 95 % intervals: of held-out accuracy over its tasks, of a step over its tasks, at most this wide. Red marks the steps of an alert.")),
    charts.length ? make("div", {class: "charts"}, charts) : make("p", {class: "soft"}, "No step is complete yet."));
}
