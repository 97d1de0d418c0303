// Written from the public reference of Performance Analysis Kit; only what the module uses.
export namespace hidebug {
  interface SystemMemInfo { totalMem: bigint; freeMem: bigint; availableMem: bigint }
  interface MemoryLimit { rssLimit: bigint; vssLimit: bigint; vmHeapLimit: bigint; vmTotalHeapSize: bigint }
  function getPss(): bigint;
  function getSystemMemInfo(): SystemMemInfo;
  function getAppMemoryLimit(): MemoryLimit;
}
export namespace hilog {
  function info(domain: number, tag: string, format: string, ...args: string[]): void;
  function error(domain: number, tag: string, format: string, ...args: string[]): void;
}
