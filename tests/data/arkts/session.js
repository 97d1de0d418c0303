// usage: node session.js ARKTS_FOLDER ETS_FOLDER JOB SCENARIO   Runs one of the scenarios below on the module's session.
// JOB is a file: {"rawfile", "policy": sections that are changed, "models": properties of all that are changed}.
'use strict';
const fs = require('fs');
const path = require('path');

const [arkts, ets, file, scenario] = process.argv.slice(2);
require(path.join(arkts, 'load.js'));
const { resourceManager } = require(path.join(arkts, 'folder.js'));
const lite = require(path.join(arkts, 'standins/@kit.MindSporeLiteKit.js')).control;
const heat = require(path.join(arkts, 'standins/@kit.BasicServicesKit.js')).control;
const memory = require(path.join(arkts, 'standins/@kit.PerformanceAnalysisKit.js')).control;
const { Session, RawFiles, GoldenVectors, selfTest } = require(path.join(ets, '../../../Index.ets'));

const job = JSON.parse(fs.readFileSync(file, 'utf8'));
const NPU = { id: 7, name: 'HIAI_F', type: 3 };

function merged(target, changes) {
  Object.entries(changes).forEach(([name, value]) => {
    const deep = value !== null && typeof value === 'object' && !Array.isArray(value);
    target[name] = deep ? merged({ ...target[name] }, value) : value;
  });
  return target;
}

/** The package with the job's changes. */
function files() {
  const whole = resourceManager(job.rawfile);
  return new RawFiles({
    getRawFileContent: async (name) => {
      const content = await whole.getRawFileContent(name);
      if (!name.endsWith('package.json')) return content;
      const description = JSON.parse(Buffer.from(content).toString());
      merged(description.policy, job.policy ?? {});
      description.models.forEach((model) => Object.assign(model, job.models ?? {}));
      return new Uint8Array(Buffer.from(JSON.stringify(Object.assign(description, job.description ?? {}))));
    },
  });
}

async function opened() {
  const session = await Session.open({ files: files(), threads: 1 });
  const golden = await GoldenVectors.read(session.files, session.description);
  return { session, golden };
}

const told = (session, kind) => session.events.latest().filter((each) => each.kind === kind);
const brief = (result) => ({
  lane: result.lane, rows: result.batchRows, stale: result.stale, tripped: result.tripped,
  scores: Array.from(new Float32Array(result.outputs[0].data)),
});
const answer = (promise) => promise.then(brief, (error) => ({ kind: error.kind, message: error.message }));
const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

const scenarios = {
  async lanes() {
    lite.accelerators = [{ id: 3, name: 'OTHER', type: 0 }, { id: 5, name: 'MALI', type: 2 }, NPU];
    const { session } = await opened();
    return session.lanes.map((lane) => lane.name);
  },

  async accelerator_refuses() {
    lite.accelerators = [NPU];
    lite.onLoad = (device) => { if (device === 'HIAI_F') throw new Error('no operator X'); };
    const { session, golden } = await opened();
    const result = await answer(session.submit(golden.inputs(0)));
    return { result, failed: told(session, 'call-failed'), switched: told(session, 'lane-switched') };
  },

  async nobody_can() {
    lite.onLoad = () => { throw new Error('no memory'); };
    const { session, golden } = await opened();
    return answer(session.submit(golden.inputs(0)));
  },

  async heat() {
    lite.accelerators = [NPU];
    const { session, golden } = await opened();
    const seen = [];
    for (const level of [0, 3, 4, 3, 2, 5, 1]) {
      heat.tell(level);
      seen.push([session.thermalLevel, session.active.device.name, (await session.submit(golden.inputs(0))).lane]);
    }
    return { seen, reasons: told(session, 'lane-switched').map((each) => each.reason) };
  },

  async background_in_heat() {
    const { session, golden } = await opened();
    heat.tell(2);
    let done = false;
    const background = session.submit(golden.inputs(0), { priority: -1 });
    const waiting = background.then((result) => {
      done = true;
      return brief(result);
    });
    const urgent = await answer(session.submit(golden.inputs(1)));
    await pause(20);
    const before = done;
    heat.tell(1);
    const later = await waiting;
    heat.tell(3);
    const refused = await answer(session.submit(golden.inputs(0), { priority: -1 }));
    heat.tell(6);
    return { before, urgent, later, refused, stopped: await answer(session.submit(golden.inputs(0), { priority: 5 })) };
  },

  async batches() {
    const { session, golden } = await opened();
    for (let call = 0; call < 4; call += 1) await session.submit(golden.inputs(0)); // loads, then learns
    lite.calls.length = 0;
    const calls = [...Array(12).keys()].map((call) => call % 4);
    const results = await Promise.all(calls.map((call) => answer(session.submit(golden.inputs(call)))));
    const alone = [];
    for (const call of [0, 1, 2, 3]) alone.push(brief(await session.submit(golden.inputs(call))).scores);
    return { rows: lite.calls.map((each) => each.rows), calls, results, alone, pool: session.pool.buffers.sizeBytes };
  },

  async fixed_rows_on_accelerator() {
    lite.accelerators = [NPU];
    const { session, golden } = await opened();
    for (let call = 0; call < 3; call += 1) await session.submit(golden.inputs(0));
    lite.calls.length = 0;
    await Promise.all([0, 1, 2, 3].map((call) => session.submit(golden.inputs(call))));
    return lite.calls;
  },

  async guard() {
    lite.accelerators = [NPU];
    lite.onPredict = (device, outputs) => {
      if (device === 'HIAI_F') new Float32Array(outputs[0].data).fill(NaN);
      return outputs;
    };
    const { session, golden } = await opened();
    const results = [];
    for (let call = 0; call < 4; call += 1) {
      results.push(await answer(session.submit(golden.inputs(call), { stream: 's' })));
    }
    const trips = session.events.count('guard-tripped');
    return { results, active: session.active.name, trips, opened: told(session, 'breaker-opened') };
  },

  async last_good() {
    const { session, golden } = await opened();
    const good = await answer(session.submit(golden.inputs(0), { stream: 'camera' }));
    lite.onPredict = (device, outputs) => { new Float32Array(outputs[0].data)[1] = Infinity; return outputs; };
    const again = await answer(session.submit(golden.inputs(1), { stream: 'camera' }));
    const other = await answer(session.submit(golden.inputs(1), { stream: 'other' }));
    return { good, again, other };
  },

  async hang() {
    lite.accelerators = [NPU];
    lite.onPredict = (device, outputs) => (device === 'HIAI_F' ? new Promise(() => {}) : outputs);
    const { session, golden } = await opened();
    const result = await answer(session.submit(golden.inputs(0)));
    return { result, failed: told(session, 'call-failed') };
  },

  async system_is_short_of_memory() {
    const { session, golden } = await opened();
    await session.loadAll();
    await session.submit(golden.inputs(0));
    const loaded = () => session.lanes.filter((lane) => lane.isLoaded).map((lane) => lane.name);
    const all = loaded();
    session.onMemoryLevel(0);
    const moderate = loaded();
    session.onMemoryLevel(1);
    const low = loaded();
    session.onMemoryLevel(2);
    const critical = loaded();
    const result = await answer(session.submit(golden.inputs(0)));
    return { all, moderate, low, critical, result, told: told(session, 'model-released').map((each) => each.reason) };
  },

  async process_is_near_its_limit() {
    const { session, golden } = await opened();
    await session.loadAll();
    memory.pssKb = 950_000;
    await session.submit(golden.inputs(0));
    return told(session, 'model-released');
  },

  async small_cache() {
    const { session, golden } = await opened();
    await session.submit(golden.inputs(0));
    session.use('mindspore/cpu/fp32');
    await session.submit(golden.inputs(0));
    const released = told(session, 'model-released');
    await session.loadAll();
    return { released, kept: told(session, 'memory-kept').map((each) => each.reason) };
  },

  async refusals() {
    const { session, golden } = await opened();
    const [image] = golden.inputs(0);
    await session.submit([image]);
    const given = {
      missing: [], unknown: [image, { ...image, name: 'extra' }], dtype: [{ ...image, dtype: 'int8' }],
      shape: [{ ...image, shape: [1, 3, 8, 8] }], bytes: [{ ...image, data: image.data.slice(4) }],
    };
    const refused = {};
    for (const [name, inputs] of Object.entries(given)) refused[name] = await answer(session.submit(inputs));
    refused.late = await answer(session.submit([image], { deadlineMs: -1 }));
    const crowd = await Promise.all([...Array(8)].map(() => answer(session.submit([image]))));
    refused.full = crowd.find((each) => each.kind === 'queue-full');
    try { session.use('nowhere'); } catch (error) { refused.lane = { kind: error.kind, message: error.message }; }
    const waiting = [...Array(3)].map(() => answer(session.submit([image])));
    session.close();
    refused.closing = (await Promise.all(waiting)).at(-1);
    refused.closed = await answer(session.submit([image]));
    return refused;
  },

  async waits_for_room() {
    const { session, golden } = await opened();
    const results = await Promise.all([...Array(20)].map(() => answer(session.submit(golden.inputs(0)))));
    return results.map((each) => each.lane ?? each.message);
  },

  async choice_of_lane() {
    const { session, golden } = await opened();
    session.use('mindspore/cpu/fp32');
    const chosen = await answer(session.submit(golden.inputs(0)));
    session.use('');
    return [chosen.lane, (await answer(session.submit(golden.inputs(0)))).lane];
  },

  async self_test() {
    lite.accelerators = [NPU];
    lite.channelsLast = job.models?.channelsLast ?? [];
    lite.onPredict = (device, outputs) => {
      if (device === 'HIAI_F') new Float32Array(outputs[0].data)[0] += 5;
      return outputs;
    };
    const { session } = await opened();
    return selfTest(session);
  },

  async page() {
    lite.accelerators = [NPU];
    const { Monitor } = require(path.join(ets, '../../../../entry/src/main/ets/model/Monitor.ets'));
    const monitor = Monitor.shared;
    const value = (name) => monitor.lines().find((line) => line.name === name)?.value;
    const before = value('package');
    await monitor.start(resourceManager(job.rawfile));
    monitor.toggle();
    for (let tries = 0; tries < 400 && value('latency p50 / p95').startsWith('–'); tries += 1) await pause(50);
    const rate = Number(value('frames a second'));
    const running = { on: value('runs on'), rate, memory: value('memory'), heat: value('heat') };
    monitor.nextLane();
    await pause(50);
    const next = value('runs on');
    await monitor.test();
    const reports = monitor.lines().filter((line) => line.name.startsWith('self-test'));
    const tests = reports.map((line) => line.value.split(':')[0]);
    monitor.onMemoryLevel(2);
    monitor.toggle();
    const happenings = monitor.happenings();
    monitor.close();
    return { before, running, next, tests, happenings, after: monitor.isRunning };
  },

  async page_without_package() {
    const { Monitor } = require(path.join(ets, '../../../../entry/src/main/ets/model/Monitor.ets'));
    await Monitor.shared.start(resourceManager('/nowhere'));
    Monitor.shared.toggle();
    return { lines: Monitor.shared.lines(), running: Monitor.shared.isRunning };
  },

  async open() {
    return opened().then(() => 'opened', (error) => ({ kind: error.kind, message: error.message }));
  },

  async truncated() {
    const { session, golden } = await opened();
    return answer(session.submit(golden.inputs(0)));
  },
};

scenarios[scenario]().then((found) => {
  process.stdout.write(`${JSON.stringify(found)}\n`);
  process.exit(0); // what hangs on purpose would keep it alive
}, (error) => {
  process.stderr.write(`Error: ${error.stack}\n`);
  process.exit(1);
});
