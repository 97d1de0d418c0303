// Written from the public reference of Basic Services Kit; only what the module uses.
export interface Callback<T> {
  (data: T): void;
}
export interface BusinessError extends Error {
  code: number;
}
export namespace thermal {
  enum ThermalLevel {
    COOL = 0, NORMAL = 1, WARM = 2, HOT = 3, OVERHEATED = 4, WARNING = 5, EMERGENCY = 6, ESCAPE = 7
  }
  function getLevel(): ThermalLevel;
  function registerThermalLevelCallback(callback: Callback<ThermalLevel>): void;
  function unregisterThermalLevelCallback(callback?: Callback<void>): void;
}
export namespace systemDateTime {
  enum TimeType { STARTUP = 0, ACTIVE = 1 }
  function getUptime(timeType: TimeType, isNanoseconds?: boolean): number;
}
