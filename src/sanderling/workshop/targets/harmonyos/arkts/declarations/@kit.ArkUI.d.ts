// Written from the public reference of ArkUI; only what the module uses.
export namespace window {
  interface WindowStage { loadContent(path: string): Promise<void> }
}
