// What the server has told: ten minutes of samples, the events, and whether it still talks.

const KEPT_S = 600;
const SILENT_MS = 4000;

export class Stream {
  constructor(changed) {
    this.setup = null;
    this.samples = [];
    this.events = [];
    this.isLive = false;
    this.changed = changed;
    this.heard = 0;
    this.open();
    setInterval(() => this.look(), 1000);
  }

  open() {
    this.source?.close();
    this.source = new EventSource("/v1/live");
    this.source.addEventListener("history", (message) => {
      const value = JSON.parse(message.data);
      this.setup = value.setup;
      this.samples = rows(value.samples);
      this.events = value.events;
      this.hear();
    });
    this.source.addEventListener("snapshot", (message) => {
      const { setup, sample } = JSON.parse(message.data);
      this.setup = setup;
      this.samples.push(sample);
      while (this.samples.length && this.samples[0].at_s < sample.at_s - KEPT_S) this.samples.shift();
      this.hear();
    });
    this.source.addEventListener("happened", (message) => {
      this.events.push(JSON.parse(message.data));
      this.events.splice(0, this.events.length - 200);
      this.hear();
    });
  }

  hear() {
    this.heard = Date.now();
    this.isLive = true;
    this.changed();
  }

  look() {
    const silent = Date.now() - this.heard > SILENT_MS;
    if (silent && this.isLive) {
      this.isLive = false;
      this.changed();
    }
    if (this.source.readyState === EventSource.CLOSED || (silent && Date.now() - this.heard > 5 * SILENT_MS)) {
      this.heard = Date.now() - SILENT_MS - 1;
      this.open();
    }
  }
}

// Columns to objects; the opposite of the server's `columns`.
export function rows(columns) {
  const keys = Object.keys(columns);
  const parts = keys.map((key) => (Array.isArray(columns[key]) ? columns[key] : rows(columns[key])));
  const count = Math.max(0, ...parts.map((part) => part.length));
  return Array.from({ length: count }, (_, at) => Object.fromEntries(keys.map((key, index) => [key, parts[index][at] ?? (Array.isArray(columns[key]) ? null : {})])));
}
