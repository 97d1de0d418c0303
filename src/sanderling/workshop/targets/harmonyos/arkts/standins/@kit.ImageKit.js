// Pixel formats; a picture is an object with the same functions.
'use strict';

module.exports = {
  image: { PixelMapFormat: { UNKNOWN: 0, RGB_565: 2, RGBA_8888: 3, BGRA_8888: 4, RGB_888: 5, NV21: 8, NV12: 9 } },
};
