// Written from the public reference of Localization Kit; only what the module uses.
export namespace resourceManager {
  interface ResourceManager { getRawFileContent(path: string): Promise<Uint8Array> }
}
