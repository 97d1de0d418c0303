// usage: node golden.js MODULE RAWFILE JOB   Runs an exported package's self-test on the `.ets` files of MODULE.
// JOB is a file: {"elsewhere": {file: ONNX file}, "channelsLast": [inputs], "optimization": level of ONNX Runtime}. Answers
// {"lanes": [report], "batched": report}: all golden calls lane by lane, and all of them at once through the queue.
'use strict';
const fs = require('fs');
const path = require('path');
require('./load');
const { resourceManager } = require('./folder');
const { control } = require('./standins/@kit.MindSporeLiteKit');

/** Submit every golden call at once; the largest error of each output's rows. */
async function batched(own, session) {
  const { GoldenVectors, relativeError } = require(path.join(own, 'src/main/ets/selftest.ets'));
  const { golden, chosen } = session.description;
  const vectors = await GoldenVectors.read(session.files, session.description);
  const calls = [...Array(golden.calls).keys()];
  const results = await Promise.all(calls.map((call) => session.submit(vectors.inputs(call))));
  const errors = results.flatMap((result, call) => result.outputs.map((output) => relativeError(
    vectors.output(result.variant, output.name, call), output, vectors.scale(result.variant, output.name),
  )));
  const tolerance = golden.tolerance[chosen];
  const rows = Math.max(...control.calls.map((each) => each.rows));
  return { calls: calls.length, error: Math.max(...errors), tolerance, largestBatch: rows };
}

async function main([module_, rawfile, jobFile]) {
  const own = path.resolve(module_);
  const job = JSON.parse(fs.readFileSync(jobFile, 'utf8'));
  control.channelsLast = job.channelsLast;
  control.optimization = job.optimization;
  const { Session, RawFiles, selfTest } = require(path.join(own, 'Index.ets'));
  const files = new RawFiles(resourceManager(path.resolve(rawfile), job.elsewhere));
  const session = await Session.open({ files, threads: 1 });
  const lanes = await selfTest(session);
  control.calls.length = 0;
  const together = await batched(own, session);
  session.close();
  process.stdout.write(`${JSON.stringify({ lanes, batched: together })}\n`);
}

main(process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message.split('\n')[0]}\n`);
  process.exitCode = 1;
});
