// Written from the public reference of Neural Network Runtime; only what the native library uses.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct OH_NNCompilation OH_NNCompilation;
typedef struct OH_NNExecutor OH_NNExecutor;
typedef struct NN_TensorDesc NN_TensorDesc;
typedef struct NN_Tensor NN_Tensor;

typedef enum { OH_NN_SUCCESS = 0, OH_NN_FAILED = 1, OH_NN_INVALID_PARAMETER = 2 } OH_NN_ReturnCode;
typedef enum {
    OH_NN_UNKNOWN = 0,
    OH_NN_BOOL = 1,
    OH_NN_INT8 = 2,
    OH_NN_INT16 = 3,
    OH_NN_INT32 = 4,
    OH_NN_INT64 = 5,
    OH_NN_UINT8 = 6,
    OH_NN_UINT16 = 7,
    OH_NN_UINT32 = 8,
    OH_NN_UINT64 = 9,
    OH_NN_FLOAT16 = 10,
    OH_NN_FLOAT32 = 11,
    OH_NN_FLOAT64 = 12
} OH_NN_DataType;

OH_NN_ReturnCode OH_NNDevice_GetAllDevicesID(const size_t **allDevicesID, uint32_t *deviceCount);
OH_NN_ReturnCode OH_NNDevice_GetName(size_t deviceID, const char **name);

OH_NNCompilation *OH_NNCompilation_ConstructWithOfflineModelBuffer(const void *modelBuffer, size_t modelSize);
OH_NN_ReturnCode OH_NNCompilation_SetDevice(OH_NNCompilation *compilation, size_t deviceID);
OH_NN_ReturnCode OH_NNCompilation_Build(OH_NNCompilation *compilation);
void OH_NNCompilation_Destroy(OH_NNCompilation **compilation);

OH_NN_ReturnCode OH_NNTensorDesc_Destroy(NN_TensorDesc **tensorDesc);
OH_NN_ReturnCode OH_NNTensorDesc_GetName(const NN_TensorDesc *tensorDesc, const char **name);
OH_NN_ReturnCode OH_NNTensorDesc_GetDataType(const NN_TensorDesc *tensorDesc, OH_NN_DataType *dataType);
OH_NN_ReturnCode OH_NNTensorDesc_GetShape(const NN_TensorDesc *tensorDesc, int32_t **shape, size_t *shapeLength);

NN_Tensor *OH_NNTensor_Create(size_t deviceID, NN_TensorDesc *tensorDesc);
OH_NN_ReturnCode OH_NNTensor_Destroy(NN_Tensor **tensor);
void *OH_NNTensor_GetDataBuffer(const NN_Tensor *tensor);
OH_NN_ReturnCode OH_NNTensor_GetSize(const NN_Tensor *tensor, size_t *size);

OH_NNExecutor *OH_NNExecutor_Construct(OH_NNCompilation *compilation);
void OH_NNExecutor_Destroy(OH_NNExecutor **executor);
OH_NN_ReturnCode OH_NNExecutor_GetInputCount(const OH_NNExecutor *executor, size_t *inputCount);
OH_NN_ReturnCode OH_NNExecutor_GetOutputCount(const OH_NNExecutor *executor, size_t *outputCount);
NN_TensorDesc *OH_NNExecutor_CreateInputTensorDesc(const OH_NNExecutor *executor, size_t index);
NN_TensorDesc *OH_NNExecutor_CreateOutputTensorDesc(const OH_NNExecutor *executor, size_t index);
OH_NN_ReturnCode OH_NNExecutor_RunSync(OH_NNExecutor *executor, NN_Tensor *inputTensor[], size_t inputCount,
                                       NN_Tensor *outputTensor[], size_t outputCount);

#ifdef __cplusplus
}
#endif
