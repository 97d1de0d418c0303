// An application's rawfile as a folder of this host; some of its files may lie elsewhere.
'use strict';
const fs = require('fs');
const path = require('path');

/** What `RawFiles` takes for a resource manager; `elsewhere` maps names in the package's folder to other files. */
function resourceManager(rawfile, elsewhere = {}) {
  return {
    getRawFileContent: async (name) => {
      const own = name.split('/').slice(1).join('/');
      return new Uint8Array(fs.readFileSync(elsewhere[own] ?? path.join(rawfile, name)));
    },
  };
}

module.exports = { resourceManager };
