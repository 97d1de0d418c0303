// Text from bytes, and another thread, which is this one.
'use strict';

module.exports = {
  util: { TextDecoder: { create: (name) => ({ decodeToString: (bytes) => new TextDecoder(name).decode(bytes) }) } },
  taskpool: { execute: async (called, ...rest) => called(...rest) },
};
