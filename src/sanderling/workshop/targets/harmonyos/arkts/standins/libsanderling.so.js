// The native library is not here: a device has it.
'use strict';

module.exports = {
  default: { load: async () => { throw new Error('this host has no Neural Network Runtime'); } },
};
