// Brings what the server tells onto the page.

import { Columns, Heat, Lines, cursor, drawn, element, onCursor } from "./charts.js";
import { Controls } from "./controls.js";
import { bytes, celsius, clock, count, digits, lane, percent } from "./format.js";
import { Stream } from "./stream.js";

const $ = (id) => document.getElementById(id);
const THEMES = ["system", "light", "dark"];
const LEAST_S = 60;
const SETTINGS = { theme: "sanderling-theme", minutes: "sanderling-minutes" };
const WORDS = {
  switched: ["Switched", "good"], "guard-tripped": ["Guard tripped", "wrong"], "breaker-opened": ["Breaker opened", "wrong"],
  "batch-failed": ["Batch failed", "wrong"], "load-failed": ["Load failed", "wrong"], "shadow-failed": ["Shadow run failed", "wrong"],
  "model-released": ["Released", ""], "tensor-pool-released": ["Buffers released", ""], "memory-short": ["Memory short", "wrong"],
  "memory-recovered": ["Memory recovered", "good"], "sensor-lost": ["Sensor lost", "wrong"], "sensor-frozen": ["Sensor frozen", "wrong"],
  "sensor-back": ["Sensor back", "good"], "temperature-unknown": ["No temperature", "wrong"], "device-missing": ["Device missing", "wrong"],
  "plan-stale": ["Plan is stale", "wrong"], "guard-limited": ["Guard limited", ""],
};

let minutes = Number(localStorage.getItem(SETTINGS.minutes)) || 5;
let waiting = false;
let shownEvents = "";

const stream = new Stream(changed);
const controls = new Controls();
const heat = new Heat(plot("heat"), "Devices and temperatures");
const requests = new Lines(plot("requests"), "Requests a second");
const latency = new Lines(plot("latency"), "Latency in milliseconds");
const queue = new Lines(plot("queue"), "Waiting requests");
const batches = new Columns(plot("batches"), "Requests by batch size");

function plot(id) {
  return document.querySelector(`#${id} .plot`);
}

function changed() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    render();
  });
}

function render() {
  renderStatus();
  if (!stream.setup) return;
  renderModels();
  const to = stream.samples.at(-1)?.at_s ?? Date.now() / 1000;
  const from = Math.max(to - 60 * minutes, Math.min(stream.samples[0]?.at_s ?? to, to - LEAST_S));
  const samples = stream.samples.filter((sample) => sample.at_s >= from - 2);
  const seen = at(samples, cursor());
  const span = { from, to };
  renderTiles(samples);
  renderHeat(samples, seen, span);
  renderLines(samples, seen, span);
  renderBatches(samples);
  renderMemory(seen);
  renderEvents();
  controls.show(stream.setup);
}

function renderStatus() {
  const [state, text] = !stream.heard || !stream.setup ? ["waiting", "Connecting"]
    : !stream.isLive ? ["lost", "Disconnected, trying again"]
    : !stream.setup.models.length ? ["unready", "Live, no model yet"]
    : !stream.setup.is_ready ? ["unready", "Live, not ready"] : ["live", "Live"];
  document.body.dataset.state = state;
  $("status").dataset.state = state;
  const words = $("status").lastElementChild;
  if (words.textContent !== text) words.textContent = text;
}

function renderModels() {
  const select = $("model");
  const wanted = ["", ...stream.setup.models.map((model) => model.key)];
  if (wanted.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const kept = select.value;
  select.replaceChildren(...wanted.map((key) => element("option", { value: key }, key ? label(key) : "All models")));
  if (wanted.includes(kept)) select.value = kept;
}

function label(key) {
  const model = stream.setup.models.find((model) => model.key === key);
  const alone = model && stream.setup.models.filter((other) => other.name === model.name).length === 1;
  return model ? (alone ? model.name : `${model.name} v${model.version}`) : key;
}

function chosen() {
  const key = $("model").value;
  return key ? stream.setup.models.filter((model) => model.key === key) : stream.setup.models;
}

// The traffic of a sample: of the chosen model, or of all.
function traffic(sample) {
  const key = $("model").value;
  return (key ? sample?.models?.[key] : sample?.total) ?? {};
}

function at(samples, time) {
  if (time === null) return samples.at(-1);
  return samples.reduce((best, sample) => (!best || Math.abs(sample.at_s - time) < Math.abs(best.at_s - time) ? sample : best), undefined);
}

function recent(samples, pick, count = 10) {
  const values = samples.slice(-count).map((sample) => pick(traffic(sample))).filter((value) => value !== null && value !== undefined);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function renderTiles(samples) {
  const now = traffic(samples.at(-1));
  set("tile-requests", digits(now.requests ?? 0));
  const written = recent(samples, (part) => part.tokens);
  set("note-requests", `${digits(recent(samples, (part) => part.requests) ?? 0)} /s over 10 s${written === null ? "" : `, ${digits(written)} tokens/s`}`);
  set("tile-p50", digits(now.p50_ms));
  set("note-p50", `${digits(recent(samples, (part) => part.p50_ms))} ms over 10 s`);
  set("tile-p99", digits(now.p99_ms));
  set("note-p99", `p95 ${digits(now.p95_ms)} ms`);
  set("tile-waiting", count(now.waiting ?? 0));
  set("note-waiting", `${count(Math.max(0, ...samples.map((sample) => traffic(sample).waiting ?? 0)))} at most in view`);
  set("tile-failed", digits(now.failed ?? 0));
  const share = samples.reduce((sum, sample) => sum + (traffic(sample).failed ?? 0), 0) / Math.max(samples.reduce((sum, sample) => sum + (traffic(sample).requests ?? 0), 0), 1e-9);
  set("note-failed", `${percent(Math.min(share, 1))} in view`);
  $("tile-failed").closest(".tile").classList.toggle("bad", (now.failed ?? 0) > 0);
  const used = chosen().map((model) => samples.at(-1)?.models?.[model.key]?.lane).filter(Boolean).map(lane);
  const places = [...new Set(used.map((place) => `${place.device} · ${place.precision}`))];
  set("tile-lane", places.length > 2 ? `${new Set(used.map((place) => place.device)).size} devices` : places.join(", ") || "–");
  set("note-lane", [...new Set(used.map((place) => place.engine))].join(", "));
}

function renderHeat(samples, seen, span) {
  const devices = stream.setup.devices;
  const css = Object.fromEntries(devices.map((device, index) => [device.name, `series${index % 7}`]));
  const keys = new Set(chosen().map((model) => model.key));
  const switches = stream.events.filter((event) => event.kind === "switched" && event.at_s >= span.from && event.at_s <= span.to);
  const rows = chosen().map((model) => {
    const bands = [];
    for (const sample of samples) {
      const name = sample.models?.[model.key]?.lane;
      if (!name) continue;
      const last = bands.at(-1);
      if (last && last.lane === name && sample.at_s - last.to < 3.5) last.to = sample.at_s;
      else {
        const place = lane(name);
        const from = last && sample.at_s - last.to < 3.5 ? last.to : Math.max(sample.at_s - 1, span.from);
        const why = switches.filter((event) => event.model === model.key && Math.abs(event.at_s - sample.at_s) < 2).at(-1)?.reason;
        bands.push({ lane: name, from, to: sample.at_s, css: css[place.device] ?? "series6", text: `${place.device} · ${place.precision}`, short: place.device, why });
      }
    }
    return { name: label(model.key), bands };
  });
  const used = new Set(chosen().flatMap((model) => model.lanes.map((name) => lane(name).device)));
  const shown = devices.filter((device) => used.has(device.name)).map((device) => ({
    name: device.name,
    css: css[device.name],
    now: celsius(seen?.devices?.[device.name]?.temperature_c),
    busy: seen?.devices?.[device.name]?.busy,
    points: samples.map((sample) => [sample.at_s, sample.devices?.[device.name]?.temperature_c]),
    limits: device.leave_c === null ? [] : [
      { at: device.leave_c, text: `${device.name} is left at ${device.leave_c} °C` },
      { at: device.return_c, text: `${device.name} returns at ${device.return_c} °C`, back: true },
    ],
  }));
  const marks = switches.filter((event) => !event.model || keys.has(event.model));
  const warm = shown.some((device) => device.points.some(([, value]) => value !== null && value !== undefined));
  heat.place.classList.toggle("cold", !warm && rows.length < 3);
  heat.update({ ...span, warm, rows, devices: shown, switches: marks.map((event) => ({ at: event.at_s, text: `${clock(event.at_s)} ${what(event)}: ${event.reason}` })) });
  legend("heat", shown.map((device) => [device.name, device.css, `${device.now === "–" ? "" : `${device.now}, `}${device.busy === undefined ? "–" : `${Math.round(100 * device.busy)} % busy`}`, "wide"]));
}

function renderLines(samples, seen, span) {
  const points = (pick) => samples.map((sample) => [sample.at_s, pick(traffic(sample))]);
  const now = traffic(seen);
  const failing = samples.some((sample) => traffic(sample).failed > 0);
  const empty = "No requests in this time";
  const flow = [{ name: "all", css: "mark", filled: true, now: digits(now.requests ?? 0), points: points((part) => part.requests) }];
  if (failing) flow.push({ name: "failed", css: "bad", now: digits(now.failed ?? 0), points: points((part) => part.failed) });
  requests.update({ ...span, lines: flow, least: 10, empty: "Waiting for the first second" });
  legend("requests", flow.map((line) => [line.name, line.css, `${line.now} /s`]));
  const times = ["p99", "p95", "p50"].map((name) => ({ name, css: name, now: `${digits(now[`${name}_ms`])} ms`, points: points((part) => part[`${name}_ms`]) }));
  latency.update({ ...span, lines: times, empty });
  legend("latency", times.toReversed().map((line) => [line.name, line.css, line.now]));
  const line = { name: "waiting", css: "mark", filled: true, now: count(now.waiting ?? 0), points: points((part) => part.waiting) };
  queue.update({ ...span, lines: [line], least: 4, empty });
  legend("queue", [["waiting", "mark", line.now]]);
}

function renderBatches(samples) {
  const counts = new Map();
  for (const sample of samples)
    for (const model of chosen())
      for (const [rows, count] of Object.entries(sample.models?.[model.key]?.batches ?? {})) counts.set(Number(rows), (counts.get(Number(rows)) ?? 0) + count);
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const few = grouped(counts);
  batches.update({
    columns: few.map(([name, requests]) => ({ name, value: requests, text: requests / total < 0.005 ? "< 1 %" : `${Math.round((100 * requests) / total)} %`, tip: `${name} ${name === "1" ? "row" : "rows"}: ${count(requests)} requests` })),
    empty: "No requests in this time",
  });
  legend("batches", [["rows a call", "", total ? digits([...counts].reduce((sum, [rows, count]) => sum + rows * count, 0) / total) : "–"]]);
}

function grouped(counts) {
  const sorted = [...counts].sort(([one], [other]) => one - other);
  if (sorted.length <= 8) return sorted.map(([rows, count]) => [String(rows), count]);
  const ranges = new Map();
  for (const [rows, count] of sorted) {
    const low = 2 ** Math.floor(Math.log2(rows));
    ranges.set(low, (ranges.get(low) ?? 0) + count);
  }
  return [...ranges].map(([low, count]) => [low > 2 ? `${low}–${2 * low - 1}` : String(low), count]);
}

function renderMemory(seen) {
  const limit = stream.setup.memory_limit_bytes;
  const bars = chosen().map((model) => [label(model.key), seen?.models?.[model.key]?.bytes ?? 0, "mark", model.is_loaded ? "" : ", not loaded"]);
  if (seen?.process_bytes) bars.push(["this process", seen.process_bytes, "faint", ""]);
  const most = Math.max(1, ...bars.map(([, size]) => size));
  const place = document.querySelector("#memory .bars");
  place.replaceChildren(...bars.map(([name, size, css, note]) => {
    const track = drawn("svg", { class: `track ${css}`, "aria-hidden": "true" }, drawn("rect", { width: `${((100 * size) / most).toFixed(1)}%`, height: "8", rx: "4" }));
    return element("div", { class: "bar" }, element("span", { class: "name" }, name + note), element("b", {}, bytes(size)), track);
  }));
  legend("memory", seen?.memory_bytes ? [["machine", "", limit ? `${bytes(seen.memory_bytes)} of ${bytes(limit)}` : bytes(seen.memory_bytes)]] : []);
}

function renderEvents() {
  const key = $("model").value;
  const events = stream.events.filter((event) => !key || !event.model || event.model === key).slice(-100).reverse();
  const drawnNow = `${key} ${events.length} ${events[0]?.at_s} ${events[0]?.subject}`;
  if (drawnNow === shownEvents) return;
  shownEvents = drawnNow;
  set("event-count", events.length ? `${events.length}${events.length === 100 ? " last" : ""}` : "");
  $("events").replaceChildren(...(events.length ? events.map(eventItem) : [element("li", { class: "empty" }, "Nothing was switched, released or given up so far.")]));
}

function eventItem(event) {
  const [words, kind] = WORDS[event.kind] ?? [event.kind.replaceAll("-", " "), ""];
  const tag = element("span", { class: `tag ${kind}` }, words);
  const time = element("time", { datetime: new Date(event.at_s * 1000).toISOString() }, clock(event.at_s));
  return element("li", { "data-kind": event.kind }, time, element("span", { class: "what" }, tag, what(event)), element("span", { class: "why" }, event.reason));
}

// A model's name stands before what happened to it.
function what(event) {
  const subject = event.subject.replace(/^[^ ]+: /, "");
  return event.model ? `${label(event.model)}: ${subject}` : event.subject;
}

function legend(id, entries) {
  const list = document.querySelector(`#${id} .legend`);
  const text = JSON.stringify(entries);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...entries.map(([name, css, value]) => element("li", {}, css ? element("span", { class: `key ${css}` }) : null, `${name} `, element("b", {}, value))));
}

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function showTheme() {
  const wanted = localStorage.getItem(SETTINGS.theme) ?? "system";
  const dark = wanted === "dark" || (wanted === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = { system: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[wanted];
  $("theme").setAttribute("aria-label", `Colours: ${wanted === "system" ? "as the system" : wanted}`);
}

function showMinutes() {
  for (const button of document.querySelectorAll("[data-minutes]")) button.setAttribute("aria-pressed", String(Number(button.dataset.minutes) === minutes));
}

$("theme").addEventListener("click", () => {
  const now = localStorage.getItem(SETTINGS.theme) ?? "system";
  localStorage.setItem(SETTINGS.theme, THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
for (const button of document.querySelectorAll("[data-minutes]"))
  button.addEventListener("click", () => {
    minutes = Number(button.dataset.minutes);
    localStorage.setItem(SETTINGS.minutes, String(minutes));
    showMinutes();
    changed();
  });
$("model").addEventListener("change", changed);
onCursor(changed);
showTheme();
showMinutes();
