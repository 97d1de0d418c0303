// Written from the public reference of Image Kit; only what the module uses.
export namespace image {
  enum PixelMapFormat { UNKNOWN = 0, RGB_565 = 2, RGBA_8888 = 3, BGRA_8888 = 4, RGB_888 = 5, NV21 = 8, NV12 = 9 }
  interface Size { height: number; width: number }
  interface ImageInfo { size: Size; pixelFormat: PixelMapFormat; stride: number }
  interface PixelMap {
    getImageInfoSync(): ImageInfo;
    getPixelBytesNumber(): number;
    readPixelsToBufferSync(dst: ArrayBuffer): void;
  }
}
