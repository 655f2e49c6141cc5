// What curves are measured and marked with: numbers as text, ticks, shapes. Knows no page.
"use strict";
const scales = (() => {
  // A value that stands alone: no dash can be seen there, so each dash has a shape.
  function spot(dash, x, y, r) {
    const [at, w] = [`M${x.toFixed(1)},${y.toFixed(1)}`, (0.89 * r).toFixed(1)];
    switch ((dash || []).join(" ")) {
      case "5 2": return `${at}m-${w},-${w}h${2 * w}v${2 * w}h-${2 * w}z`;
      case "1.5 1.5": return `${at}m0,-${r}l${r},${1.7 * r}h-${2 * r}z`;
      case "6 1.5 1.5 1.5": return `${at}m0,-${1.2 * r}l${1.2 * r},${1.2 * r}l-${1.2 * r},${1.2 * r}l-${1.2 * r},-${1.2 * r}z`;
      default: return `${at}m-${r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 -${2 * r},0z`;
    }
  }

  function told(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e7) return Number((value / 1e6).toPrecision(4)) + "M";
    if (size >= 1e5) return Number((value / 1e3).toPrecision(4)) + "k";
    if (size !== 0 && size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(size >= 1e3 ? 5 : 4)));
  }

  // Of ticks together, so that all have the same unit, and as many digits as tell them apart.
  function tickTexts(marks) {
    const largest = Math.max(...marks.map(Math.abs));
    const [size, letter] = largest >= 1e6 ? [1e6, "M"] : largest >= 1e4 ? [1e3, "k"] : [1, ""];
    const told = (mark, more) => {
      const value = Number((mark / size).toPrecision(5 + more));
      if (value === 0) return "0";
      return (Math.abs(value) < 1e-4 ? value.toExponential(more) : String(value)) + letter;
    };
    let texts = [];
    for (let more = 0; more < 10; more++) {
      texts = marks.map((mark) => told(mark, more));
      if (new Set(texts).size === marks.length) break;
    }
    return texts;
  }

  function ticks(low, high, wanted) {
    const rough = (high - low) / Math.max(wanted, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const rest = rough / power;
    const step = (rest >= 7.5 ? 10 : rest >= 3.5 ? 5 : rest >= 1.5 ? 2 : 1) * power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  }
  function decades(low, high) {
    const found = [];
    for (let e = Math.ceil(low - 1e-9); e <= high + 1e-9; e++) found.push(e);
    return found.length > 1 ? found.filter((_, i) => i % Math.ceil(found.length / 7) === 0) : ticks(low, high, 3);
  }

  // Where in the rising list `xs` the value nearest to x stands.
  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }

  return { decades, nearest, spot, tickTexts, ticks, told };
})();
