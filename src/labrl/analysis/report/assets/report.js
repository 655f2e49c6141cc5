// The report's charts, with zoom, values on hover and curves that can be hidden, and its sortable tables. The charts are JSON in #charts.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { top: 8, right: 12, bottom: 34, left: 54 };
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const state = { axis: null, hidden: new Set(), seeds: true, range: {}, lit: null };
  const charts = [];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const known = (value) => value !== null && value !== undefined;

  function make(name, attributes, parent, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }
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
  function shortText(value) {
    if (!known(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e13) return value.toExponential(3);
    if (size >= 1e7) return Number((value / 1e6).toPrecision(4)) + "M";
    if (size >= 1e5) return Number((value / 1e3).toPrecision(4)) + "k";
    if (size !== 0 && size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(size >= 1e3 ? 5 : 4)));
  }
  // The texts of the ticks of an axis, with one unit and as many digits as keep them different.
  function tickTexts(marks) {
    const largest = Math.max(...marks.map(Math.abs));
    const [size, letter] = largest >= 1e13 ? [1, ""] : largest >= 1e6 ? [1e6, "M"] : largest >= 1e4 ? [1e3, "k"] : [1, ""];
    let texts = [];
    for (let digits = 5; digits < 16; digits++) {
      texts = marks.map((mark) => {
        const value = Number((mark / size).toPrecision(digits));
        return value === 0 ? "0" : (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e13 ? value.toExponential(digits - 5) : String(value)) + letter;
      });
      if (new Set(texts).size === marks.length) break;
    }
    return texts;
  }
  function ticks(low, high, wanted, whole) {
    const rough = (high - low) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough)), rest = rough / power;
    let step = (rest >= 7.5 ? 10 : rest >= 3.5 ? 5 : rest >= 1.5 ? 2 : 1) * power;
    if (whole) step = Math.max(1, Math.round(step));
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }
  function decades(low, high) {
    const found = [];
    for (let e = Math.ceil(low - 1e-9); e <= high + 1e-9; e++) found.push(e);
    return found.length > 1 ? found.filter((_, i) => i % Math.ceil(found.length / 7) === 0) : ticks(low, high, 3);
  }

  class Chart {
    constructor(figure, spec, id) {
      Object.assign(this, { spec, id, log: false, place: figure.querySelector(".plot") });
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
      this.watch();
      new ResizeObserver(() => this.draw()).observe(this.place);
    }
    get axis() { return this.spec.axes[state.axis] ? state.axis : Object.keys(this.spec.axes)[0]; }
    usable(y) { return known(y) && (!this.log || y > 0); }
    visible() {
      return this.spec.lines.filter((line) => line.views[this.axis] && !state.hidden.has(line.key) &&
        !(line.role === "seed" && (!state.seeds || state.hidden.has(line.group))));
    }
    extent(lines) {
      const axis = this.spec.axes[this.axis], chosen = state.range[this.axis], marks = lines.some((line) => line.role === "points");
      const ends = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
      let [x0, x1] = ends(lines.flatMap((line) => line.views[this.axis].x.filter(known)));
      if (axis.ticks.length) [x0, x1] = marks ? [-0.5, axis.ticks.length - 0.5] : [0, axis.ticks.length - 1];
      else if (x0 === x1) [x0, x1] = x0 ? [0, 2 * x0].sort((a, b) => a - b) : [-0.5, 0.5];
      else if (x0 > x1) [x0, x1] = [0, 1];
      else if (marks) { const pad = 0.04 * (x1 - x0); x0 -= pad; x1 += pad; }
      if (chosen) [x0, x1] = chosen;
      const values = lines.flatMap(({ views: { [this.axis]: view } }) => [view.y, view.low, view.high].filter(known)
        .flatMap((list) => list.filter((y, i) => this.usable(y) && view.x[i] >= x0 && view.x[i] <= x1)));
      let [y0, y1] = this.spec.fixed_y || (values.length ? ends(values) : this.log ? [1, 10] : [0, 1]);
      if (this.log) [y0, y1] = [Math.log10(y0), Math.log10(y1)];
      const pad = y0 === y1 ? Math.abs(y0) * 0.05 || 0.5 : (y1 - y0) * (this.spec.fixed_y ? 0.01 : 0.05);
      return { x0, x1, y0: y0 - pad, y1: y1 + pad };
    }
    draw() {
      const width = Math.max(this.place.clientWidth, 240);
      const height = Math.round(this.spec.tall ? Math.min(width * 0.5, 400) : Math.min(Math.max(width * 0.48, 190), 260));
      const lines = this.visible(), right = width - MARGIN.right, bottom = height - MARGIN.bottom;
      const box = this.box = { ...this.extent(lines), width, height, right, bottom };
      this.x = (x) => MARGIN.left + (x - box.x0) / (box.x1 - box.x0) * (right - MARGIN.left);
      this.y = (y) => bottom - ((this.log ? Math.log10(y) : y) - box.y0) / (box.y1 - box.y0) * (bottom - MARGIN.top);
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.spec.title });
      this.frame(svg);
      const clip = make("clipPath", { id: `clip-${this.id}` }, svg);
      make("rect", { x: MARGIN.left - 1, y: MARGIN.top - 4, width: right - MARGIN.left + 6, height: bottom - MARGIN.top + 8 }, clip);
      const inside = make("g", { "clip-path": `url(#clip-${this.id})` }, svg);
      const order = { seed: 0, reference: 1, center: 2, points: 3 };
      const sorted = [...lines].sort((a, b) => order[a.role] - order[b.role]);
      for (const line of sorted) this.band(inside, line);
      this.paths = new Map(sorted.map((line) => [line, this.line(inside, line)]));
      if (!lines.some((line) => line.views[this.axis].x.length)) {
        make("text", { x: width / 2, y: height / 2 - 10, "text-anchor": "middle", class: "empty" }, svg,
          this.spec.lines.length ? "all curves are hidden" : "no values");
      }
      this.cursor = make("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" }, svg);
      this.chosen = make("rect", { class: "chosen", y: MARGIN.top, height: bottom - MARGIN.top, visibility: "hidden" }, svg);
      if (this.svg) this.svg.replaceWith(svg); else this.place.prepend(svg);
      this.svg = svg;
      this.reset.hidden = !state.range[this.axis];
    }
    frame(svg) {
      const { x0, x1, y0, y1, right, bottom } = this.box, axis = this.spec.axes[this.axis];
      const marks = this.log ? decades(y0, y1) : ticks(y0, y1, 5);
      const texts = tickTexts(this.log ? marks.map((mark) => 10 ** mark) : marks);
      for (const [place, mark] of marks.entries()) {
        const y = bottom - (mark - y0) / (y1 - y0) * (bottom - MARGIN.top);
        make("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }, svg);
        make("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, svg, texts[place]);
      }
      make("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, svg);
      const named = axis.ticks.length > 0, room = (right - MARGIN.left) / (named ? axis.ticks.length : 1);
      const at = named ? axis.ticks.map((_, i) => i) : axis.log ? decades(x0, x1) : ticks(x0, x1, Math.max(2, Math.floor(room / 80)), axis.whole);
      const names = named ? axis.ticks : tickTexts(axis.log ? at.map((mark) => 10 ** mark) : at);
      for (const [place, mark] of at.entries()) {
        if (mark < x0 || mark > x1) continue;
        const x = this.x(mark), last = !named && x > right - 12, most = Math.max(4, Math.floor(room / 6.8));
        make("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, svg);
        const long = named && names[place].length > most, text = long ? `${names[place].slice(0, most - 1)}…` : names[place];
        const anchor = last ? "end" : named && x > right - 5 ? "end" : "middle";
        const label = make("text", { x: anchor === "end" ? right + 8 : x, y: bottom + 16, "text-anchor": anchor }, svg, text);
        if (long) make("title", {}, label, names[place]);
      }
      make("text", { x: (MARGIN.left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, svg, axis.label);
    }
    color(line) {
      const mix = line.shade || 0, lifted = `color-mix(in oklab, ${line.color}, white var(--lift))`;
      return mix ? `color-mix(in oklab, ${lifted} ${100 - Math.abs(mix)}%, var(${mix > 0 ? "--paper" : "--ink"}))` : lifted;
    }
    // Stretches of indices without gaps.
    stretches(view, there) {
      const found = [[]];
      view.x.forEach((_, i) => { if (there(i)) found[found.length - 1].push(i); else if (found[found.length - 1].length) found.push([]); });
      return found.filter((part) => part.length);
    }
    path(line, xs, ys) {
      const at = (i) => `${this.x(xs[i]).toFixed(1)},${this.y(ys[i]).toFixed(1)}`;
      return (part) => part.map((i, place) => (place && line.step ? `H${this.x(xs[i]).toFixed(1)}` : "") + (place ? "L" : "M") + at(i)).join("");
    }
    band(parent, line) {
      const view = line.views[this.axis];
      if (!view.low || line.role === "points") return;
      const up = this.path(line, view.x, view.high);
      const d = this.stretches(view, (i) => this.usable(view.low[i]) && this.usable(view.high[i])).map((part) => {
        const [i] = part, x = this.x(view.x[i]), low = this.y(view.low[i]);
        if (part.length === 1) return `M${(x - 4).toFixed(1)},${this.y(view.high[i]).toFixed(1)}h8V${low.toFixed(1)}h-8Z`;  // a bar for a single value
        const back = [...part].reverse();
        return up(part) + back.map((j, place) => (place && line.step ? `V${this.y(view.low[j]).toFixed(1)}` : "") +
          `L${this.x(view.x[j]).toFixed(1)},${this.y(view.low[j]).toFixed(1)}`).join("") + "Z";
      }).join("");
      if (d) make("path", { class: "band", d, style: `fill:${this.color(line)}` }, parent);
    }
    line(parent, line) {
      const view = line.views[this.axis], color = this.color(line);
      const group = make("g", { class: `curve ${line.role}`, "data-key": line.key }, parent);
      if (line.role === "points") { this.points(group, line, view, color); return group; }
      const parts = this.stretches(view, (i) => this.usable(view.y[i]));
      if (!parts.length) return group;
      const alone = parts.filter((part) => part.length === 1).map(([i]) => [this.x(view.x[i]), this.y(view.y[i])]);
      const thin = line.role === "seed" && this.spec.lines.some((other) => other.role === "center");
      const opacity = thin || line.role === "reference" ? 0.5 : 1;
      const d = parts.map(this.path(line, view.x, view.y)).join("");
      make("path", { class: "line", d, style: `stroke:${color};stroke-width:${line.role === "center" ? 2.2 : opacity < 1 ? 1 : 1.4};` +
        `stroke-dasharray:${(line.dash || []).join(" ") || "none"};opacity:${opacity}` }, group);
      if (alone.length) {
        const r = alone.length > 20 ? 1.5 : thin ? 2.5 : 3.5;
        make("path", { class: "dots", d: alone.map(([x, y]) => spot(line.dash, x, y, r)).join(""), style: `fill:${color};opacity:${opacity}` }, group);
      }
      return group;
    }
    points(group, line, view, color) {
      view.x.forEach((at, i) => {
        if (!this.usable(view.y[i]) || !known(at)) return;
        const x = this.x(at), y = this.y(view.y[i]);
        if (view.low && this.usable(view.low[i])) {
          make("line", { x1: x, x2: x, y1: this.y(view.low[i]), y2: this.y(view.high[i]), style: `stroke:${color};stroke-width:1.5` }, group);
        }
        const shape = line.mark === "cross"
          ? make("path", { d: `M${x - 3},${y - 3}l6,6m0,-6l-6,6`, style: `stroke:${color};stroke-width:1.6;fill:none` }, group)
          : make("path", { d: spot(line.dash, x, y, 4), style: `fill:${color};opacity:.85` }, group);
        make("title", {}, shape, `${(line.labels && line.labels[i]) || line.name}: ${shortText(view.y[i])}`);
      });
    }
    watch() {
      let start = null;
      const at = (event) => {
        const bounds = this.svg.getBoundingClientRect(), scale = this.box.width / bounds.width;
        const x = Math.min(Math.max((event.clientX - bounds.left) * scale, MARGIN.left), this.box.right);
        const value = this.box.x0 + (x - MARGIN.left) / (this.box.right - MARGIN.left) * (this.box.x1 - this.box.x0);
        return { x, y: (event.clientY - bounds.top) * scale, value };
      };
      const on = (name, act) => this.place.addEventListener(name, act);
      on("pointerdown", (event) => { if (event.button === 0 && this.box) start = at(event); });
      on("pointermove", (event) => {
        if (!this.box) return;
        const now = at(event);
        if (start && Math.abs(now.x - start.x) > 4) {
          if (!this.place.hasPointerCapture(event.pointerId)) this.place.setPointerCapture(event.pointerId);
          for (const [name, value] of [["x", Math.min(start.x, now.x)], ["width", Math.abs(now.x - start.x)], ["visibility", "visible"]]) {
            this.chosen.setAttribute(name, value);
          }
        }
        this.hover(now);
      });
      on("pointerleave", () => { if (!start) this.hover(null); });
      on("pointercancel", () => { start = null; this.draw(); this.hover(null); });
      on("pointerup", (event) => {
        const from = start;
        start = null;
        if (!from) return;
        this.chosen.setAttribute("visibility", "hidden");
        const to = at(event);
        if (Math.abs(to.x - from.x) > 8) zoom(this.axis, [from.value, to.value].sort((a, b) => a - b));
        if (event.pointerType !== "mouse") this.hover(null);
      });
      on("dblclick", () => zoom(this.axis, null));
    }
    // For each visible line, the row that is nearest to the pointer.
    near(point) {
      const rows = [];
      for (const line of this.visible()) {
        const view = line.views[this.axis];
        let best = -1;
        view.x.forEach((x, i) => {
          if (known(x) && this.usable(view.y[i]) && (best < 0 || Math.abs(x - point.value) < Math.abs(view.x[best] - point.value))) best = i;
        });
        const span = view.x.length > 1 ? (view.x[view.x.length - 1] - view.x[0]) / (view.x.length - 1) * 2 : Infinity;
        if (best < 0 || Math.abs(view.x[best] - point.value) > Math.max(span, 0)) continue;
        rows.push({ line, x: view.x[best], y: view.y[best], low: view.low?.[best], high: view.high?.[best],
          distance: Math.abs(this.y(view.y[best]) - point.y) });
      }
      return rows.sort((a, b) => a.distance - b.distance);
    }
    hover(point) {
      light(null);
      this.tip.hidden = true;
      this.cursor.setAttribute("visibility", "hidden");
      const rows = point ? this.near(point) : [], [closest] = rows;
      if (!closest) return;
      light(closest.line.key);
      const axis = this.spec.axes[this.axis], value = axis.log ? 10 ** closest.x : closest.x;
      this.tip.replaceChildren();
      html("b", axis.ticks[closest.x] ?? `${axis.label} ${shortText(value)}`, this.tip);
      const shown = rows.length > 9 ? rows.slice(0, 8) : rows;
      for (const row of [...shown].sort((a, b) => b.y - a.y)) {
        const entry = html("div", null, this.tip);
        html("i", null, entry).style.background = this.color(row.line);
        const name = html("span", row.line.name, entry);
        if (row === closest) name.style.fontWeight = "600";
        html("em", shortText(row.y) + (known(row.low) ? ` (${shortText(row.low)} to ${shortText(row.high)})` : ""), entry);
      }
      if (shown.length < rows.length) html("div", `and ${rows.length - shown.length} more`, this.tip).className = "soft";
      const x = this.x(closest.x), scale = this.place.clientWidth / this.box.width;
      for (const [name, at] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(name, at);
      this.tip.hidden = false;
      const width = this.tip.offsetWidth, after = x * scale + 14;
      this.tip.style.left = `${Math.max(after + width > this.place.clientWidth ? after - width - 28 : after, 0)}px`;
      this.tip.style.top = `${MARGIN.top + 4}px`;
    }
  }

  function press(button, pressed) { button.setAttribute("aria-pressed", String(pressed)); }
  function redraw() { for (const chart of charts) chart.draw(); }
  function zoom(axis, range) {
    if (range) state.range[axis] = range; else delete state.range[axis];
    redraw();
  }
  function light(key) {
    if (state.lit === key) return;
    state.lit = key;
    for (const [line, node] of charts.flatMap((chart) => [...chart.paths || []])) {
      node.classList.toggle("lit", key !== null && line.key === key);
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
    });
    dark.addEventListener("change", name);
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
  for (const figure of all("figure[data-chart]")) charts.push(new Chart(figure, specs[figure.dataset.chart], figure.dataset.chart));
  redraw();
})();
