// Written from the public reference of CANN Kit; only what the native library uses.
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { HIAI_COMPATIBILITY_COMPATIBLE = 0, HIAI_COMPATIBILITY_INCOMPATIBLE = 1 } HiAI_Compatibility;

HiAI_Compatibility HMS_HiAICompatibility_CheckFromBuffer(const void *data, size_t size);

#ifdef __cplusplus
}
#endif
