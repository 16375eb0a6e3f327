
"use strict";
(() => {
  // The numbers are those of bertlab.studies.explore.page_data. Text from them is only ever set as text.
  const data = JSON.parse(document.getElementById("data").textContent);
  const { measures, series, runs, axes, arrays } = data;
  const variants = series.slice(0, data.variants);
  const byId = (id) => document.getElementById(id);
  const chart = byId("chart"), svg = chart.querySelector("svg"), readout = byId("readout");
  const costs = new Map(); // what a cost is called on the horizontal axis ("tokens", "transfer/flops") -> its measure
  for (const of of measures) if (of.group === "Cost") costs.set(of.id.replace(/^result\/(pretrain\/)?/, ""), of);
  const SPREADS = [["sd", "standard deviation"], ["interval", "95 % interval of the mean"], ["none", "none"]];
  const MOST_ROWS = 200; // of the table at first
  const MOST_MARKED = 40; // lines that have markers
  const REACH = 45; // pixels from the pointer to the number that it reads out
  const known = (value) => value !== null && value !== undefined;

  // ---- The state, and the fragment of the address that holds it.

  const FLAGS = ["seeds", "logX", "logY", "down"], TEXTS = ["search", "columns", "sort"];
  const fresh = () => ({
    y: data.first, x: "", spread: "sd", zoom: null, rows: "variants", every: false, seeds: false, logX: false, logY: false, down: false,
    search: "", columns: "", sort: "", hidden: new Set(), labels: axes.map(() => new Set()), // hidden variants and labels
  });
  let state = fresh();
  const measure = () => measures[state.y];
  const inRows = () => measure().kind === "result" && state.x === "variant"; // a row for each variant, numbers across

  function horizontal(of) {
    if (of.labels) return [["labels", "labelled examples"]];
    if (of.kind === "curve") return data.x.map(({ id, label }) => [id, label]);
    return [["variant", "variants"], ...[...costs].map(([id, cost]) => [id, cost.label])];
  }

  function setMeasure(index) {
    const before = measure(), there = horizontal(measures[index]).map(([id]) => id);
    state.y = index;
    state.zoom = null;
    if (before.kind === measure().kind && there.includes(state.x)) return;
    state.x = there.includes("variant") ? "variant" : there[1] ?? there[0];
  }

  function readFragment() {
    const given = new URLSearchParams(location.hash.slice(1));
    state = fresh();
    const asked = measures.findIndex((of) => of.id === given.get("y"));
    if (asked >= 0) state.y = asked;
    state.x = given.get("x") ?? "";
    setMeasure(state.y);
    for (const name of FLAGS) state[name] = given.has(name);
    for (const name of TEXTS) state[name] = given.get(name) ?? "";
    if (SPREADS.some(([id]) => id === given.get("spread"))) state.spread = given.get("spread");
    if (given.get("rows") === "runs") state.rows = "runs";
    const off = new Set(given.getAll("off")), only = given.has("only") && new Set(given.getAll("only"));
    variants.forEach(({ name }, i) => (only ? !only.has(name) : off.has(name)) && state.hidden.add(i));
    axes.forEach((axis, i) => {
      const without = new Set(given.getAll(`without:${axis.name}`));
      axis.labels.forEach((label, j) => without.has(label) && state.labels[i].add(j));
    });
    const zoom = (given.get("zoom") ?? "").split(",").map(Number);
    if (zoom.length === 4 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] && zoom[2] < zoom[3]) state.zoom = zoom;
  }

  function writeFragment() {
    const said = new URLSearchParams({ y: measure().id, x: state.x });
    if (state.spread !== "sd") said.set("spread", state.spread);
    if (state.rows !== "variants") said.set("rows", state.rows);
    for (const name of FLAGS) if (state[name]) said.set(name, "1");
    for (const name of TEXTS) if (state[name]) said.set(name, state[name]);
    const most = state.hidden.size > variants.length / 2;
    variants.forEach(({ name }, i) => state.hidden.has(i) !== most && said.append(most ? "only" : "off", name));
    if (state.hidden.size === variants.length) said.append("only", "");
    axes.forEach((axis, i) => state.labels[i].forEach((j) => said.append(`without:${axis.name}`, axis.labels[j])));
    if (state.zoom) said.set("zoom", state.zoom.map((of) => Number(of.toPrecision(7))).join(","));
    history.replaceState(null, "", `#${said}`);
  }

  // ---- What is shown.

  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text, wanted) => wanted.every((word) => text.toLowerCase().includes(word));
  let listed = new Set(), visible = new Set(); // variants that search and labels leave; those of them that are checked

  function choose() {
    const wanted = words(state.search), allowed = new Set();
    for (const run of runs) {
      if (axes.every((axis, i) => axis.seed || !state.labels[i].has(run.labels[i]))) allowed.add(run.variant);
    }
    listed = new Set([...variants.keys()].filter((i) => allowed.has(i) && matches(variants[i].name, wanted)));
    visible = new Set([...listed].filter((i) => !state.hidden.has(i)));
  }

  const seedShown = (run) => axes.every((axis, i) => !axis.seed || !state.labels[i].has(run.labels[i]));
  const isVisible = (index) => series[index].variants.some((i) => visible.has(i));

  function seedName(run) {
    const said = axes.map((axis, i) => (axis.seed ? `${axis.name} ${axis.labels[run.labels[i]]}` : "")).filter(Boolean);
    return said.join(", ") || run.name;
  }

  // What is drawn of a series: its means as points {x, y, sd, low, high}, and its single seeds as points {x, y}.
  function marks() {
    const of = measure();
    if (of.kind === "curve") {
      const axis = of.labels ? 0 : data.x.findIndex(({ id }) => id === state.x);
      const points = (place, ys, more) => ys.map((y, i) => ({ x: arrays[place[axis]][i], y, ...more(i) }));
      return of.curves.filter((curve) => isVisible(curve.series)).map((curve) => ({
        index: curve.series,
        points: points(curve.x, curve.mean, (i) => ({ sd: curve.sd?.[i] ?? null, low: curve.low[i], high: curve.high[i] })),
        singles: !state.seeds ? [] : curve.seeds.filter((one) => seedShown(runs[one.run])).map((one) => (
          { name: seedName(runs[one.run]), points: points(one.x, one.y, () => ({})) })),
      }));
    }
    const cost = costs.get(state.x), measured = [...visible].filter((i) => known(of.mean[i]));
    const found = new Map(measured.map((i, row) => {
      const point = { y: of.mean[i], sd: of.sd[i], low: of.low[i], high: of.high[i], seeds: of.seeds[i] };
      return [i, { index: i, row, points: [{ x: cost ? cost.mean[i] : row, ...point }], singles: [] }];
    }));
    if (state.seeds) runs.forEach((run, i) => {
      const mark = found.get(run.variant);
      if (!mark || run.status !== "finished" || !seedShown(run)) return;
      mark.singles.push({ name: seedName(run), points: [{ x: cost ? cost.values[i] : mark.row, y: of.values[i] }] });
    });
    return [...found.values()];
  }

  function ends(point) {
    if (state.spread === "none" || !("low" in point)) return null;
    if (state.spread === "sd" && known(point.sd)) return [point.y - point.sd, point.y + point.sd];
    return known(point.low) ? [point.low, point.high] : null;
  }

  // ---- Numbers as text.

  const trimmed = (value) => String(Number(value.toPrecision(4)));
  const POWERS = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];
  function count(value) {
    const [power, prefix] = POWERS.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
    return prefix ? `${trimmed(value / (prefix === "k" ? 1e3 : power))} ${prefix}` : trimmed(value);
  }
  const DURATIONS = [[1, "s", 120], [60, "min", 7200], [3600, "h", 259200], [86400, "days", Infinity]];
  const duration = (value) => DURATIONS.find(([, , most]) => Math.abs(value) < most);
  function number(value, { unit, factor, digits }) {
    if (!known(value)) return "–";
    if (unit === "count") return count(value);
    if (unit === "seconds") return `${trimmed(value / duration(value)[0])} ${duration(value)[1]}`;
    const shown = value * factor, text = shown.toFixed(digits);
    if (Math.abs(shown) >= 1000) return String(Number(shown.toPrecision(6)));
    return shown && !Number(text) ? shown.toPrecision(2) : text;
  }

  // How the numbers of an axis are printed, and by how much they are multiplied before round ones are sought.
  function printing(unit, factor, label, largest) {
    if (unit === "count") return { factor, label, text: count };
    if (unit !== "seconds") return { factor, label, text: (value) => String(Number(value.toPrecision(6))) };
    const [length, name] = duration(largest);
    return { factor: 1 / length, label: `${label} (${name})`, text: trimmed };
  }

  // A function from numbers to pixels, and `back`.
  function scale([low, high], log, from, to) {
    const f = log ? Math.log10 : (value) => value, start = f(low), length = f(high) - start || 1;
    const of = (value) => from + ((f(value) - start) / length) * (to - from);
    of.back = (pixel) => {
      const at = start + ((pixel - from) / (to - from)) * length;
      return log ? 10 ** at : at;
    };
    return Object.assign(of, { low, high, log });
  }

  function ticks(of, factor, most) {
    const low = of.low * factor, high = of.high * factor, found = [];
    if (of.log) {
      const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / most));
      const parts = decades > 4 ? [1] : decades > 1.6 ? [1, 3] : [1, 2, 3, 5];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        if (power % every === 0) found.push(...parts.map((part) => part * 10 ** power));
      }
      const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
      if (inside.length > 2) return inside.map((tick) => tick / factor);
      found.length = 0;
    }
    const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough * 0.999);
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push((i * step) / factor);
    return found;
  }

  // ---- Elements.

  function make(name, attributes = {}, text) {
    const element = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }
  function html(name, text) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    return element;
  }
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
  const MARKERS = { // as matplotlib calls them
    o: "M-3.5,0a3.5,3.5 0 1 0 7,0a3.5,3.5 0 1 0 -7,0", s: "M-3.2,-3.2h6.4v6.4h-6.4z", "^": "M0,-4.2L4,3H-4z",
    v: "M0,4.2L4,-3H-4z", D: "M0,-4.5L4.5,0L0,4.5L-4.5,0z",
    P: "M-1.4,-4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z", x: "M-3.5,-3.5L3.5,3.5M-3.5,3.5L3.5,-3.5",
    "+": "M-4.5,0H4.5M0,-4.5V4.5", 1: "M0,0V4.5M0,0L-4,-3M0,0L4,-3", 2: "M0,0V-4.5M0,0L-4,3M0,0L4,3",
  };
  function marker({ marker: name, colour }, [x, y]) {
    const transform = `translate(${x.toFixed(1)},${y.toFixed(1)})`, fill = /[x+12]/.test(name) ? "none" : colour;
    const look = { fill, stroke: colour, "stroke-width": 1.5, class: "marker" };
    return make("path", { d: MARKERS[name] ?? MARKERS.o, transform, ...look });
  }
  function line(d, { colour, dashes }, kind) {
    const pattern = dashes.length ? { "stroke-dasharray": dashes.map((part) => part * 2).join(" ") } : {};
    return make("path", { d, class: kind, stroke: colour, fill: "none", ...pattern });
  }

  // ---- Drawing.

  let hits = [], at = -1; // the points that can be read out, and the one that is
  let groups = new Map(); // series -> its element
  let frame = null; // the scales and edges of the plot

  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return [low, high];
  }

  // The vertical limits. As in the report, bands may leave the plot, so that those of few seeds do not flatten the means.
  function verticalLimits(values, bands, log) {
    let [low, high] = extent(values);
    const [lowest, highest] = extent(bands.filter((end) => !log || end > 0)), room = high - low || Math.abs(low) || 1;
    if (lowest < low) low = Math.max(lowest, log ? low / 10 : low - room);
    if (highest > high) high = Math.min(highest, high + room);
    const pad = log ? Math.max(1.01, (high / low) ** 0.05) : (high - low || Math.abs(low) || 1) * 0.06;
    return log ? [low / pad, high * pad] : [low - pad, high + pad];
  }

  function horizontalLimits(of, values, log) {
    if (of.labels) return [-0.2, of.labels.length - 0.8];
    let [low, high] = extent(values);
    if (log) return [low / 1.04, high * 1.04];
    if (of.kind === "curve") return [0, (high || 1) * 1.04];
    const space = (high - low || high || 1) * 0.04;
    return [low - space, high + space];
  }

  function draw() {
    const of = measure(), rows = inRows(), shown = marks(), [, nameX] = horizontal(of).find(([id]) => id === state.x);
    const width = Math.max(260, chart.clientWidth), narrow = width < 560;
    const ofRows = 66 + Math.max(1, shown.length) * (narrow ? 40 : 27);
    const height = rows ? ofRows : Math.round(Math.max(300, Math.min(500, width * 0.62)));
    const logX = !rows && !of.labels && state.logX, logY = rows ? state.logX : state.logY;
    hide();
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    [hits, at, groups, frame] = [[], -1, new Map(), null];
    byId("heading").textContent = rows ? of.label : `${of.label} against ${nameX}`;
    chart.setAttribute("aria-label", `Chart of ${byId("heading").textContent}, ${shown.length} lines`);

    const usable = (point) => known(point.x) && known(point.y) && (!logX || point.x > 0) && (!logY || point.y > 0);
    for (const mark of shown) {
      // A variant without pretraining is a level to compare with, as in the report.
      mark.level = of.kind === "curve" && !of.labels && mark.points.every((point) => point.x === 0);
      const there = (points) => points.filter((point) => usable(mark.level ? { ...point, x: 1 } : point));
      mark.dropped = there(mark.points).length < mark.points.length;
      mark.points = there(mark.points);
      mark.all = [...mark.points, ...mark.singles.flatMap((one) => (one.points = there(one.points)))];
    }
    note(of, shown);
    const moving = shown.filter((mark) => !mark.level).flatMap((mark) => mark.all);
    if (!moving.length) {
      const why = shown.length ? "no number is above 0" : "no chosen variant has this measure";
      const text = `Nothing to show: ${why}.`;
      svg.append(make("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "soft" }, text));
      return;
    }
    const bands = shown.flatMap((mark) => mark.points.flatMap((point) => ends(point) ?? []));
    let limitsY = verticalLimits(shown.flatMap((mark) => mark.all.map((point) => point.y)), bands, logY);
    let limitsX = rows ? [-0.5, shown.length - 0.5] : horizontalLimits(of, moving.map((point) => point.x), logX);
    const unitX = of.labels || rows ? "" : /(^|\/)seconds$/.test(state.x) ? "seconds" : "count";
    const printY = printing(of.unit, of.factor, of.label, limitsY[1]), printX = printing(unitX, 1, nameX, limitsX[1]);
    if (state.zoom && rows) limitsY = state.zoom.slice(0, 2);
    else if (state.zoom) [limitsX, limitsY] = [state.zoom.slice(0, 2), state.zoom.slice(2)];

    const names = Math.min(width * 0.36, 24 + 6.6 * Math.max(...shown.map((mark) => series[mark.index].name.length)));
    const left = !rows ? 58 : narrow ? 12 : names, right = width - 14, top = rows ? 8 : 12, bottom = height - 46;
    const value = rows ? scale(limitsY, logY, left, right) : scale(limitsY, logY, bottom, top);
    const effort = rows ? scale(limitsX, false, top, bottom) : scale(limitsX, logX, left, right);
    const spot = (x, y) => (rows ? [value(y), effort(x) + (narrow ? 8 : 0)] : [effort(x), value(y)]);
    frame = { rows, narrow, value, effort, spot, left, right, top, bottom, width, height, nameX, unitX };
    if (rows) {
      drawAcross(value, printY, null);
      for (const mark of shown) drawName(mark);
    } else {
      drawAcross(effort, printX, of.labels);
      drawUpright(value, printY);
    }
    const clip = svg.appendChild(make("clipPath", { id: "inside" }));
    clip.append(make("rect", { x: left - 5, y: top - 5, width: right - left + 10, height: bottom - top + 10 }));
    const layer = svg.appendChild(make("g", { "clip-path": "url(#inside)" }));
    for (const mark of shown) {
      const group = layer.appendChild(make("g", { class: "mark" }));
      groups.set(mark.index, group);
      if (of.kind === "curve") drawCurve(group, mark, shown.length <= MOST_MARKED);
      else drawResult(group, mark);
    }
  }

  function drawAcross(of, print, labels) {
    const { left, right, top, bottom, width, height } = frame, most = Math.max(2, Math.floor((right - left) / 80));
    const places = labels ? [...labels.keys()].filter((i) => i >= of.low && i <= of.high) : ticks(of, print.factor, most);
    let free = -Infinity;
    for (const tick of places) {
      const x = of(tick), text = labels ? labels[tick] : print.text(tick * print.factor);
      svg.append(make("line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" }));
      if (x < free) continue;
      free = x + text.length * 6.6 + 8;
      const middle = Math.min(x, width - text.length * 3.4);
      svg.append(make("text", { x: middle, y: bottom + 17, "text-anchor": "middle", class: "tick" }, text));
    }
    svg.append(make("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "edge" }));
    svg.append(make("text", { x: (left + right) / 2, y: height - 7, "text-anchor": "middle", class: "soft" }, print.label));
  }

  function drawUpright(of, print) {
    const { left, right, top, bottom } = frame;
    for (const tick of ticks(of, print.factor, Math.max(3, Math.floor((bottom - top) / 55)))) {
      const y = of(tick), text = print.text(tick * print.factor);
      svg.append(make("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }));
      svg.append(make("text", { x: left - 7, y: y + 4, "text-anchor": "end", class: "tick" }, text));
    }
    svg.append(make("line", { x1: left, x2: left, y1: top, y2: bottom, class: "edge" }));
  }

  function drawName(mark) {
    const { left, right, narrow, effort } = frame, { name } = series[mark.index], y = effort(mark.row);
    const fitting = Math.floor((narrow ? right - left : left - 24) / 6.3);
    const place = narrow ? { x: left, y: y - 5 } : { x: left - 12, y: y + 4, "text-anchor": "end" };
    const label = svg.appendChild(make("text", place, name.length > fitting ? `${name.slice(0, fitting - 1)}…` : name));
    label.append(make("title", {}, name));
  }

  function hit(mark, point, single, [px, py]) {
    const { left, right, top, bottom } = frame;
    if (px >= left - 6 && px <= right + 6 && py >= top - 6 && py <= bottom + 6) hits.push({ mark, point, single, px, py });
  }

  const floor = (value) => (frame.value.log && value <= 0 ? frame.value.low / 1e3 : value); // the end of a bar on a log axis

  function drawCurve(group, mark, marked) {
    const { spot, value, left, right } = frame, look = series[mark.index];
    if (mark.level) {
      for (const point of mark.points) {
        group.append(line(`M${left},${value(point.y)}H${right}`, look, "line"));
        hit(mark, point, "", [right, value(point.y)]);
      }
      return;
    }
    const edges = mark.points.map((point) => [point.x, ends(point)]).filter(([, both]) => both);
    if (edges.length > 1) {
      const upper = edges.map(([x, both]) => spot(x, both[1])), lower = edges.map(([x, both]) => spot(x, floor(both[0])));
      group.append(make("path", { d: `${path([...upper, ...lower.reverse()])}z`, class: "band", fill: look.colour }));
    }
    const drawn = (points, kind) => group.append(line(path(points.map((point) => spot(point.x, point.y))), look, kind));
    for (const one of mark.singles) drawn(one.points, "single");
    drawn(mark.points, "line");
    const every = Math.max(1, Math.floor(mark.points.length / 8));
    mark.points.forEach((point, i) => {
      if (i % every === 0 && (marked || mark.points.length === 1)) group.append(marker(look, spot(point.x, point.y)));
      hit(mark, point, "", spot(point.x, point.y));
    });
    for (const one of mark.singles) for (const point of one.points) hit(mark, point, one.name, spot(point.x, point.y));
  }

  function drawResult(group, mark) {
    const { spot } = frame, look = series[mark.index];
    for (const point of mark.points) {
      const both = ends(point);
      if (both) group.append(line(path(both.map((end) => spot(point.x, floor(end)))), { ...look, dashes: [] }, "line"));
      group.append(marker(look, spot(point.x, point.y)));
      hit(mark, point, "", spot(point.x, point.y));
    }
    for (const one of mark.singles) for (const point of one.points) {
      const [cx, cy] = spot(point.x, point.y);
      group.append(make("circle", { cx, cy, r: 2.6, class: "dot", stroke: look.colour }));
      hit(mark, point, one.name, [cx, cy]);
    }
  }

  function note(of, shown) {
    const points = shown.flatMap((mark) => mark.points), said = [], { left_out: out } = data;
    const [means, spread, seeds] = of.kind === "curve"
      ? ["Lines are means over seeds", "bands", "Thin lines"] : ["Marks are means over seeds", "bars", "Small circles"];
    const bySd = state.spread === "sd" && points.some((point) => known(point.sd));
    const what = bySd ? "one standard deviation between seeds" : "the 95 % interval of the mean (Student's)";
    if (points.some(ends)) said.push(`${means}, ${spread} ${what}.`);
    if (state.seeds) said.push(`${seeds} are single seeds.`);
    const ofLosses = of.kind === "curve" && of.label.includes("loss");
    if (ofLosses) said.push("Losses of different objectives do not compare, nor those of one objective with another mask rate, tokenizer or format.");
    if (shown.some((mark) => mark.dropped)) said.push("What is at or below 0 has no place on a log axis.");
    if (out.length) {
      const more = out.length > 4 ? ` and ${out.length - 4} more` : "";
      said.push(`This page would be too large with ${out.slice(0, 4).join("; ")}${more}; report/*.csv has them.`);
    }
    byId("note").textContent = said.join(" ");
  }

  // ---- Reading out.

  function hide() {
    readout.hidden = true;
    svg.classList.remove("dim");
    svg.querySelector(".ring")?.remove();
    for (const group of groups.values()) group.classList.remove("on");
  }

  function highlight(index) {
    svg.classList.add("dim");
    groups.get(index)?.classList.add("on");
  }

  function show({ mark, point, single, px, py }) {
    const of = measure(), { nameX, unitX } = frame, lines = [];
    hide();
    highlight(mark.index);
    svg.append(make("circle", { cx: px, cy: py, r: 7, class: "ring" }));
    lines.push(`${number(point.y, of)}${known(point.sd) ? ` ± ${number(point.sd, of)}` : ""} · ${of.label}`);
    if (known(point.low)) lines.push(`95 % interval ${number(point.low, of)} to ${number(point.high, of)}`);
    if (of.labels) lines.push(`${of.labels[point.x]} labelled examples`);
    else if (state.x !== "variant") lines.push(`at ${number(point.x, { unit: unitX })} · ${nameX}`);
    if (point.seeds) lines.push(`${point.seeds} ${point.seeds === 1 ? "seed" : "seeds"}`);
    const title = html("strong", series[mark.index].name + (single && `, ${single}`));
    readout.replaceChildren(title, ...lines.map((text) => html("div", text)));
    readout.hidden = false;
    const before = px + 14 + readout.offsetWidth > chart.clientWidth;
    readout.style.left = `${Math.max(0, before ? px - 14 - readout.offsetWidth : px + 14)}px`;
    readout.style.top = `${Math.max(0, py - readout.offsetHeight - 10)}px`;
  }

  function showNearest([x, y]) {
    let least = REACH ** 2;
    at = -1;
    hits.forEach(({ px, py }, i) => {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [at, least] = [i, distance];
    });
    if (at < 0) hide();
    else show(hits[at]);
  }

  // The next point of the line that is read out, and the nearest point of the next line.
  function nextPoint(step) {
    const next = hits[at + step];
    return at < 0 ? 0 : next?.mark === hits[at].mark && next.single === hits[at].single ? at + step : at;
  }
  function nextLine(step) {
    const lines = [...new Set(hits.map((one) => one.mark))];
    const now = at < 0 ? (step > 0 ? -1 : 0) : lines.indexOf(hits[at].mark);
    const next = lines[(now + step + lines.length) % lines.length], x = at < 0 ? Infinity : hits[at].px;
    let best = -1;
    hits.forEach((one, i) => {
      if (one.mark !== next || one.single) return;
      if (best < 0 || Math.abs(one.px - x) < Math.abs(hits[best].px - x)) best = i;
    });
    return best < 0 ? at : best;
  }

  // ---- Zooming.

  function zoomTo([x1, x2, y1, y2]) {
    const { rows, value, effort } = frame;
    const across = rows ? value : effort, upright = rows ? [0, 1] : [value.back(y2), value.back(y1)];
    state.zoom = [across.back(x1), across.back(x2), ...upright];
    refresh();
  }
  function zoomBy(share) {
    const { left, right, top, bottom } = frame;
    const grown = (low, high) => [low - (high - low) * share, high + (high - low) * share];
    zoomTo([...grown(left, right), ...grown(top, bottom)]);
  }
  function reset() {
    state.zoom = null;
    refresh();
  }

  // The box between two places; a thin one is a range of one axis only, a tiny one nothing.
  function boxOf(from, to) {
    const { left, right, top, bottom, rows } = frame, inside = (at, low, high) => Math.max(low, Math.min(high, at));
    let [x1, x2] = [from[0], to[0]].map((x) => inside(x, left, right)).sort((a, b) => a - b);
    let [y1, y2] = [from[1], to[1]].map((y) => inside(y, top, bottom)).sort((a, b) => a - b);
    const wide = x2 - x1 > 12, tall = !rows && y2 - y1 > 12;
    if (!tall) [y1, y2] = [top, bottom];
    if (!wide) [x1, x2] = [left, right];
    return wide || tall ? [x1, x2, y1, y2] : null;
  }

  let drag = null;
  const place = (event) => {
    const { left, top } = svg.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button || !frame) return;
    drag = { from: place(event), box: null };
    if (event.pointerType !== "touch") svg.setPointerCapture(event.pointerId); // a finger may begin to scroll
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag) return showNearest(place(event));
    hide();
    svg.querySelector(".zoom")?.remove();
    drag.box = boxOf(drag.from, place(event));
    if (!drag.box) return;
    const [x1, x2, y1, y2] = drag.box;
    svg.append(make("rect", { x: x1, y: y1, width: x2 - x1, height: y2 - y1, class: "zoom" }));
  });
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, (event) => {
    const box = drag?.box;
    if (drag && !box && name === "pointerup") showNearest(place(event));
    drag = null;
    svg.querySelector(".zoom")?.remove();
    if (box && name === "pointerup") zoomTo(box);
  });
  svg.addEventListener("pointerleave", (event) => drag || event.pointerType === "touch" || hide());
  svg.addEventListener("dblclick", reset);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const move = (next) => {
      at = next;
      if (hits[at]) show(hits[at]);
    };
    const actions = {
      ArrowRight: () => move(nextPoint(1)), ArrowLeft: () => move(nextPoint(-1)),
      ArrowDown: () => move(nextLine(1)), ArrowUp: () => move(nextLine(-1)),
      "+": () => zoomBy(-0.125), "=": () => zoomBy(-0.125), "-": () => zoomBy(1 / 6), Escape: reset, 0: reset,
    };
    if (!frame || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });

  // ---- Controls and the legend.

  function fill(list, options) {
    const parents = new Map();
    list.replaceChildren();
    for (const [value, text, group] of options) {
      const option = html("option", text);
      option.value = value;
      if (group && !parents.has(group)) {
        parents.set(group, list.appendChild(html("optgroup")));
        parents.get(group).label = group;
      }
      (parents.get(group) ?? list).append(option);
    }
  }

  function checkbox(text, checked, change, sample = []) {
    const label = html("label"), input = html("input");
    input.type = "checkbox";
    input.checked = checked;
    input.addEventListener("change", () => {
      change(input.checked);
      refresh();
    });
    label.append(input, ...sample, html("span", text));
    return label;
  }

  const boxes = []; // of labels: [input, axis, label]
  function facets() {
    const several = axes.filter((axis) => !axis.seed).length > 1; // labels of one axis are the variants
    axes.forEach((axis, i) => {
      if (axis.labels.length < 2 || !(axis.seed || several)) return;
      const group = byId("facets").appendChild(html("fieldset")), box = html("div");
      group.append(html("legend", axis.seed ? `${axis.name} (single seeds; means are over all)` : axis.name), box);
      axis.labels.forEach((label, j) => {
        const change = (on) => {
          if (on) state.labels[i].delete(j);
          else state.labels[i].add(j);
          state.seeds ||= axis.seed;
        };
        boxes.push([box.appendChild(checkbox(label || "(none)", true, change)).firstChild, i, j]);
      });
    });
  }

  function legend() {
    const of = measure(), list = byId("legend"), scrolled = list.scrollTop;
    const focused = [...list.querySelectorAll("input")].indexOf(document.activeElement);
    const measured = of.kind === "result" && [...variants.keys()].filter((i) => known(of.mean[i]));
    const there = measured || of.curves.map((curve) => curve.series);
    const items = there.filter((i) => series[i].variants.some((variant) => listed.has(variant))).map((i) => {
      const look = series[i], sample = make("svg", { viewBox: "0 0 40 16", "aria-hidden": "true" }), item = html("li");
      sample.append(line("M1,8H39", look, "line"), marker(look, [20, 8]));
      const change = (on) => look.variants.forEach((variant) => state.hidden[on ? "delete" : "add"](variant));
      item.append(checkbox(look.name, isVisible(i), change, [sample]));
      item.addEventListener("pointerenter", () => highlight(i));
      item.addEventListener("pointerleave", hide);
      return item;
    });
    list.replaceChildren(...items);
    list.scrollTop = scrolled;
    items[focused]?.querySelector("input").focus();
    byId("count").textContent = `${visible.size} of ${variants.length} ${variants.length === 1 ? "variant" : "variants"}`;
  }

  // ---- The table.

  function table() {
    const ofRuns = state.rows === "runs", wanted = words(state.columns), all = measures.filter((of) => of.kind === "result");
    const values = (of) => (ofRuns ? of.values : of.mean);
    const rows = ofRuns
      ? runs.map((run, index) => ({ name: run.name, index, run })).filter(({ run: of }) => visible.has(of.variant) && seedShown(of))
      : [...visible].map((index) => ({ name: variants[index].name, index }));
    const chosen = (of) => (wanted[0] === "all" ? true : wanted.length ? matches(`${of.label} ${of.group}`, wanted) : of.main);
    const columns = all.filter((of) => chosen(of) && rows.some(({ index }) => known(values(of)[index])));
    const key = all.find((of) => of.id === state.sort), sign = state.down ? -1 : 1;
    if (key) {
      const value = ({ index }) => values(key)[index];
      rows.sort((a, b) => known(value(b)) - known(value(a)) || sign * (value(a) - value(b)));
    } else if (state.sort) rows.sort((a, b) => sign * a.name.localeCompare(b.name, "en", { numeric: true }));

    const head = html("tr"), shown = state.every ? rows : rows.slice(0, MOST_ROWS);
    head.append(sorter("name", ofRuns ? "run" : "variant"), ...(ofRuns ? [html("th", "status")] : []));
    head.append(...columns.map((of) => sorter(of.id, of.label)));
    byId("table").tHead.replaceChildren(head);
    byId("table").tBodies[0].replaceChildren(...shown.map((row) => {
      const element = html("tr"), name = html("th", row.name);
      name.scope = "row";
      element.append(name, ...(ofRuns ? [html("td", row.run.status)] : []));
      element.append(...columns.map((of) => (ofRuns ? cellOfRun(of, row.index) : cellOfVariant(of, row.index))));
      return element;
    }));
    byId("more").hidden = shown.length === rows.length;
    byId("more").textContent = `Show all ${rows.length} rows`;
    const cells = ofRuns ? "" : "Mean ± standard deviation over seeds; cost is the mean. ";
    byId("table-note").textContent = `${columns.length} of ${all.length} measures; type words to see others, or "all". ${cells}`
      + "Point at a number for all its digits. The filter above chooses the rows.";
  }

  function sorter(id, label) {
    const cell = html("th"), button = cell.appendChild(html("button")), sorted = state.sort === id;
    for (const part of label.split(/(?<=[/_])/)) button.append(part, html("wbr"));
    if (sorted) button.append(state.down ? " ▼" : " ▲");
    if (sorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    cell.scope = "col";
    button.type = "button";
    button.dataset.sort = id;
    button.addEventListener("click", () => {
      [state.sort, state.down] = [id, sorted && !state.down];
      refresh();
      [...byId("table").tHead.querySelectorAll("button")].find((other) => other.dataset.sort === id)?.focus();
    });
    return cell;
  }

  function cellOfRun(of, i) {
    const cell = html("td", number(of.values[i], of));
    if (known(of.values[i])) cell.title = of.values[i];
    return cell;
  }

  function cellOfVariant(of, i) {
    const spread = known(of.sd[i]) && of.group !== "Cost" ? ` ± ${number(of.sd[i], of)}` : "";
    const cell = html("td", number(of.mean[i], of) + spread);
    if (!known(of.mean[i])) return cell;
    const interval = known(of.low[i]) ? `, 95 % interval ${number(of.low[i], of)} to ${number(of.high[i], of)}` : "";
    cell.title = `${of.mean[i]}, ${of.seeds[i] > 1 ? `mean of ${of.seeds[i]} seeds` : "one seed"}${interval}`;
    return cell;
  }

  // ---- All together.

  function refresh() {
    const of = measure(), rows = inRows();
    choose();
    fill(byId("axis"), horizontal(of));
    const chosen = { measure: state.y, axis: state.x, spread: state.spread, rows: state.rows };
    for (const [id, value] of Object.entries(chosen)) byId(id).value = value;
    for (const id of ["search", "columns"]) if (byId(id).value !== state[id]) byId(id).value = state[id];
    const checked = { seeds: state.seeds, "log-x": state.logX, "log-y": state.logY };
    for (const [id, on] of Object.entries(checked)) byId(id).checked = on;
    const disabled = { axis: Boolean(of.labels), "log-x": Boolean(of.labels), "log-y": rows, reset: !state.zoom };
    for (const [id, off] of Object.entries(disabled)) byId(id).disabled = off;
    for (const [box, i, j] of boxes) box.checked = !state.labels[i].has(j);
    legend();
    draw();
    table();
    writeFragment();
  }

  function on(id, event, change) {
    byId(id).addEventListener(event, () => {
      change(byId(id));
      refresh();
    });
  }
  const rescale = (name) => (box) => Object.assign(state, { [name]: box.checked, zoom: null });
  on("measure", "change", (list) => setMeasure(Number(list.value)));
  on("axis", "change", (list) => Object.assign(state, { x: list.value, zoom: null }));
  on("spread", "change", (list) => { state.spread = list.value; });
  on("seeds", "change", (box) => { state.seeds = box.checked; });
  on("log-x", "change", rescale("logX"));
  on("log-y", "change", rescale("logY"));
  on("search", "input", (box) => { state.search = box.value; });
  on("all", "click", () => listed.forEach((i) => state.hidden.delete(i)));
  on("none", "click", () => listed.forEach((i) => state.hidden.add(i)));
  on("rows", "change", (list) => { state.rows = list.value; });
  on("columns", "input", (box) => { state.columns = box.value; });
  on("more", "click", () => { state.every = true; });
  byId("reset").addEventListener("click", reset);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());

  if (!measures.length) {
    byId("heading").textContent = "No number has been measured yet.";
    return;
  }
  fill(byId("measure"), measures.map((of, i) => [i, of.label, of.group]));
  fill(byId("spread"), SPREADS);
  facets();
  readFragment();
  refresh();
  addEventListener("hashchange", () => {
    readFragment();
    refresh();
  });
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth === width) return;
    width = chart.clientWidth;
    draw();
  }).observe(chart);
})();
