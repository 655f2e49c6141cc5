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
  // The marker of an isolated value. A dash would not be visible, so each dash has its own marker.
  function spot(dash, x, y, r) {
    const at = `M${x.toFixed(1)},${y.toFixed(1)}`, w = (0.89 * r).toFixed(1);
    switch ((dash || []).join(" ")) {
      case "5 2": return `${at}m-${w},-${w}h${2 * w}v${2 * w}h-${2 * w}z`;
      case "1.5 1.5": return `${at}m0,-${r}l${r},${1.7 * r}h-${2 * r}z`;
      case "6 1.5 1.5 1.5": return `${at}m0,-${1.2 * r}l${1.2 * r},${1.2 * r}l-${1.2 * r},${1.2 * r}l-${1.2 * r},-${1.2 * r}z`;
      default: return `${at}m-${r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 -${2 * r},0z`;
    }
  }
  // A number with this many digits, in the unit that suits the largest number beside it.
  function shortText(value, digits = 4, largest = Math.abs(value)) {
    if (!known(value)) return "–";
    if (largest >= 1e13 || (largest > 0 && largest < 1e-3)) return value === 0 ? "0" : value.toExponential(Math.min(digits - 1, 15));
    const [unit, letter] = largest >= 1e7 ? [1e6, "M"] : largest >= 1e5 ? [1e3, "k"] : [1, ""];
    return value === 0 ? "0" : Number((value / unit).toPrecision(Math.min(digits, 15))) + letter;
  }
  // The texts of the ticks of an axis, with as many digits as keep them different.
  function tickTexts(marks, most = 15) {
    const there = marks.filter(known), largest = Math.max(...there.map(Math.abs));
    for (let digits = 1; ; digits++) {
      const texts = marks.map((mark) => (known(mark) ? shortText(mark, digits, 10 * largest) : ""));
      if (digits >= most || new Set(texts.filter(Boolean)).size === there.length && there.every((mark) => Math.abs(Number(mark.toPrecision(digits)) - mark) <= 1e-9 * largest)) return texts;
    }
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
    extent() {
      const axis = this.spec.axes[this.axis], chosen = state.range[this.axis], marks = this.lines.some((line) => line.role === "points");
      let [x0, x1] = ends(this.lines.flatMap((line) => line.views[this.axis].x.filter(known)));
      if (axis.ticks.length) [x0, x1] = marks ? [-0.5, axis.ticks.length - 0.5] : [-0.2, axis.ticks.length - 0.8];
      else if (x0 === x1) [x0, x1] = x0 ? [0, 2 * x0].sort((a, b) => a - b) : [-0.5, 0.5];
      else if (x0 > x1) [x0, x1] = [0, 1];
      else if (marks) { const pad = 0.04 * (x1 - x0); x0 -= pad; x1 += pad; }
      if (chosen) [x0, x1] = chosen;
      const values = this.lines.flatMap(({ views: { [this.axis]: view } }) => [view.y, view.low, view.high].filter(known)
        .flatMap((list) => list.filter((y, i) => this.usable(y) && view.x[i] >= x0 && view.x[i] <= x1)));
      let [y0, y1] = this.spec.fixed_y || (values.length ? ends(values) : this.log ? [1, 10] : [0, 1]);
      if (this.log) [y0, y1] = [Math.log10(y0), Math.log10(y1)];
      const pad = y0 === y1 ? Math.abs(y0) * 0.05 || 0.5 : (y1 - y0) * (this.spec.fixed_y ? 0.01 : 0.05), y = [y0 - pad, y1 + pad];
      return { x: [x0, x1], y: this.log ? y.map((e) => 10 ** e) : y };
    }
    draw() {
      const order = { seed: 0, reference: 1, center: 2, points: 3 }, axis = this.spec.axes[this.axis];
      this.lines = this.spec.lines.filter((line) => line.views[this.axis] && !state.hidden.has(line.key) &&
        !(line.role === "seed" && (!state.seeds || state.hidden.has(line.group)))).sort((a, b) => order[a.role] - order[b.role]);
      const width = this.width = Math.max(this.place.clientWidth, 240), range = this.extent();
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
      const named = axis.ticks.length > 0, soft = css("var(--soft)"), line = css("var(--line)"), font = "11px system-ui, sans-serif";
      const short = (names, plot) => { const most = Math.max(4, Math.floor(plot.bbox.width / devicePixelRatio / names.length / 6.8));
        return names.map((name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name)); };
      this.plot?.destroy();
      this.plot = new uPlot({
        width, height, series, bands, padding: [8, 24, 0, 0], legend: { show: false }, focus: { alpha: 0.35 },
        scales: { x: { time: false, range: range.x }, y: { range: range.y, distr: this.log ? 3 : 1 } },
        axes: [
          { stroke: soft, font, labelFont: font, label: axis.label, labelSize: 14, size: 22, gap: 3, space: 60, grid: { show: false },
            ticks: { stroke: line, size: 4, width: 1 }, border: { show: true, stroke: line, width: 1 },
            ...(axis.whole || axis.log ? { incrs: [...(axis.log && range.x[1] - range.x[0] < 1 ? [0.1, 0.2, 0.5] : []), ...[0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((e) => [1, 2, 5].map((n) => n * 10 ** e))] } : {}),
            ...(named ? { splits: () => axis.ticks.map((_, i) => i), values: (plot) => short(axis.ticks, plot) } : { values: (_, marks) => axis.log ? tickTexts(marks.map((mark) => 10 ** mark), 3) : tickTexts(marks) }) },
          { stroke: soft, font, size: 54, gap: 3, grid: { stroke: css("var(--grid)"), width: 1 }, ticks: { show: false }, values: (_, marks) => tickTexts(marks) },
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
      const { ctx, bbox } = plot, unit = devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left - unit, bbox.top - 4 * unit, bbox.width + 6 * unit, bbox.height + 8 * unit);
      ctx.clip();
      for (const line of this.lines) {
        const view = line.views[this.axis], points = line.role === "points", color = points ? this.color(line) : line.color_shown;
        const there = (i) => known(view.x[i]) && this.usable(view.y[i]);
        const alone = view.x.map((_, i) => i).filter((i) => there(i) && (points || (!there(i - 1) && !there(i + 1))));
        const r = points ? 4 : alone.length > 20 ? 1.5 : line.role === "seed" ? 2.5 : 3.5;
        for (const i of alone) {
          const at = (value) => plot.valToPos(value, "y", true) / unit, x = plot.valToPos(view.x[i], "x", true) / unit, y = at(view.y[i]);
          ctx.save();
          ctx.scale(unit, unit);
          if (view.low && this.usable(view.low[i])) {
            const wide = points ? 1.5 : 8;
            ctx.fillStyle = points ? color : faded(color, 17);
            ctx.fillRect(x - wide / 2, at(view.high[i]), wide, at(view.low[i]) - at(view.high[i]));
          }
          Object.assign(ctx, { fillStyle: points ? faded(color, 85) : color, strokeStyle: color, lineWidth: 1.6 });
          if (line.mark === "cross") ctx.stroke(new Path2D(`M${x - 3},${y - 3}l6,6m0,-6l-6,6`));
          else ctx.fill(new Path2D(spot(line.dash, x, y, r)));
          ctx.restore();
        }
      }
      ctx.restore();
    }
    // For each visible line, the row that is nearest to the cursor.
    near(plot) {
      const rows = [], at = plot.posToVal(plot.cursor.left, "x");
      for (const line of this.lines) {
        const view = line.views[this.axis], { x } = view, span = x.length > 1 ? (x[x.length - 1] - x[0]) / (x.length - 1) * 2 : Infinity;
        const gap = (i) => Math.abs(x[i] - at), rise = (i) => Math.abs(plot.valToPos(view.y[i], "y") - plot.cursor.top);
        const there = x.map((_, i) => i).filter((i) => known(x[i]) && this.usable(view.y[i]));
        if (!there.length) continue;
        const best = there.reduce((i, j) => (gap(j) < gap(i) || (gap(j) === gap(i) && rise(j) < rise(i)) ? j : i));
        if (gap(best) > (this.spec.axes[this.axis].ticks.length ? 0.5 : Math.abs(span))) continue;
        rows.push({ line, name: line.labels?.[best] || line.name, x: x[best], y: view.y[best], low: view.low?.[best], high: view.high?.[best],
          distance: Math.hypot(line.role === "points" ? plot.valToPos(x[best], "x") - plot.cursor.left : 0, rise(best)) });
      }
      return rows.sort((a, b) => a.distance - b.distance);
    }
    hover(plot) {
      const rows = plot.cursor.left >= 0 ? this.near(plot) : [], [closest] = rows;
      light(closest ? closest.line.key : null);
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
    for (const button of all("[data-axis]")) {
      button.addEventListener("click", () => {
        state.axis = button.dataset.axis;
        for (const other of all("[data-axis]")) press(other, other.dataset.axis === state.axis);
        redraw();
      });
    }
    for (const button of all("[data-toggle]")) {
      const key = button.dataset.toggle;
      button.addEventListener("click", () => {
        if (!state.hidden.delete(key)) state.hidden.add(key);
        for (const other of all("[data-toggle]")) if (other.dataset.toggle === key) press(other, !state.hidden.has(key));
        redraw();
      });
      button.addEventListener("pointerenter", () => light(key));
      button.addEventListener("pointerleave", () => light(null));
    }
    for (const button of all("[data-seeds]")) {
      state.seeds = button.getAttribute("aria-pressed") === "true";
      button.addEventListener("click", () => {
        state.seeds = !state.seeds;
        for (const other of all("[data-seeds]")) press(other, state.seeds);
        redraw();
      });
    }
    state.axis = document.querySelector("[data-axis][aria-pressed=true]")?.dataset.axis ?? null;
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
    const button = document.querySelector(".theme"), dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
    const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    try {
      const kept = localStorage.getItem("labrl-theme");
      if (kept === "dark" || kept === "light") root.dataset.theme = kept;
    } catch { /* without storage, the choice lasts only as long as the page */ }
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("labrl-theme", root.dataset.theme); } catch { /* as above */ }
      name();
      redraw();
    });
    dark.addEventListener("change", () => { name(); redraw(); });
    matchMedia("print").addEventListener("change", redraw);
    name();
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
  theme();
  controls();
  for (const figure of all("figure[data-chart]")) charts.push(new Chart(figure, specs[figure.dataset.chart]));
  redraw();
})();
