// Lets Node's `require` take `.ets` files as they are shipped; what the system has is imported from `standins`.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const Module = require('module');

const STANDINS = path.join(__dirname, 'standins');
const PACKAGES = path.dirname(path.dirname(require.resolve('ohos-typescript/package.json')));
const MADE = path.join(PACKAGES, '.cache', 'ets'); // JavaScript by the hash of what it was made of
const COMPILER = fs.readFileSync(path.join(__dirname, 'compiler.js'));
const resolve = Module._resolveFilename;

/** JavaScript of a file; the compiler is loaded only for a text that it has not seen. */
function javascript(text, file) {
  const key = crypto.createHash('sha256').update(COMPILER).update(path.basename(file)).update(text).digest('hex');
  const kept = path.join(MADE, `${key}.js`);
  if (fs.existsSync(kept)) return fs.readFileSync(kept, 'utf8');
  const made = require('./compiler').transpile(text, file);
  fs.mkdirSync(MADE, { recursive: true });
  const scratch = `${kept}.${process.pid}`;
  fs.writeFileSync(scratch, made);
  fs.renameSync(scratch, kept);
  return made;
}

Module._extensions['.ets'] = (module, file) => {
  module._compile(javascript(fs.readFileSync(file, 'utf8'), file), file);
};

/** The module of the project that a file belongs to. */
function moduleAbove(file, name) {
  const folder = path.dirname(file);
  const index = path.join(folder, name, 'Index.ets');
  return fs.existsSync(index) || folder === path.dirname(folder) ? index : moduleAbove(folder, name);
}

Module._resolveFilename = function resolveFilename(request, parent, ...rest) {
  const fromSystem = request.startsWith('@kit.') || request.endsWith('.so');
  const name = request === 'sanderling' ? moduleAbove(parent.filename, request) : request;
  return resolve.call(this, fromSystem ? path.join(STANDINS, `${request}.js`) : name, parent, ...rest);
};
