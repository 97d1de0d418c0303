// Written from the public reference of CANN Kit; only what the native library uses.
#pragma once
#include <neural_network_runtime/neural_network_core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    HIAI_EXECUTE_DEVICE_CPU = 0,
    HIAI_EXECUTE_DEVICE_GPU = 1,
    HIAI_EXECUTE_DEVICE_NPU = 2
} HiAI_ExecuteDevice;

OH_NN_ReturnCode HMS_HiAIOptions_SetModelDeviceOrder(OH_NNCompilation *compilation, HiAI_ExecuteDevice *executeDevices,
                                                     size_t deviceCount);

#ifdef __cplusplus
}
#endif
