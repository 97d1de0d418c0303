// usage: node pictures.js ETS_FOLDER JOBS   Preprocesses frames on the `.ets` files of ETS_FOLDER.
// JOBS is a file with a JSON list of {frame: {width, height, order, stride, base64}, preprocessing, channelsLast,
// matrix}; answers a JSON list of {shape, base64}.
'use strict';
const fs = require('fs');
const path = require('path');
const { answer } = require('./answer');
require('./load');

async function main([folder, file]) {
  const { preparedAside } = require(path.resolve(folder, 'preprocessing.ets'));
  const jobs = JSON.parse(fs.readFileSync(file, 'utf8'));
  return Promise.all(jobs.map(async ({ frame, preprocessing, channelsLast, matrix }) => {
    const data = new Uint8Array(Buffer.from(frame.base64, 'base64'));
    const tensor = await preparedAside({ ...frame, data }, preprocessing, 'image', channelsLast, matrix);
    return { shape: tensor.shape, base64: Buffer.from(tensor.data).toString('base64') };
  }));
}

answer(main);
