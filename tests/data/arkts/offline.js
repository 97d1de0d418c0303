// usage: node offline.js ARKTS_FOLDER ETS_FOLDER LIBRARY   Runs offline models by the module's backend and a library.
'use strict';
const path = require('path');
const Module = require('module');

const [arkts, ets, library] = process.argv.slice(2);
require(path.join(arkts, 'load.js'));
const standin = require.resolve(path.join(arkts, 'standins/libsanderling.so.js'));
Module._cache[standin] = Object.assign(new Module(standin), { loaded: true, exports: { default: require(library) } });
const { OfflineBackend } = require(path.join(ets, 'offline.ets'));

const npu = { name: 'HIAI_F', kind: 'npu', id: 7n };
const model = { variant: 'int8', precision: 'int8', file: 'm.om', format: 'om' };
const bytes = (text) => new TextEncoder().encode(text).buffer;
const tensor = (...values) => {
  const data = Float32Array.from(values).buffer;
  return { name: 'image', dtype: 'float32', shape: [1, values.length], channelsLast: false, data };
};
const message = (promise) => promise.then(() => 'nothing failed', (error) => error.message);

async function main() {
  const backend = new OfflineBackend();
  const loaded = await backend.load(model, bytes('4'), npu);
  const [output] = await loaded.run([tensor(1, 2, 3, 4)]);
  const { name, dtype, shape } = output;
  const told = {
    takes: [
      backend.takes(model, npu),
      backend.takes(model, { ...npu, kind: 'cpu' }),
      backend.takes({ ...model, format: 'ms' }, npu),
    ],
    output: { name, dtype, shape, values: [...new Float32Array(output.data)] },
    shape: await message(loaded.run([tensor(1, 2, 3)])),
    failed: await message(loaded.run([tensor(-1, 2, 3, 4)])),
    bad: await message(backend.load(model, bytes('bad'), npu)),
    old: await message(backend.load(model, bytes('old'), npu)),
    device: await message(backend.load(model, bytes('4'), { ...npu, name: 'MALI' })),
  };
  loaded.close();
  told.closed = await message(loaded.run([tensor(1, 2, 3, 4)]));
  process.stdout.write(`${JSON.stringify(told)}\n`);
}

main().catch((error) => {
  process.stderr.write(`Error: ${error.stack}\n`);
  process.exitCode = 1;
});
