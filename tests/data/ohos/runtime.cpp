// Neural Network Runtime with one device, `HIAI_F`, whose models double their input. The bytes of a model are the
// text of its number of values; `bad` does not build. `live()` counts what was made and not given back.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <CANNKit/hiai_helper.h>
#include <CANNKit/hiai_options.h>
#include <neural_network_runtime/neural_network_core.h>

namespace {
std::atomic<int> made{0};
}

struct OH_NNCompilation {
    std::string text;
};
struct OH_NNExecutor {
    int32_t count;
};
struct NN_TensorDesc {
    std::string name;
    int32_t shape[2];
};
struct NN_Tensor {
    std::vector<float> values;
};

namespace {

template <typename T> void Destroy(T **one)
{
    delete *one;
    *one = nullptr;
    made--;
}

NN_TensorDesc *Describe(const OH_NNExecutor *executor, const char *name)
{
    made++;
    return new NN_TensorDesc{name, {1, executor->count}};
}

} // namespace

extern "C" {

int live()
{
    return made;
}

OH_NN_ReturnCode OH_NNDevice_GetAllDevicesID(const size_t **ids, uint32_t *count)
{
    static const size_t known[] = {7};
    *ids = known;
    *count = 1;
    return OH_NN_SUCCESS;
}

OH_NN_ReturnCode OH_NNDevice_GetName(size_t, const char **name)
{
    *name = "HIAI_F";
    return OH_NN_SUCCESS;
}

OH_NNCompilation *OH_NNCompilation_ConstructWithOfflineModelBuffer(const void *bytes, size_t size)
{
    made++;
    return new OH_NNCompilation{std::string(static_cast<const char *>(bytes), size)};
}

OH_NN_ReturnCode OH_NNCompilation_SetDevice(OH_NNCompilation *, size_t id)
{
    return id == 7 ? OH_NN_SUCCESS : OH_NN_INVALID_PARAMETER;
}

OH_NN_ReturnCode OH_NNCompilation_Build(OH_NNCompilation *compilation)
{
    return compilation->text == "bad" ? OH_NN_FAILED : OH_NN_SUCCESS;
}

void OH_NNCompilation_Destroy(OH_NNCompilation **compilation)
{
    Destroy(compilation);
}

OH_NN_ReturnCode OH_NNTensorDesc_Destroy(NN_TensorDesc **description)
{
    Destroy(description);
    return OH_NN_SUCCESS;
}

OH_NN_ReturnCode OH_NNTensorDesc_GetName(const NN_TensorDesc *description, const char **name)
{
    *name = description->name.c_str();
    return OH_NN_SUCCESS;
}

OH_NN_ReturnCode OH_NNTensorDesc_GetDataType(const NN_TensorDesc *, OH_NN_DataType *type)
{
    *type = OH_NN_FLOAT32;
    return OH_NN_SUCCESS;
}

OH_NN_ReturnCode OH_NNTensorDesc_GetShape(const NN_TensorDesc *description, int32_t **shape, size_t *axes)
{
    *shape = const_cast<int32_t *>(description->shape);
    *axes = 2;
    return OH_NN_SUCCESS;
}

NN_Tensor *OH_NNTensor_Create(size_t, NN_TensorDesc *description)
{
    made++;
    return new NN_Tensor{std::vector<float>(description->shape[1])};
}

OH_NN_ReturnCode OH_NNTensor_Destroy(NN_Tensor **tensor)
{
    Destroy(tensor);
    return OH_NN_SUCCESS;
}

void *OH_NNTensor_GetDataBuffer(const NN_Tensor *tensor)
{
    return const_cast<float *>(tensor->values.data());
}

OH_NN_ReturnCode OH_NNTensor_GetSize(const NN_Tensor *tensor, size_t *size)
{
    *size = tensor->values.size() * sizeof(float);
    return OH_NN_SUCCESS;
}

OH_NNExecutor *OH_NNExecutor_Construct(OH_NNCompilation *compilation)
{
    made++;
    return new OH_NNExecutor{std::atoi(compilation->text.c_str())};
}

void OH_NNExecutor_Destroy(OH_NNExecutor **executor)
{
    Destroy(executor);
}

OH_NN_ReturnCode OH_NNExecutor_GetInputCount(const OH_NNExecutor *, size_t *count)
{
    *count = 1;
    return OH_NN_SUCCESS;
}

OH_NN_ReturnCode OH_NNExecutor_GetOutputCount(const OH_NNExecutor *, size_t *count)
{
    *count = 1;
    return OH_NN_SUCCESS;
}

NN_TensorDesc *OH_NNExecutor_CreateInputTensorDesc(const OH_NNExecutor *executor, size_t)
{
    return Describe(executor, "image");
}

NN_TensorDesc *OH_NNExecutor_CreateOutputTensorDesc(const OH_NNExecutor *executor, size_t)
{
    return Describe(executor, "scores");
}

OH_NN_ReturnCode OH_NNExecutor_RunSync(OH_NNExecutor *, NN_Tensor *inputs[], size_t, NN_Tensor *outputs[], size_t)
{
    const std::vector<float> &given = inputs[0]->values;
    for (size_t index = 0; index < given.size(); index++) {
        outputs[0]->values[index] = 2 * given[index];
    }
    return given.empty() || given[0] != -1 ? OH_NN_SUCCESS : OH_NN_FAILED;
}

OH_NN_ReturnCode HMS_HiAIOptions_SetModelDeviceOrder(OH_NNCompilation *, HiAI_ExecuteDevice *order, size_t count)
{
    return count == 1 && order[0] == HIAI_EXECUTE_DEVICE_NPU ? OH_NN_SUCCESS : OH_NN_INVALID_PARAMETER;
}

HiAI_Compatibility HMS_HiAICompatibility_CheckFromBuffer(const void *data, size_t size)
{
    const bool old = size == 3 && std::memcmp(data, "old", 3) == 0;
    return old ? HIAI_COMPATIBILITY_INCOMPATIBLE : HIAI_COMPATIBILITY_COMPATIBLE;
}
}
