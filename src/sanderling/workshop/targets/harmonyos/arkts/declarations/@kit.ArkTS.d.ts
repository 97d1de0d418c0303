// Written from the public reference of ArkTS's library; only what the module uses.
export namespace util {
  class TextDecoder {
    static create(encoding?: string): TextDecoder;
    decodeToString(input: Uint8Array): string;
  }
}
export namespace taskpool {
  function execute(func: Function, ...args: Object[]): Promise<Object>;
}
