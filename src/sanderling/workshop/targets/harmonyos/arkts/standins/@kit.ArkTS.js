// Text from bytes.
'use strict';

module.exports = {
  util: { TextDecoder: { create: (name) => ({ decodeToString: (bytes) => new TextDecoder(name).decode(bytes) }) } },
};
