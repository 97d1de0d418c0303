// What ArkTS has everywhere beyond the language: written from the public reference, only what the module uses.
declare function setTimeout(handler: () => void, delay?: number): number;
declare function clearTimeout(id?: number): void;
declare function setInterval(handler: () => void, delay: number): number;
declare function clearInterval(id?: number): void;
