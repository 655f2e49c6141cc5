// Curves that zoom, tell their values and can be hidden. Reads the JSON in #charts; needs scales.js before it.
"use strict";
(() => {
  const { decades, nearest, spot, tickTexts, ticks, told } = scales;
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { top: 6, right: 10, bottom: 34, left: 54 };
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const state = { axis: null, hidden: new Set(), seeds: true, range: {}, lit: null };
  const charts = [];

  const make = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, text, parent) => {
    const node = document.createElement(name);
    if (text !== null) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };

  class Chart {
    constructor(figure, spec) {
      this.figure = figure; this.spec = spec;
      this.log = Boolean(spec.log);
      this.place = figure.querySelector(".plot");
      this.tip = html("div", null, this.place); this.tip.className = "tip"; this.tip.hidden = true;
      this.tip.setAttribute("aria-hidden", "true");
      const buttons = html("span", null, figure.querySelector("figcaption"));
      if (spec.can_log) this.button(buttons, "log", "Logarithmic scale", () => { this.log = !this.log; return this.log; });
      this.reset = html("button", "reset zoom", buttons);
      this.reset.addEventListener("click", () => zoom(this.axis, null));
      this.watch();
      new ResizeObserver(() => this.draw()).observe(this.place);
    }
    button(parent, text, title, act) {
      const button = html("button", text, parent);
      button.title = title; button.setAttribute("aria-pressed", String(this.log));
      button.addEventListener("click", () => { button.setAttribute("aria-pressed", String(act())); this.draw(); });
    }
    get axis() { return this.spec.axes[state.axis] ? state.axis : Object.keys(this.spec.axes)[0]; }
    visible() {
      return this.spec.lines.filter((line) => line.views[this.axis] && !state.hidden.has(line.key) &&
        !(line.role === "seed" && (!state.seeds || state.hidden.has(line.group))));
    }
    extent(lines) {
      const axis = this.axis, chosen = state.range[axis];
      let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const line of lines) {
        const view = line.views[axis];
        for (const x of view.x) { if (x < x0) x0 = x; if (x > x1) x1 = x; }
      }
      if (this.spec.axes[axis].fixed) [x0, x1] = this.spec.axes[axis].fixed;
      if (chosen) [x0, x1] = chosen;
      for (const line of lines) {
        const view = line.views[axis];
        view.x.forEach((x, i) => {
          if (x < x0 || x > x1) return;
          for (const list of [view.y, view.low, view.high]) {
            const y = list && list[i];
            if (y === null || y === undefined || (this.log && y <= 0)) continue;
            if (y < y0) y0 = y; if (y > y1) y1 = y;
          }
        });
      }
      if (this.spec.fixed_y) [y0, y1] = this.spec.fixed_y;
      else if (y0 > y1) [y0, y1] = this.log ? [1, 10] : [0, 1];
      if (this.log) [y0, y1] = [Math.log10(y0), Math.log10(y1)];
      if (y0 === y1) { const half = Math.abs(y0) * 0.05 || 0.5; y0 -= half; y1 += half; }
      else if (!this.spec.fixed_y) { const pad = (y1 - y0) * 0.05; y0 -= pad; y1 += pad; }
      if (!(x0 < x1)) { const middle = Number.isFinite(x0) ? x0 : 0, half = Math.abs(middle) || 0.5; x0 = middle - half; x1 = middle + half; }
      return { x0, x1, y0, y1 };
    }
    draw() {
      const width = Math.max(this.place.clientWidth, 240);
      const height = Math.round(this.spec.tall ? Math.min(width * 0.5, 400) : Math.min(Math.max(width * 0.48, 190), 260));
      const lines = this.visible(), axis = this.spec.axes[this.axis];
      const box = this.box = { ...this.extent(lines), width, height, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
      this.x = (x) => MARGIN.left + (x - box.x0) / (box.x1 - box.x0) * (box.right - MARGIN.left);
      this.y = (y) => box.bottom - ((this.log ? Math.log10(y) : y) - box.y0) / (box.y1 - box.y0) * (box.bottom - MARGIN.top);
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.spec.title });
      this.frame(svg, axis);
      const clip = make("clipPath", { id: `clip-${this.spec.id}` }, svg);
      make("rect", { x: MARGIN.left, y: MARGIN.top - 2, width: box.right - MARGIN.left, height: box.bottom - MARGIN.top + 4 }, clip);
      const inside = make("g", { "clip-path": `url(#clip-${this.spec.id})` }, svg);
      const order = { seed: 0, reference: 1, center: 2 };
      const sorted = [...lines].sort((a, b) => (order[a.role] ?? 0) - (order[b.role] ?? 0));
      for (const line of sorted) this.band(inside, line);
      this.paths = new Map();
      for (const line of sorted) this.paths.set(line, this.line(inside, line));
      if (!lines.some((line) => line.views[this.axis].x.length)) {
        const text = make("text", { x: width / 2, y: height / 2 - 10, "text-anchor": "middle", class: "empty" }, svg);
        text.textContent = this.spec.lines.length ? "everything is hidden" : "no values";
      }
      this.cursor = make("line", { class: "cursor", y1: MARGIN.top, y2: box.bottom, visibility: "hidden" }, svg);
      this.chosen = make("rect", { class: "chosen", y: MARGIN.top, height: box.bottom - MARGIN.top, visibility: "hidden" }, svg);
      if (this.svg) this.svg.replaceWith(svg); else this.place.prepend(svg);
      this.svg = svg;
      this.reset.hidden = !state.range[this.axis];
    }
    frame(svg, axis) {
      const { x0, x1, y0, y1, right, bottom, width } = this.box;
      const marks = this.log ? decades(y0, y1) : ticks(y0, y1, 5);
      const texts = tickTexts(this.log ? marks.map((mark) => 10 ** mark) : marks);
      for (const [place, mark] of marks.entries()) {
        const y = bottom - (mark - y0) / (y1 - y0) * (bottom - MARGIN.top);
        make("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }, svg);
        make("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, svg).textContent = texts[place];
      }
      make("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, svg);
      const named = axis.ticks;
      const at = named ? named.map((_, i) => i) : axis.log ? decades(x0, x1) : ticks(x0, x1, Math.max(2, Math.floor((right - MARGIN.left) / 80)));
      const names = named || tickTexts(axis.log ? at.map((mark) => 10 ** mark) : at);
      for (const [place, mark] of at.entries()) {
        if (mark < x0 || mark > x1) continue;
        const label = names[place];
        const x = this.x(mark);
        make("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, svg);
        const anchor = !named && x > right - 12 ? "end" : "middle";
        make("text", { x: anchor === "end" ? right + 6 : x, y: bottom + 16, "text-anchor": anchor }, svg).textContent = label;
      }
      make("text", { x: (MARGIN.left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, svg).textContent = axis.label;
    }
    colour(line) {
      const mix = line.shade || 0;
      const lifted = `color-mix(in oklab, ${line.colour}, white var(--lift))`;
      return mix ? `color-mix(in oklab, ${lifted} ${100 - Math.abs(mix)}%, var(${mix > 0 ? "--paper" : "--ink"}))` : lifted;
    }
    band(parent, line) {
      const view = line.views[this.axis];
      if (!view.low || line.role === "points") return;
      let part = [], d = "";
      const close = () => {
        if (part.length === 1) {  // of one value a bar
          const [i] = part, x = this.x(view.x[i]), high = this.y(view.high[i]), low = this.y(view.low[i]);
          d += `M${(x - 4).toFixed(1)},${high.toFixed(1)}h8V${low.toFixed(1)}h-8Z`;
        } else if (part.length) {
          d += "M" + part.map((i) => `${this.x(view.x[i]).toFixed(1)},${this.y(view.high[i]).toFixed(1)}`).join("L") + "L" +
            [...part].reverse().map((i) => `${this.x(view.x[i]).toFixed(1)},${this.y(view.low[i]).toFixed(1)}`).join("L") + "Z";
        }
        part = [];
      };
      view.x.forEach((_, i) => {
        if (this.usable(view.low[i]) && this.usable(view.high[i])) part.push(i); else close();
      });
      close();
      if (d) make("path", { class: "band", d, style: `fill:${this.colour(line)}` }, parent);
    }
    usable(y) { return y !== null && y !== undefined && (!this.log || y > 0); }
    line(parent, line) {
      const view = line.views[this.axis];
      const group = make("g", { class: `curve ${line.role}`, "data-key": line.key }, parent);
      const colour = this.colour(line);
      if (line.role === "points") {
        view.x.forEach((x, i) => {
          if (!this.usable(view.y[i])) return;
          if (view.low && this.usable(view.low[i])) {
            make("line", { x1: this.x(x), x2: this.x(x), y1: this.y(view.low[i]), y2: this.y(view.high[i]),
              style: `stroke:${colour};stroke-width:1.5` }, group);
          }
          const shape = line.mark === "cross"
            ? make("path", { d: `M${this.x(x) - 3},${this.y(view.y[i]) - 3}l6,6m0,-6l-6,6`, style: `stroke:${colour};stroke-width:1.6;fill:none` }, group)
            : make("path", { d: spot(line.dash, this.x(x), this.y(view.y[i]), 4), style: `fill:${colour};opacity:.85` }, group);
          make("title", {}, shape).textContent = `${(line.labels && line.labels[i]) || line.name}: ${told(view.y[i])}`;
        });
        return group;
      }
      let d = "", pen = false, points = 0;
      const alone = [];
      view.x.forEach((x, i) => {
        const y = view.y[i];
        if (!this.usable(y)) { pen = false; return; }
        d += `${pen ? "L" : "M"}${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`;
        if (!pen && !this.usable(view.y[i + 1])) {  // one value between two gaps is a dot
          d += "h.01"; alone.push([this.x(x), this.y(y)]);
        }
        pen = true; points++;
      });
      if (!points) return group;
      const thin = line.role === "seed" && this.spec.lines.some((other) => other.role === "center");
      const style = `stroke:${colour};stroke-width:${line.role === "center" ? 2.2 : thin ? 1 : 1.4};` +
        `stroke-dasharray:${(line.dash || []).join(" ") || "none"};opacity:${thin ? 0.5 : 1}`;
      make("path", { class: "line", d, style }, group);
      if (alone.length) {
        const r = alone.length > 20 ? 1.5 : thin ? 2.5 : 3.5;
        const d = alone.map(([x, y]) => spot(line.dash, x, y, r)).join("");
        make("path", { class: "dots", d, style: `fill:${colour};opacity:${thin ? 0.5 : 1}` }, group);
      }
      return group;
    }
    watch() {
      let start = null;
      const at = (event) => {
        const bounds = this.svg.getBoundingClientRect();
        const scale = this.box.width / bounds.width;
        const x = Math.min(Math.max((event.clientX - bounds.left) * scale, MARGIN.left), this.box.right);
        const value = this.box.x0 + (x - MARGIN.left) / (this.box.right - MARGIN.left) * (this.box.x1 - this.box.x0);
        return { x, y: (event.clientY - bounds.top) * scale, value };
      };
      this.place.addEventListener("pointerdown", (event) => { if (event.button === 0 && this.box) start = at(event); });
      this.place.addEventListener("pointermove", (event) => {
        if (!this.box) return;
        const now = at(event);
        if (start && Math.abs(now.x - start.x) > 4) {
          if (!this.place.hasPointerCapture(event.pointerId)) this.place.setPointerCapture(event.pointerId);
          this.chosen.setAttribute("x", Math.min(start.x, now.x));
          this.chosen.setAttribute("width", Math.abs(now.x - start.x));
          this.chosen.setAttribute("visibility", "visible");
        }
        this.hover(now);
      });
      const leave = () => { if (!start) this.hover(null); };
      this.place.addEventListener("pointerleave", leave);
      this.place.addEventListener("pointercancel", () => { start = null; this.draw(); this.hover(null); });
      this.place.addEventListener("pointerup", (event) => {
        const from = start; start = null;
        if (!from) return;
        this.chosen.setAttribute("visibility", "hidden");
        const to = at(event);
        if (Math.abs(to.x - from.x) > 8) zoom(this.axis, [Math.min(from.value, to.value), Math.max(from.value, to.value)]);
        if (event.pointerType !== "mouse") this.hover(null);
      });
      this.place.addEventListener("dblclick", () => zoom(this.axis, null));
    }
    hover(point) {
      light(null);
      this.tip.hidden = true;
      this.cursor.setAttribute("visibility", "hidden");
      if (!point) return;
      const rows = [];
      for (const line of this.visible()) {
        const view = line.views[this.axis];
        if (!view.x.length) continue;
        const index = line.role === "points"
          ? view.x.reduce((best, x, i) => Math.abs(x - point.value) < Math.abs(view.x[best] - point.value) ? i : best, 0)
          : nearest(view.x, point.value);
        const gap = view.x.length > 1 ? (view.x[view.x.length - 1] - view.x[0]) / (view.x.length - 1) * 2 : Infinity;
        const y = view.y[index];
        if (!this.usable(y) || Math.abs(view.x[index] - point.value) > Math.max(gap, 0)) continue;
        rows.push({ line, x: view.x[index], y, low: view.low && view.low[index], high: view.high && view.high[index],
          distance: Math.abs(this.y(y) - point.y) });
      }
      if (!rows.length) return;
      const closest = rows.reduce((a, b) => (b.distance < a.distance ? b : a));
      light(closest.line.key);
      const axis = this.spec.axes[this.axis];
      this.tip.replaceChildren();
      const value = axis.log ? 10 ** closest.x : closest.x;
      html("b", axis.ticks ? axis.ticks[closest.x] ?? told(value) : `${axis.label} ${told(value)}`, this.tip);
      rows.sort((a, b) => b.y - a.y);
      const kept = rows.length > 9 ? [...rows].sort((a, b) => a.distance - b.distance).slice(0, 8).sort((a, b) => b.y - a.y) : rows;
      for (const row of kept) {
        const entry = html("div", null, this.tip);
        html("i", null, entry).style.background = this.colour(row.line);
        const name = html("span", row.line.name, entry);
        if (row === closest) name.style.fontWeight = "600";
        const spread = row.low !== null && row.low !== undefined ? ` (${told(row.low)} to ${told(row.high)})` : "";
        html("em", told(row.y) + spread, entry);
      }
      if (kept.length < rows.length) html("div", `and ${rows.length - kept.length} more`, this.tip).className = "soft";
      const x = this.x(closest.x);
      this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x);
      this.cursor.setAttribute("visibility", "visible");
      this.tip.hidden = false;
      const scale = this.place.clientWidth / this.box.width, width = this.tip.offsetWidth;
      const left = x * scale + 14 + width > this.place.clientWidth ? x * scale - width - 14 : x * scale + 14;
      this.tip.style.left = `${Math.max(left, 0)}px`; this.tip.style.top = `${MARGIN.top + 4}px`;
    }
  }

  function redraw() { for (const chart of charts) chart.draw(); }
  function zoom(axis, range) {
    if (range) state.range[axis] = range; else delete state.range[axis];
    redraw();
  }
  function light(key) {
    if (state.lit === key) return;
    state.lit = key;
    for (const chart of charts) {
      for (const [line, node] of chart.paths || []) {
        const path = node.querySelector(".line");
        if (!path) continue;
        const usual = path.dataset.width || path.style.strokeWidth, faint = path.dataset.opacity || path.style.opacity;
        path.dataset.width = usual; path.dataset.opacity = faint;
        path.style.strokeWidth = line.key === key ? Math.max(Number(usual) + 0.8, 2) : usual;
        path.style.opacity = line.key === key ? 1 : faint;
      }
    }
  }

  function press(button, pressed) { button.setAttribute("aria-pressed", String(pressed)); }
  function controls() {
    for (const button of document.querySelectorAll("[data-axis]")) {
      button.addEventListener("click", () => {
        state.axis = button.dataset.axis;
        for (const other of document.querySelectorAll("[data-axis]")) press(other, other.dataset.axis === state.axis);
        redraw();
      });
    }
    for (const button of document.querySelectorAll("[data-toggle]")) {
      const key = button.dataset.toggle;
      button.addEventListener("click", () => {
        if (state.hidden.has(key)) state.hidden.delete(key); else state.hidden.add(key);
        for (const other of document.querySelectorAll("[data-toggle]")) {
          if (other.dataset.toggle === key) press(other, !state.hidden.has(key));
        }
        redraw();
      });
      button.addEventListener("pointerenter", () => light(key));
      button.addEventListener("pointerleave", () => light(null));
    }
    for (const button of document.querySelectorAll("[data-seeds]")) {
      state.seeds = button.getAttribute("aria-pressed") === "true";
      button.addEventListener("click", () => { state.seeds = !state.seeds; press(button, state.seeds); redraw(); });
    }
    const first = document.querySelector("[data-axis][aria-pressed=true]");
    if (first) state.axis = first.dataset.axis;
  }

  function sorting() {
    for (const head of document.querySelectorAll("th[data-sort]")) {
      head.tabIndex = 0;
      const act = () => {
        const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
        const down = head.getAttribute("aria-sort") === "descending" || !head.classList.contains("number") && !head.hasAttribute("aria-sort");
        for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "ascending" : "descending");
        const worth = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const number = (row) => (worth(row) === "" ? NaN : Number(worth(row)));
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [number(a), number(b)];
          if (Number.isNaN(x) || Number.isNaN(y)) {
            if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
            return worth(a).localeCompare(worth(b)) * (down ? 1 : -1);
          }
          return down ? x - y : y - x;
        });
        body.append(...rows);
      };
      head.addEventListener("click", act);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") act(); });
    }
  }

  function theme() {
    const button = document.querySelector(".theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    try {
      const kept = localStorage.getItem("labrl-theme");
      if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
    } catch { /* a file may be refused storage; then the choice lasts as long as the page */ }
    button.hidden = false;
    button.addEventListener("click", () => {
      const chosen = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = chosen;
      try { localStorage.setItem("labrl-theme", chosen); } catch { /* as above */ }
      name();
    });
    dark.addEventListener("change", name);
    name();
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const pre = button.nextElementSibling;
      navigator.clipboard?.writeText(pre.textContent).then(() => { button.textContent = "copied"; }, () => {});
    });
  }
  addEventListener("beforeprint", () => { for (const node of document.querySelectorAll("details")) node.open = true; });
  theme();
  controls();
  sorting();
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    charts.push(new Chart(figure, specs[figure.dataset.chart]));
  }
  redraw();
})();
