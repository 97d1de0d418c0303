// Lets Node's `require` take `.ets` files as they are shipped; what the system has is imported from `standins`.
'use strict';
const fs = require('fs');
const path = require('path');
const Module = require('module');
const { transpile } = require('./compiler');

const STANDINS = path.join(__dirname, 'standins');
const resolve = Module._resolveFilename;

Module._extensions['.ets'] = (module, file) => {
  module._compile(transpile(fs.readFileSync(file, 'utf8'), file), file);
};

Module._resolveFilename = function resolveFilename(request, parent, ...rest) {
  const name = request.startsWith('@kit.') || request.endsWith('.so') ? path.join(STANDINS, `${request}.js`) : request;
  return resolve.call(this, name, parent, ...rest);
};
