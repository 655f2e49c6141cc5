// The report's charts, drawn by uPlot, with zoom, values on hover and curves that can be hidden, and its sortable tables. The charts are JSON in #charts.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const state = { axis: null, hidden: new Set(), seeds: true, range: {} };
  const charts = [];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const known = (value) => value !== null && value !== undefined;
  const ends = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  // A canvas does not know the variables of the style sheet.
  const css = (color) => color.replace(/var\((--[a-z]+)\)/g, (_, name) => getComputedStyle(document.documentElement).getPropertyValue(name));
  const faded = (color, percent) => `color-mix(in srgb, ${color} ${percent}%, transparent)`;

  function html(name, text, parent) {
    const node = document.createElement(name);
    if (text !== null) node.textContent = text;
    parent.appendChild(node);
    return node;
  }
  // A number with at most this many digits; tiny and huge numbers have an exponent, as the largest one beside them has.
  function shortText(value, digits = 4, largest = Math.abs(value)) {
    if (!known(value)) return "–";
    if (value && (largest >= 1e13 || largest < 1e-3)) return Number(value.toPrecision(digits)).toExponential();
    return value.toLocaleString("en", { notation: largest >= 1e5 ? "compact" : "standard", maximumSignificantDigits: digits });
  }
  // The texts of ticks at multiples of a step; null for ticks without a text.
  function tickTexts(marks, step) {
    const largest = Math.max(...marks.map(Math.abs)), digits = Math.min(Math.max(Math.ceil(Math.log10(largest / step)) + 2, 2), 15);
    return marks.map((mark) => known(mark) ? shortText(mark, digits, largest) : null);
  }

  class Chart {
    constructor(figure, spec) {
      Object.assign(this, { spec, log: false, place: figure.querySelector(".plot") });
      this.place.setAttribute("role", "img");
      this.tip = html("div", null, this.place);
      Object.assign(this.tip, { className: "tip", hidden: true });
      this.tip.setAttribute("aria-hidden", "true");
      const buttons = html("span", null, figure.querySelector("figcaption"));
      if (spec.can_log) {
        const log = html("button", "log", buttons);
        log.title = "Logarithmic scale";
        press(log, false);
        log.addEventListener("click", () => { this.log = !this.log; press(log, this.log); this.draw(); });
      }
      this.reset = html("button", "reset zoom", buttons);
      this.reset.addEventListener("click", () => zoom(this.axis, null));
      new ResizeObserver(() => { if (this.place.clientWidth !== this.width) this.draw(); }).observe(this.place);
    }
    get axis() { return this.spec.axes[state.axis] ? state.axis : Object.keys(this.spec.axes)[0]; }
    usable(y) { return known(y) && (!this.log || y > 0); }
    // The ends of the horizontal axis.
    width_of(axis, points) {
      const [low, high] = ends(this.lines.flatMap((line) => line.views[this.axis].x.filter(known))), room = points ? 0.04 * (high - low) : 0;
      if (state.range[this.axis]) return state.range[this.axis];
      if (axis.ticks.length) return [-0.5, axis.ticks.length - 0.5];
      if (low >= high) return low ? [0, 2 * low].sort((a, b) => a - b) : [-0.5, 0.5];
      return low < high ? [low - room, high + room] : [0, 1];
    }
    draw() {
      const order = { seed: 0, reference: 1, center: 2, points: 3 }, axis = this.spec.axes[this.axis];
      this.lines = this.spec.lines.filter((line) => line.views[this.axis] && !state.hidden.has(line.key) &&
        !(line.role === "seed" && (!state.seeds || state.hidden.has(line.group)))).sort((a, b) => order[a.role] - order[b.role]);
      const points = this.lines.filter(({ role }) => role === "points");
      const width = this.width = Math.max(this.place.clientWidth, 240), [x0, x1] = this.width_of(axis, points.length);
      const height = Math.round(this.spec.tall ? Math.min(width * 0.5, 400) : Math.min(Math.max(width * 0.48, 190), 260));
      const tables = [], series = [{}], bands = [];
      for (const line of this.lines.filter(({ role }) => role !== "points")) {
        const view = line.views[this.axis], gaps = (values) => values.map((y) => (this.usable(y) ? y : null)), color = this.color(line);
        const thin = line.role !== "center" && this.spec.lines.some(({ role }) => role === "center");
        const look = { paths: line.step ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: false } };
        line.color_shown = thin ? faded(color, 50) : color;
        tables.push([view.x, gaps(view.y), ...(view.low ? [gaps(view.low), gaps(view.high)] : [])]);
        line.place = series.push({ ...look, stroke: line.color_shown, width: line.role === "center" ? 2.2 : thin ? 1 : 1.4, dash: line.dash }) - 1;
        if (view.low) {
          const low = series.push({ ...look, width: 0 }, { ...look, width: 0 }) - 2;
          bands.push({ series: [low + 1, low], fill: faded(color, 17) });
        }
      }
      // uPlot knows the values of curves, but not those of sets of points.
      const heights = points.flatMap(({ views: { [this.axis]: { y, low, high } } }) => [...y, ...(low || []), ...(high || [])]).filter((y) => this.usable(y));
      const range = (plot, ...found) => {
        const [low, high] = ends([...found.slice(0, 2).filter(known), ...heights]);
        if (this.log) return uPlot.rangeLog(low, high, 10, true);
        return this.spec.fixed_y || (low <= high ? uPlot.rangeNum(low, high, 0.05, false) : [0, 1]);
      };
      const named = axis.ticks.length > 0, [soft, line, grid] = ["--soft", "--line", "--grid"].map((name) => css(`var(${name})`)), font = "11px system-ui, sans-serif";
      const short = (name) => { const most = Math.max(4, Math.floor((width - 80) / axis.ticks.length / 6.8)); return name.length > most ? `${name.slice(0, most - 1)}…` : name; };
      const whole = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((e) => [1, 2, 5].map((n) => n * 10 ** e));
      this.plot?.destroy();
      this.plot = new uPlot({
        width, height, series, bands, padding: [8, 24, 0, 0], legend: { show: false }, focus: { alpha: 0.35 },
        scales: { x: { time: false, range: [x0, x1] }, y: { range, distr: this.log ? 3 : 1 } },
        axes: [
          { stroke: soft, font, labelFont: font, label: axis.label, labelSize: 14, size: 22, gap: 3, space: 60, grid: { show: false },
            ticks: { stroke: line, size: 4, width: 1 }, border: { show: true, stroke: line, width: 1 },
            ...(axis.whole || (axis.log && x1 - x0 > 1) ? { incrs: whole } : {}), ...(named ? { splits: () => axis.ticks.map((_, i) => i) } : {}),
            values: (_, marks, place, space, step) => named ? axis.ticks.map(short) : axis.log ? marks.map((mark) => shortText(10 ** mark, 3)) : tickTexts(marks, step) },
          { stroke: soft, font, size: 54, gap: 3, grid: { stroke: grid, width: 1 }, ticks: { show: false },
            values: (_, marks, place, space, step) => this.log ? marks.map((mark) => known(mark) ? shortText(mark, 2) : null) : tickTexts(marks, step) },
        ],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => zoom(this.axis, null) } },
        hooks: {
          draw: [(plot) => this.marks(plot)],
          setCursor: [(plot) => this.hover(plot)],
          setSelect: [({ select: { left, width: wide } }) => {
            if (wide > 8) queueMicrotask(() => zoom(this.axis, [left, left + wide].map((at) => this.plot.posToVal(at, "x"))));
          }],
        },
      }, tables.length ? uPlot.join(tables) : [[]], this.place);
      touch(this.plot.over);
      this.place.setAttribute("aria-label", `${this.spec.title}: ${this.lines.map(({ name }) => name).join("; ") || "no curve"}`);
      const empty = !this.lines.some((one) => one.views[this.axis].x.length);
      if (empty) html("div", this.spec.lines.length ? "all curves are hidden" : "no values", this.plot.over).className = "empty";
      this.reset.hidden = !state.range[this.axis];
      this.tip.hidden = true;
    }
    color(line) {
      const mix = line.shade || 0, lifted = `color-mix(in oklab, ${line.color}, white var(--lift))`;
      return css(mix ? `color-mix(in oklab, ${lifted} ${100 - Math.abs(mix)}%, var(${mix > 0 ? "--paper" : "--ink"}))` : lifted);
    }
    // Draw what is not a curve: sets of points, values with a gap on both sides, and their intervals.
    marks(plot) {
      const { ctx } = plot, unit = devicePixelRatio;
      ctx.save();
      for (const line of this.lines) {
        const view = line.views[this.axis], points = line.role === "points", color = points ? this.color(line) : line.color_shown;
        const there = (i) => known(view.x[i]) && this.usable(view.y[i]);
        const [left, right] = [plot.scales.x.min, plot.scales.x.max];
        for (const i of view.x.keys()) {
          if (!there(i) || view.x[i] < left || view.x[i] > right || !points && (there(i - 1) || there(i + 1))) continue;
          const [x, y, low, high] = [plot.valToPos(view.x[i], "x", true), ...[view.y, view.low, view.high].map((values) => values && plot.valToPos(values[i], "y", true))];
          const wide = (points ? 1.5 : 8) * unit, r = (points ? 4 : 3) * unit;
          Object.assign(ctx, { fillStyle: points ? color : faded(color, 17), strokeStyle: color, lineWidth: 1.6 * unit });
          if (view.low && this.usable(view.low[i])) ctx.fillRect(x - wide / 2, high, wide, low - high);
          ctx.fillStyle = color;
          ctx.beginPath();
          ctx.arc(x, y, line.mark === "cross" ? 0.7 * r : r, 0, 2 * Math.PI);
          if (line.mark === "cross") ctx.stroke(); else ctx.fill();
        }
      }
      ctx.restore();
    }
    // For each visible line, the row that is nearest to the cursor.
    near(plot) {
      const rows = [], at = plot.posToVal(plot.cursor.left, "x"), named = this.spec.axes[this.axis].ticks.length;
      for (const line of this.lines) {
        const { x, y, low = [], high = [] } = line.views[this.axis], points = line.role === "points";
        const gap = (i) => Math.abs(x[i] - at), rise = (i) => Math.abs(plot.valToPos(y[i], "y") - plot.cursor.top);
        const [best] = [...x.keys()].filter((i) => known(x[i]) && this.usable(y[i])).sort((i, j) => gap(i) - gap(j) || rise(i) - rise(j));
        const reach = named ? 0.5 : x.length > 1 ? 2 * Math.abs(x.at(-1) - x[0]) / (x.length - 1) : Infinity;
        if (best === undefined || gap(best) > reach) continue;
        rows.push({ line, name: line.labels?.[best] || line.name, x: x[best], y: y[best], low: low[best], high: high[best],
          distance: Math.hypot(points ? plot.valToPos(x[best], "x") - plot.cursor.left : 0, rise(best)) });
      }
      return rows.sort((a, b) => a.distance - b.distance);
    }
    hover(plot) {
      const rows = plot.cursor.left >= 0 ? this.near(plot) : [], [closest] = rows;
      light(closest?.line.key);
      this.tip.hidden = !closest;
      if (!closest) return;
      const axis = this.spec.axes[this.axis], value = axis.log ? 10 ** closest.x : closest.x;
      this.tip.replaceChildren();
      html("b", axis.ticks[closest.x] ?? `${axis.label} ${shortText(value)}`, this.tip);
      const shown = rows.length > 9 ? rows.slice(0, 8) : rows;
      for (const row of [...shown].sort((a, b) => b.y - a.y)) {
        const entry = html("div", null, this.tip);
        html("i", null, entry).style.background = this.color(row.line);
        const name = html("span", row.name, entry);
        if (row === closest) name.style.fontWeight = "600";
        html("em", shortText(row.y) + (known(row.low) ? ` (${shortText(row.low)} to ${shortText(row.high)})` : ""), entry);
      }
      if (shown.length < rows.length) html("div", `and ${rows.length - shown.length} more`, this.tip).className = "soft";
      const wide = this.tip.offsetWidth, after = plot.valToPos(closest.x, "x") + plot.over.offsetLeft + 14;
      this.tip.style.left = `${Math.max(after + wide > this.width ? after - wide - 28 : after, 0)}px`;
    }
  }

  function press(button, pressed) { button.setAttribute("aria-pressed", String(pressed)); }
  function redraw() { for (const chart of charts) chart.draw(); }
  function zoom(axis, range) {
    if (range) state.range[axis] = range; else delete state.range[axis];
    redraw();
  }
  function light(key) {
    for (const { lines, plot } of charts) {
      const place = lines.find((line) => line.key === key)?.place;
      if (plot) plot.setSeries(place ?? null, { focus: true });
    }
  }
  // uPlot listens to the mouse only.
  function touch(node) {
    for (const [name, mouse] of [["pointerdown", "mousedown"], ["pointermove", "mousemove"], ["pointerup", "mouseup"]]) {
      node.addEventListener(name, ({ pointerType, clientX, clientY }) => {
        if (pointerType === "touch") node.dispatchEvent(new MouseEvent(mouse, { clientX, clientY, movementX: 1, bubbles: true }));
      });
    }
  }
  function controls() {
    const buttons = all("[data-axis], [data-toggle], [data-seeds]");
    const pressed = ({ axis, toggle }) => axis ? axis === state.axis : toggle ? !state.hidden.has(toggle) : state.seeds;
    state.axis = buttons.find((button) => button.matches("[data-axis][aria-pressed=true]"))?.dataset.axis ?? null;
    state.seeds = !buttons.some((button) => button.matches("[data-seeds][aria-pressed=false]"));
    for (const button of buttons) {
      const { axis, toggle: key } = button.dataset;
      button.addEventListener("click", () => {
        if (axis) state.axis = axis;
        else if (!key) state.seeds = !state.seeds;
        else if (!state.hidden.delete(key)) state.hidden.add(key);
        for (const other of buttons) press(other, pressed(other.dataset));
        redraw();
      });
      button.addEventListener("pointerenter", () => light(key));
      button.addEventListener("pointerleave", () => light());
    }
  }
  function sort(head) {
    const down = head.getAttribute("aria-sort") === "descending" || !head.classList.contains("number") && !head.hasAttribute("aria-sort");
    const table = head.closest("table"), worth = (row) => row.cells[head.cellIndex].dataset.value;
    for (const other of all("th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    const number = (row) => (worth(row) === "" ? NaN : Number(worth(row)));
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [number(a), number(b)];
      if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
      return (Number.isNaN(x) ? worth(a).localeCompare(worth(b)) : x - y) * (down ? 1 : -1);
    }));
  }
  function theme() {
    const button = document.querySelector(".theme"), dark = matchMedia("(prefers-color-scheme: dark)"), { dataset } = document.documentElement;
    const show = () => { button.textContent = (dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark" ? "Light" : "Dark"; redraw(); };
    button.hidden = false;
    button.addEventListener("click", () => { dataset.theme = button.textContent.toLowerCase(); show(); });
    for (const change of [dark, matchMedia("print")]) change.addEventListener("change", show);
    show();
  }

  for (const button of all(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      navigator.clipboard?.writeText(button.nextElementSibling.textContent).then(() => { button.textContent = "copied"; }, () => {});
    });
  }
  for (const head of all("th[data-sort]")) {
    // A column without text is aligned to the right.
    const cells = [...head.closest("table").tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
    const numeric = cells.length > 0 && cells.every((cell) => cell.classList.contains("number"));
    for (const cell of [head, ...cells]) cell.classList.toggle("number", numeric);
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
  addEventListener("beforeprint", () => { for (const node of all("details")) node.open = true; });
  controls();
  for (const figure of all("figure[data-chart]")) charts.push(new Chart(figure, specs[figure.dataset.chart]));
  theme();
})();
