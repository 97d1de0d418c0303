// Memory of the process; `control` sets what the device would.
'use strict';

const control = { pssKb: 100_000, limitKb: 1_000_000 };

module.exports = {
  control,
  hidebug: {
    getPss: () => BigInt(control.pssKb),
    getAppMemoryLimit: () => ({ rssLimit: BigInt(control.limitKb), vssLimit: 0n, vmHeapLimit: 0n, vmTotalHeapSize: 0n }),
  },
};
