// usage: node vectors.js POLICY_FOLDER CASES   Replays decisions on the `.ets` files of POLICY_FOLDER.
// CASES is a file with a JSON list of {function: "file.name", arguments: [in order]}; answers a JSON list of results.
'use strict';
const fs = require('fs');
const path = require('path');
const { answer } = require('./answer');
require('./load');

const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** JSON of the vectors as the module's own types: camel case, and no limit as a number. */
function taken(value) {
  if (Array.isArray(value)) return value.map(taken);
  if (value !== null && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [camel(name), taken(item)]));
  }
  return value === 'Infinity' ? Infinity : value === '-Infinity' ? -Infinity : value;
}

/** The reverse of `taken`. */
function given(value) {
  if (Array.isArray(value)) return value.map(given);
  if (value !== null && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [snake(name), given(item)]));
  }
  return value === Infinity ? 'Infinity' : value === -Infinity ? '-Infinity' : value;
}

function main([folder, cases]) {
  return JSON.parse(fs.readFileSync(cases, 'utf8')).map((each) => {
    const [file, name] = each.function.split('.');
    const called = require(path.resolve(folder, `${file}.ets`))[camel(name)];
    if (called === undefined) throw new Error(`${file}.ets has no function ${camel(name)}`);
    return given(called(...taken(each.arguments)));
  });
}

answer(main);
