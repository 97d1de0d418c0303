// Commands to the server, behind its token.

import { element } from "./charts.js";
import { bytes, celsius, count, digits, lane, percent } from "./format.js";

const KEY = "sanderling-token";
const $ = (id) => document.getElementById(id);

export class Controls {
  constructor() {
    this.token = sessionStorage.getItem(KEY);
    this.accepted = false;
    this.setup = null;
    $("unlock").addEventListener("submit", (event) => {
      event.preventDefault();
      this.unlock($("token").value.trim());
    });
    $("lock").addEventListener("click", () => this.lock());
    $("command-model").addEventListener("change", () => this.chosen(true));
    this.button("use", () => this.use());
    this.button("choose", () => this.send("switch", this.model()).then((done) => `The policy chose ${done.lane}.`));
    this.button("load", () => this.send("load", this.model()).then((done) => `${done.lane} is loaded, ${bytes(done.size_bytes)}.`));
    this.button("release", () => this.send("release", this.model()).then((done) => (done.released ? `${bytes(done.released_bytes)} were given back; the next request loads it again.` : "Nothing was released: requests run, or nothing is held.")));
    this.button("take-in", () => this.stored("load"));
    this.button("take-out", () => this.stored("unload"));
    $("repository").addEventListener("toggle", () => $("repository").open && this.attempt(() => this.index()));
    this.button("try", () => this.try());
    this.button("reset", () => this.policy());
    this.button("save", () => this.save());
    $("policy").addEventListener("toggle", () => $("policy").open && !$("policy-text").value && this.attempt(() => this.policy()));
    if (this.token) this.unlock(this.token, true);
  }

  show(setup) {
    const before = JSON.stringify(this.setup?.models.map((model) => [model.key, model.lanes]));
    this.setup = setup;
    if (before !== JSON.stringify(setup.models.map((model) => [model.key, model.lanes]))) this.fillModels();
    this.reveal();
  }

  reveal() {
    $("unlock").hidden = !this.setup || this.accepted;
    $("commands").hidden = !this.setup || !this.accepted;
    $("lock").hidden = !this.accepted;
  }

  fillModels() {
    const select = $("command-model"), kept = select.value;
    select.replaceChildren(...this.setup.models.map((model) => element("option", { value: model.key }, `${model.name}, version ${model.version}`)));
    if (this.setup.models.some((model) => model.key === kept)) select.value = kept;
    this.chosen(select.value !== kept);
  }

  chosen(other) {
    const found = this.found();
    const select = $("command-lane"), kept = select.value;
    select.replaceChildren(...(found?.lanes ?? []).map((name) => element("option", { value: name }, words(name))));
    if (found?.lanes.includes(kept)) select.value = kept;
    if (other) {
      $("policy-text").value = "";
      $("trial").replaceChildren();
      if ($("policy").open && this.accepted) this.attempt(() => this.policy());
    }
  }

  found() {
    return this.setup?.models.find((model) => model.key === $("command-model").value);
  }

  model() {
    const found = this.found();
    if (!found) throw new Error("no model is loaded");
    return { model: found.name, version: found.version };
  }

  async use() {
    const { device, precision } = lane($("command-lane").value);
    const done = await this.send("switch", { ...this.model(), device, precision });
    return `${words(done.lane)} from the next batch on.`;
  }

  async index() {
    const found = await this.ask("/v2/repository/index", { method: "POST" });
    const select = $("stored"), kept = select.value;
    const names = [...new Set(found.map((model) => model.name))];
    const states = (name) => found.filter((model) => model.name === name).map((model) => `${model.version ?? ""} ${(model.state ?? "").toLowerCase()} ${model.reason ?? ""}`.trim()).join("; ");
    select.replaceChildren(...names.map((name) => element("option", { value: name }, `${name}: ${states(name)}`)));
    if (names.includes(kept)) select.value = kept;
    return "";
  }

  async stored(command) {
    const name = $("stored").value;
    if (!name) throw new Error("no model is in the repository");
    await this.ask(`/v2/repository/models/${encodeURIComponent(name)}/${command}`, { method: "POST" });
    await this.index();
    return `${name} was ${command}ed.`;
  }

  async policy() {
    const { model, version } = this.model();
    const query = new URLSearchParams({ model, version });
    $("policy-text").value = (await this.ask(`/v1/control/policy?${query}`)).policy;
    $("trial").replaceChildren();
    return "";
  }

  async try() {
    $("trial").replaceChildren();
    const trial = await this.send("policy/try", { ...this.model(), policy: $("policy-text").value });
    $("trial").replaceChildren(...compared(trial));
    return `Played ${count(trial.requests)} requests of ${digits(trial.seconds)} s again.`;
  }

  async save() {
    const link = element("a", { href: URL.createObjectURL(new Blob([$("policy-text").value], { type: "application/json" })), download: "policy.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return "Start the server with --policy policy.json, or put it into the package with sanderling policy attach.";
  }

  button(id, action) {
    $(id).addEventListener("click", () => this.attempt(action, $(id)));
  }

  async attempt(action, button) {
    if (button) button.disabled = true;
    try {
      this.say(await action());
    } catch (error) {
      this.say(error.message, true);
    } finally {
      if (button) button.disabled = false;
    }
  }

  say(text, wrong = false) {
    $("answer").textContent = text;
    $("answer").classList.toggle("wrong", wrong);
  }

  async unlock(token, quietly = false) {
    this.token = token;
    try {
      await this.ask("/v1/control");
    } catch (error) {
      if (!quietly) this.say(error.message, true);
      return;
    }
    sessionStorage.setItem(KEY, token);
    this.accepted = true;
    $("token").value = "";
    this.say("");
    this.reveal();
  }

  lock() {
    sessionStorage.removeItem(KEY);
    this.token = null;
    this.accepted = false;
    $("policy").open = false;
    $("policy-text").value = "";
    this.say("");
    this.reveal();
  }

  send(command, value) {
    return this.ask(`/v1/control/${command}`, { method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" } });
  }

  async ask(path, options = {}) {
    const headers = { ...options.headers, Authorization: `Bearer ${this.token}` };
    const response = await fetch(path, { ...options, headers }).catch(() => {
      throw new Error("The server does not answer.");
    });
    const value = await response.json().catch(() => ({})); // some commands answer with nothing
    if (response.status === 401 && this.accepted) this.lock();
    if (!response.ok) throw new Error(value.error ?? `The server answered ${response.status}.`);
    return value;
  }
}

function words(name) {
  const { engine, device, precision } = lane(name);
  return `${device}, ${precision} (${engine})`;
}

function compared({ current, proposed, notes }) {
  const devices = [...new Set([...Object.keys(current.device_shares), ...Object.keys(proposed.device_shares)])];
  const warm = devices.filter((device) => device in proposed.highest_c);
  const rows = [
    ["In time", percent, (outcome) => outcome.in_time, 1],
    ["Dropped or refused", count, (outcome) => outcome.dropped, -1],
    ["Latency p50, ms", digits, (outcome) => outcome.p50_ms, -1],
    ["Latency p99, ms", digits, (outcome) => outcome.p99_ms, -1],
    ["Changes of device", count, (outcome) => outcome.switches, 0],
    ...devices.map((device) => [`On ${device}`, percent, (outcome) => outcome.device_shares[device] ?? 0, 0]),
    ...warm.map((device) => [`Highest of ${device}`, celsius, (outcome) => outcome.highest_c[device], 0]),
  ];
  const body = rows.map(([name, format, value, good]) => {
    const [old, other] = [value(current), value(proposed)];
    const better = (other - old) * good;
    const css = format(old) === format(other) || !better ? null : better > 0 ? "better" : "worse";
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, format(old)), element("td", { class: css }, format(other)));
  });
  const head = element("tr", {}, ...["", "in use", "tried"].map((name) => element("th", { scope: "col" }, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  return notes.length ? [table, element("ul", {}, ...notes.map((note) => element("li", {}, note)))] : [table];
}
