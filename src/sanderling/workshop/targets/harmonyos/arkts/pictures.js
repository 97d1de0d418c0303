// usage: node pictures.js ETS_FOLDER JOBS   Preprocesses frames on the `.ets` files of ETS_FOLDER.
// JOBS is a file with a JSON list of {frame: {width, height, order, stride, base64}, preprocessing, channelsLast, matrix}; answers a
// JSON list of {shape, base64}.
'use strict';
const fs = require('fs');
const path = require('path');
const { answer } = require('./answer');
require('./load');

function main([folder, jobs]) {
  const { prepared } = require(path.resolve(folder, 'preprocessing.ets'));
  return JSON.parse(fs.readFileSync(jobs, 'utf8')).map(({ frame, preprocessing, channelsLast, matrix }) => {
    const data = new Uint8Array(Buffer.from(frame.base64, 'base64'));
    const tensor = prepared({ ...frame, data }, preprocessing, 'image', channelsLast, matrix);
    return { shape: tensor.shape, base64: Buffer.from(tensor.data).toString('base64') };
  });
}

answer(main);
