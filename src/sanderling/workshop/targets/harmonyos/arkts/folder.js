// An application's rawfile as a folder of this host; models may be files that lie elsewhere.
'use strict';
const fs = require('fs');
const path = require('path');

const DESCRIPTION = 'package.json';

/** The description with the sizes of the files that stand in for its models. */
function described(text, elsewhere) {
  const description = JSON.parse(text);
  description.models.filter((model) => elsewhere[model.file]).forEach((model) => {
    model.sizeBytes = fs.statSync(elsewhere[model.file]).size;
  });
  return JSON.stringify(description);
}

/** What `RawFiles` takes for a resource manager; `elsewhere` maps models of the package's folder to other files. */
function resourceManager(rawfile, elsewhere = {}) {
  return {
    getRawFileContent: async (name) => {
      const own = name.split('/').slice(1).join('/');
      const content = fs.readFileSync(elsewhere[own] ?? path.join(rawfile, name));
      return new Uint8Array(own === DESCRIPTION ? Buffer.from(described(content, elsewhere)) : content);
    },
  };
}

module.exports = { resourceManager };
