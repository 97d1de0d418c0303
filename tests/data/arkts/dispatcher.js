// usage: node dispatcher.js ARKTS_FOLDER ETS_FOLDER TRACE   Replays a trace of Python's dispatcher on the module's.
// TRACE is a file: {"rules", "models": [{name, lanes, batching, recovery}], "levels", "steps": [[operation, …]]}.
// Answers a JSON list with what each step gave.
'use strict';
const fs = require('fs');
const path = require('path');

const [arkts, ets, file] = process.argv.slice(2);
require(path.join(arkts, 'load.js'));
const { Dispatcher, Request } = require(path.join(ets, 'dispatcher.ets'));
const { unknownLatency } = require(path.join(ets, 'policy/latency.ets'));

const limit = (value) => (value === 'Infinity' ? Infinity : value);
const numbers = (object) => Object.fromEntries(Object.entries(object).map(([name, value]) => [name, limit(value)]));

const trace = JSON.parse(fs.readFileSync(file, 'utf8'));
const dispatcher = new Dispatcher(trace.rules);
for (const { name, lanes, batching, recovery } of trace.models) {
  dispatcher.addModel(
    name, lanes.map(numbers), lanes.map(unknownLatency), lanes.map(() => batching), recovery, trace.levels,
  );
}

const requests = [];
const dispatches = [];

const operations = {
  submit: (now, model, rows, deadline, priority) => {
    const request = new Request(model, rows, limit(deadline), priority);
    request.id = requests.push(request) - 1;
    return dispatcher.submit(request, now);
  },
  next: (now) => {
    const made = dispatcher.next(now);
    if (made === null) return null;
    dispatches.push(made);
    return [made.model, made.lane, made.device, made.rows, made.callRows, made.requests.map((each) => each.id)];
  },
  complete: (now, index, learn) => dispatcher.complete(dispatches[index], now, learn) ?? null,
  fail: (now, index, hung) => dispatcher.fail(dispatches[index], 'failed', now, hung).map((each) => each.id),
  level: (now, level) => dispatcher.senseLevel(level, now) ?? null,
  presence: (now, device, present) => dispatcher.presence(device, present, now) ?? null,
  pin: (now, model, lane) => dispatcher.switchLane(model, lane, now, 'asked') ?? null,
  cancel: (now, id) => dispatcher.cancel(requests[id]),
};

const answers = trace.steps.map(([operation, now, ...rest]) => {
  const given = operations[operation](now, ...rest);
  const active = trace.models.map(({ name }) => dispatcher.placement(name).active);
  return [given, dispatcher.dropped.splice(0).map((each) => each.id), active];
});
process.stdout.write(`${JSON.stringify(answers)}\n`);
