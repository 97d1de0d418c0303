// Heat and time; `control.level` and `control.tell` set what the device would.
'use strict';

const listeners = [];
const control = {
  level: 0,
  tell(level) {
    control.level = level;
    listeners.forEach((listener) => listener(level));
  },
};

module.exports = {
  control,
  thermal: {
    getLevel: () => control.level,
    registerThermalLevelCallback: (listener) => listeners.push(listener),
    unregisterThermalLevelCallback: () => listeners.splice(0),
  },
  systemDateTime: { TimeType: { STARTUP: 0, ACTIVE: 1 }, getUptime: () => Number(process.hrtime.bigint()) },
};
