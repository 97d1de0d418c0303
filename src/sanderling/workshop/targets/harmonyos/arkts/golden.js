// usage: node golden.js MODULE RAWFILE JOB   Runs an exported package's self-test on the `.ets` files of MODULE.
// JOB is a file: {"elsewhere": {file: ONNX file}, "channelsLast": [inputs], "optimization": level of ONNX Runtime}.
// Answers {"lanes": [report], "queued": report}: all golden calls lane by lane, and all of them at once through the queue.
'use strict';
const fs = require('fs');
const path = require('path');
const { answer } = require('./answer');
require('./load');
const { resourceManager } = require('./folder');
const { control } = require('./standins/@kit.MindSporeLiteKit');

/** The largest error of results, each with the outputs that are expected of it. */
function largestError(session, selftest, vectors, answered) {
  const errors = answered.flatMap(({ result, expected }) => result.outputs.map((output) => selftest.relativeError(
    expected(result.variant, output.name), output, vectors.scale(result.variant, output.name),
  )));
  return Math.max(...errors);
}

/** All of a golden array as one tensor, call after call. */
function stacked(parts) {
  const { joined } = require(path.join(process.argv[2], 'src/main/ets/tensor.ets'));
  const rows = parts.reduce((sum, part) => sum + part.shape[0], 0);
  return joined(parts, rows, (sizeBytes) => new ArrayBuffer(sizeBytes));
}

/** Submit all golden calls at once, and where the model takes any number of rows, all of them as one call too. */
async function queued(own, session) {
  const selftest = require(path.join(own, 'src/main/ets/selftest.ets'));
  const { inputs, outputs, golden } = session.description;
  const vectors = await selftest.GoldenVectors.read(session.files, session.description);
  const calls = [...Array(golden.calls).keys()];
  const answered = await Promise.all(calls.map(async (call) => ({
    result: await session.submit(vectors.inputs(call)),
    expected: (variant, name) => vectors.output(variant, name, call),
  })));
  const countRows = (specs) => specs.every((spec) => typeof spec.shape[0] === 'string');
  if (countRows(inputs) && countRows(outputs) && session.active.profiles.length === 0) {
    const whole = inputs.map((_, index) => stacked(calls.map((call) => vectors.inputs(call)[index])));
    answered.push({
      result: await session.submit(whole),
      expected: (variant, name) => stacked(calls.map((call) => vectors.output(variant, name, call))),
    });
  }
  const rows = Math.max(...control.calls.map((each) => each.rows));
  const error = largestError(session, selftest, vectors, answered);
  const { variant } = answered[0].result;
  return { calls: calls.length, error, variant, tolerance: golden.tolerance[variant], largestCall: rows };
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
  const together = await queued(own, session);
  session.close();
  return { lanes, queued: together };
}

answer(main);
