// Placements over time, since the page was opened.

import { draw, setText } from "./dom.js";
import { clock, compact, count, duration } from "./format.js";

const most = 600; // points that are kept; then every second one of the old is left out
const width = 600;
const height = 96;

/** Makes a chart in a <figure> with <svg>, .high, .low, .from, .to and <figcaption>. */
export function chart(figure) {
  let points = []; // {at, value}, at in Unix ms
  const line = draw("path", { class: "line", "vector-effect": "non-scaling-stroke" });
  const svg = figure.querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.append(
    draw("path", { class: "grid", d: `M0 1H${width}M0 ${height - 1}H${width}`, "vector-effect": "non-scaling-stroke" }),
    line,
  );
  const part = (name) => figure.querySelector(name);
  return {
    clear() {
      points = [];
      line.removeAttribute("d");
      svg.removeAttribute("aria-label");
    },
    add(value, at = Date.now()) {
      points.push({ at, value });
      if (points.length > most) points = points.filter((_, i) => i % 2 === 0 || i > most / 2);
      const values = points.map((p) => p.value);
      const least = Math.min(...values);
      const greatest = Math.max(...values);
      const [low, high] = range(least, greatest);
      line.setAttribute("d", path(points, low, high));
      setText(part(".high"), compact(high));
      setText(part(".low"), compact(low));
      setText(part(".from"), clock(points[0].at));
      setText(part(".to"), clock(at));
      svg.setAttribute("aria-label", `Placements: ${count(value)} now, between ${count(least)} and ${count(greatest)} in the last ${duration(at - points[0].at)}`);
    },
  };
}

// range has the line use the height, and does not make a storm of a ripple.
function range(least, greatest) {
  const step = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(10, greatest))) - 1);
  const low = least < 0.8 * greatest ? 0 : Math.floor((least - (greatest - least) / 2 - step) / step) * step;
  return [Math.max(0, low), Math.ceil((greatest + 1) / step) * step];
}

// path goes in steps, for a figure holds until the next one is had, and leaves out
// times in which none was.
function path(points, low, high) {
  const from = points[0].at;
  const span = Math.max(1, points.at(-1).at - from);
  const typical = span / points.length;
  let d = "";
  points.forEach((p, i) => {
    const x = ((p.at - from) / span) * width;
    const y = 2 + (1 - (p.value - low) / (high - low)) * (height - 4);
    const gap = i > 0 && p.at - points[i - 1].at > Math.max(20_000, 4 * typical);
    d += i === 0 || gap ? `M${x.toFixed(1)} ${y.toFixed(1)}` : `H${x.toFixed(1)}V${y.toFixed(1)}`;
  });
  return points.length === 1 ? d + `H${width}` : d;
}
