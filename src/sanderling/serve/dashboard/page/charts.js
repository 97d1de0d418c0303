// Pictures as plain SVG in the page's colours. All time charts share one gutter and one cursor.

import { clock } from "./format.js";

const LEFT = 46, RIGHT = 14, TOP = 10, FLOOR = 24;
const GAP_S = 3.5;
const PEAKS = 2.5; // times what 95 % stay below: higher ones are cut off, and said to be, so that the rest can be read
const pointed = { at: null, listeners: new Set() };
let numbers = 0;

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function cursor() {
  return pointed.at;
}

export function onCursor(listener) {
  pointed.listeners.add(listener);
}

function point(at) {
  pointed.at = at;
  for (const listener of pointed.listeners) listener();
}

export function niceEnd(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].map((factor) => power * factor).find((end) => end >= value * 0.999);
}

function steps(low, high, most) {
  const step = niceStep((high - low) / most);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

function niceStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => power * factor).find((step) => step >= value * 0.999);
}

// The value that so much of all is not above.
function share(values, part) {
  return values.toSorted((one, other) => one - other)[Math.floor(part * (values.length - 1))] ?? 0;
}

function plain(value) {
  return Math.abs(value) >= 1000 ? value.toLocaleString("en") : String(Number(value.toPrecision(6)));
}

// The place that a picture fills; it is drawn anew when its size changes.
class Plot {
  constructor(place, draw) {
    this.place = place;
    this.draw = draw;
    this.svg = drawn("svg", { role: "img", tabindex: "0" });
    place.replaceChildren(this.svg);
    new ResizeObserver(() => this.show()).observe(place);
  }

  show() {
    this.width = this.place.clientWidth;
    this.height = this.place.clientHeight;
    if (this.width < 60) return;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.draw();
  }

  fill(label, parts) {
    this.svg.setAttribute("aria-label", label);
    this.svg.replaceChildren(...parts);
  }

  nothing(text) {
    return drawn("text", { class: "nothing", x: (LEFT + this.width - RIGHT) / 2, y: this.height / 2, "text-anchor": "middle" }, text);
  }
}

// Shared by everything with time on its horizontal axis.
class OverTime extends Plot {
  constructor(place, name) {
    super(place, () => this.redraw());
    this.name = name;
    this.view = null;
    this.clip = `clip${numbers++}`;
    this.svg.addEventListener("pointermove", (event) => this.at(event));
    this.svg.addEventListener("pointerleave", () => point(null));
    this.svg.addEventListener("keydown", (event) => this.step(event));
    this.svg.addEventListener("blur", () => point(null));
  }

  update(view) {
    this.view = view;
    this.show();
  }

  x(at) {
    const { from, to } = this.view;
    return LEFT + ((at - from) / (to - from)) * (this.width - LEFT - RIGHT);
  }

  at(event) {
    if (!this.view) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const { from, to } = this.view;
    point(share < 0 || share > 1 ? null : from + share * (to - from));
  }

  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") point(null);
    if (!move || !this.view) return;
    event.preventDefault();
    const { from, to } = this.view;
    const by = event.shiftKey ? 10 : 1;
    point(Math.min(Math.max((pointed.at ?? to) + move * by, from), to));
  }

  clipping(top, floor) {
    const box = drawn("rect", { x: LEFT, y: top, width: Math.max(this.width - LEFT - RIGHT, 0), height: Math.max(floor - top, 0) });
    return drawn("defs", {}, drawn("clipPath", { id: this.clip }, box));
  }

  time(floor) {
    const { from, to } = this.view;
    const span = to - from;
    const wide = this.width - LEFT - RIGHT;
    const step = [10, 30, 60, 120, 300].find((step) => (step / span) * wide >= 76) ?? 600;
    const parts = [drawn("line", { class: "base", x1: LEFT, x2: this.width - RIGHT, y1: floor, y2: floor })];
    for (let ago = 0; ago <= span + 0.5; ago += step) {
      const text = ago === 0 ? "now" : ago % 60 ? `−${ago} s` : `−${ago / 60} min`;
      const x = this.x(to - ago);
      const anchor = ago === 0 ? "end" : x < LEFT + 14 ? "start" : "middle";
      parts.push(drawn("text", { x: x.toFixed(1), y: floor + 17, "text-anchor": anchor }, text));
    }
    return parts;
  }

  levels(low, high, top, floor, most, unit = "") {
    return steps(low, high, most).flatMap((value) => {
      const y = floor - ((value - low) / (high - low)) * (floor - top);
      return [
        drawn("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y.toFixed(1), y2: y.toFixed(1) }),
        drawn("text", { x: LEFT - 8, y: (y + 4).toFixed(1), "text-anchor": "end" }, plain(value) + unit),
      ];
    });
  }

  pieces(points, low, high, top, floor) {
    const found = [];
    let last = -Infinity;
    for (const [at, value] of points) {
      if (value === null || value === undefined) continue;
      if (at - last > this.gap) found.push([]);
      found.at(-1).push([this.x(at), floor - ((Math.min(Math.max(value, low), high) - low) / (high - low)) * (floor - top)]);
      last = at;
    }
    return found;
  }

  curve(points, css, low, high, top, floor) {
    const parts = [];
    for (const piece of this.pieces(points, low, high, top, floor)) {
      const path = piece.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      parts.push(drawn("path", { class: `curve ${css}`, d: piece.length > 1 ? path : `${path}h.1`, "clip-path": `url(#${this.clip})` }));
    }
    return parts;
  }

  area(points, css, low, high, top, floor) {
    return this.pieces(points, low, high, top, floor).map((piece) => {
      const path = piece.map(([x, y]) => `L${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      const d = `M${piece[0][0].toFixed(1)} ${floor}${path}L${piece.at(-1)[0].toFixed(1)} ${floor}z`;
      return drawn("path", { class: `area ${css}`, d, "clip-path": `url(#${this.clip})` });
    });
  }

  hair(top, floor) {
    if (pointed.at === null || !this.view || pointed.at < this.view.from || pointed.at > this.view.to) return [];
    const x = this.x(pointed.at), right = x > this.width - RIGHT - 60;
    const place = { x: (x + (right ? -5 : 5)).toFixed(1), y: top + 10, "text-anchor": right ? "end" : "start" };
    return [
      drawn("line", { class: "cursor", x1: x.toFixed(1), x2: x.toFixed(1), y1: top, y2: floor }),
      drawn("text", { class: "cursor-time", ...place }, clock(pointed.at)),
    ];
  }

  get gap() {
    return GAP_S;
  }
}

// Lines over time. view: {from, to, lines: [{name, css, points, filled}], unit, least, empty}
export class Lines extends OverTime {
  redraw() {
    const view = this.view;
    if (!view) return;
    const floor = this.height - FLOOR;
    const seen = view.lines.flatMap((line) => line.points.map(([, value]) => value)).filter((value) => value !== null && value !== undefined);
    const peak = Math.max(view.least ?? 0, ...seen);
    const high = niceEnd(Math.max(view.least ?? 0, Math.min(peak, PEAKS * share(seen, 0.95)) || peak));
    const some = seen.length > 0;
    const most = Math.max(2, Math.floor((floor - TOP) / 34));
    const lines = view.lines.flatMap((line) => [
      ...(line.filled ? this.area(line.points, line.css, 0, high, TOP, floor) : []),
      ...this.curve(line.points, line.css, 0, high, TOP, floor),
    ]);
    const last = view.lines.map((line) => `${line.name} ${line.now}`).join(", ");
    this.fill(`${this.name}: ${last}`, [
      this.clipping(TOP - 3, floor + 1),
      ...this.levels(0, high, TOP, floor, most),
      ...lines,
      ...this.time(floor),
      ...this.hair(TOP, floor),
      ...(peak > high ? [drawn("text", { class: "limit-name ink", x: LEFT + 6, y: TOP + 10 }, `peaks to ${plain(Math.round(peak))}`)] : []),
      ...(some ? [] : [this.nothing(view.empty)]),
    ]);
  }
}

// Which device ran each model, and below it how warm the devices were.
// view: {from, to, warm, rows: [{name, bands: [{from, to, css, text, why}]}], devices: [{name, css, points, limits}], switches}
export class Heat extends OverTime {
  redraw() {
    const view = this.view;
    if (!view) return;
    const tall = view.rows.length > 4 ? 30 : 38;
    const rowsFloor = TOP + view.rows.length * tall;
    const top = rowsFloor + 20, floor = this.height - FLOOR;
    const parts = [this.clipping(0, floor + 1)];
    if (view.warm && floor - top > 40) parts.push(...this.heat(view, top, floor));
    else if (view.rows.length) parts.push(this.unknown(rowsFloor, floor));
    view.rows.forEach((row, index) => parts.push(...this.bands(row, TOP + index * tall, tall)));
    for (const change of view.switches) {
      const x = this.x(change.at).toFixed(1);
      const tip = drawn("title", {}, change.text);
      parts.push(drawn("line", { class: "switch", x1: x, x2: x, y1: TOP + 14, y2: floor }, tip));
    }
    parts.push(...this.time(floor), ...this.hair(TOP - 4, floor));
    if (!view.rows.length) parts.push(this.nothing("No model is loaded"));
    const places = view.rows.map((row) => `${row.name} on ${row.bands.at(-1)?.text ?? "nothing"}`);
    const heat = view.devices.filter((device) => device.now !== "–").map((device) => `${device.name} ${device.now}`);
    this.fill(`${this.name}: ${[...places, ...heat].join(", ")}`, parts);
  }

  bands(row, y, tall) {
    const high = tall - 20;
    const parts = [
      drawn("text", { class: "row-name", x: LEFT, y: y + 9 }, row.name),
      drawn("rect", { class: "row-back", x: LEFT, y: y + 14, width: Math.max(this.width - LEFT - RIGHT, 0), height: high, rx: 3 }),
    ];
    for (const band of row.bands) {
      const from = Math.max(this.x(band.from), LEFT), to = Math.min(this.x(band.to), this.width - RIGHT);
      if (to - from < 0.2) continue;
      const tip = drawn("title", {}, band.why ? `${band.text}: ${band.why}` : band.text);
      parts.push(drawn("rect", { class: `band ${band.css}`, x: from.toFixed(1), y: y + 14, width: Math.max(to - from - 1, 0.6).toFixed(1), height: high, rx: 3 }, tip));
      const text = [band.text, band.short].find((text) => text.length * 6.6 + 10 < to - from);
      if (text && high >= 14) parts.push(drawn("text", { class: "band-name", x: ((from + to) / 2).toFixed(1), y: y + 14 + high / 2 + 4, "text-anchor": "middle" }, text));
    }
    return parts;
  }

  heat(view, top, floor) {
    const seen = view.devices.flatMap((device) => device.points.map(([, value]) => value).filter((value) => value !== null && value !== undefined));
    const [coldest, hottest] = [Math.min(...seen), Math.max(...seen)];
    const limits = view.devices.flatMap((device) => device.limits.map((limit) => ({ ...limit, css: device.css })));
    const near = limits.filter((limit) => limit.at > coldest - 30 && limit.at < hottest + 45);
    const low = Math.floor((Math.min(coldest, ...near.map((limit) => limit.at)) - 2) / 10) * 10;
    const high = Math.ceil((Math.max(hottest, ...near.map((limit) => limit.at)) + 3) / 10) * 10;
    const parts = this.levels(low, high, top, floor, Math.max(2, Math.floor((floor - top) / 30)), "°");
    const taken = [], names = [];
    for (const limit of near) {
      const y = floor - ((limit.at - low) / (high - low)) * (floor - top);
      parts.push(drawn("line", { class: `limit ${limit.back ? "back" : ""} ${limit.css}`, x1: LEFT, x2: this.width - RIGHT, y1: y.toFixed(1), y2: y.toFixed(1) }));
      if (taken.every((other) => Math.abs(other - y) > 14)) {
        taken.push(y);
        names.push(drawn("text", { class: `limit-name ${limit.css}`, x: LEFT + 6, y: (y - 4).toFixed(1) }, limit.text));
      }
    }
    for (const device of view.devices) parts.push(...this.curve(device.points, device.css, low, high, top, floor));
    return [...parts, ...names];
  }

  unknown(top, floor) {
    return drawn("text", { class: "nothing", x: (LEFT + this.width - RIGHT) / 2, y: (top + floor) / 2 + 4, "text-anchor": "middle" }, "No sensor shows these devices' temperatures");
  }
}

// view: {columns: [{name, value, tip}], empty}
export class Columns extends Plot {
  constructor(place, name) {
    super(place, () => this.redraw());
    this.name = name;
  }

  update(view) {
    this.view = view;
    this.show();
  }

  redraw() {
    const view = this.view;
    if (!view) return;
    const floor = this.height - FLOOR, top = TOP + 14;
    const parts = [drawn("line", { class: "base", x1: 0, x2: this.width, y1: floor, y2: floor })];
    if (!view.columns.length) parts.push(drawn("text", { class: "nothing", x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, view.empty));
    const most = Math.max(1e-9, ...view.columns.map((column) => column.value));
    const wide = Math.min(this.width / Math.max(view.columns.length, 4), 90);
    view.columns.forEach((column, index) => {
      const middle = wide * (index + 0.5), y = floor - (column.value / most) * (floor - top);
      parts.push(
        drawn("rect", { class: "column", x: (middle - wide * 0.32).toFixed(1), y: y.toFixed(1), width: (wide * 0.64).toFixed(1), height: (floor - y).toFixed(1), rx: 3 }, drawn("title", {}, column.tip)),
        drawn("text", { class: "column-number", x: middle.toFixed(1), y: (y - 5).toFixed(1), "text-anchor": "middle" }, column.text),
        drawn("text", { x: middle.toFixed(1), y: floor + 17, "text-anchor": "middle" }, column.name),
      );
    });
    this.fill(`${this.name}: ${view.columns.map((column) => column.tip).join(", ") || view.empty}`, parts);
  }
}
