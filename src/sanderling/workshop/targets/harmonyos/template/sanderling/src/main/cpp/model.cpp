#include "model.h"

#include <stdexcept>
#include <utility>

#ifdef SANDERLING_CANN
#include <CANNKit/hiai_helper.h>
#include <CANNKit/hiai_options.h>
#endif

namespace sanderling {
namespace {

void Check(OH_NN_ReturnCode code, const char *what)
{
    if (code != OH_NN_SUCCESS) {
        throw std::runtime_error(std::string(what) + " failed with code " + std::to_string(static_cast<int>(code)));
    }
}

size_t FindDevice(const std::string &wanted)
{
    const size_t *ids = nullptr;
    uint32_t count = 0;
    Check(OH_NNDevice_GetAllDevicesID(&ids, &count), "listing devices");
    std::string known;
    for (uint32_t index = 0; index < count; index++) {
        const char *name = nullptr;
        Check(OH_NNDevice_GetName(ids[index], &name), "naming a device");
        if (wanted == name) {
            return ids[index];
        }
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw std::runtime_error("no device '" + wanted + "': here are " + (known.empty() ? "none" : known));
}

const char *NameOf(OH_NN_DataType type)
{
    switch (type) {
        case OH_NN_BOOL:
            return "bool";
        case OH_NN_INT8:
            return "int8";
        case OH_NN_INT16:
            return "int16";
        case OH_NN_INT32:
            return "int32";
        case OH_NN_INT64:
            return "int64";
        case OH_NN_UINT8:
            return "uint8";
        case OH_NN_UINT16:
            return "uint16";
        case OH_NN_UINT32:
            return "uint32";
        case OH_NN_UINT64:
            return "uint64";
        case OH_NN_FLOAT16:
            return "float16";
        case OH_NN_FLOAT32:
            return "float32";
        case OH_NN_FLOAT64:
            return "float64";
        default:
            throw std::runtime_error("a tensor has type " + std::to_string(static_cast<int>(type)));
    }
}

} // namespace

Model::Model(std::vector<uint8_t> bytes, const std::string &device) : bytes_(std::move(bytes))
{
    try {
        Compile(device);
        size_t inputs = 0;
        size_t outputs = 0;
        Check(OH_NNExecutor_GetInputCount(executor_, &inputs), "counting inputs");
        Check(OH_NNExecutor_GetOutputCount(executor_, &outputs), "counting outputs");
        for (size_t index = 0; index < inputs; index++) {
            AddPort(OH_NNExecutor_CreateInputTensorDesc(executor_, index), inputs_, inputTensors_);
        }
        for (size_t index = 0; index < outputs; index++) {
            AddPort(OH_NNExecutor_CreateOutputTensorDesc(executor_, index), outputs_, outputTensors_);
        }
    } catch (...) {
        Release();
        throw;
    }
}

Model::~Model()
{
    Release();
}

void Model::Compile(const std::string &device)
{
    device_ = FindDevice(device);
#ifdef SANDERLING_CANN
    if (HMS_HiAICompatibility_CheckFromBuffer(bytes_.data(), bytes_.size()) != HIAI_COMPATIBILITY_COMPATIBLE) {
        throw std::runtime_error("the model was compiled for another version or chip: compile it again for this one");
    }
#endif
    compilation_ = OH_NNCompilation_ConstructWithOfflineModelBuffer(bytes_.data(), bytes_.size());
    if (compilation_ == nullptr) {
        throw std::runtime_error("the runtime does not take the model's bytes");
    }
    Check(OH_NNCompilation_SetDevice(compilation_, device_), "choosing the device");
#ifdef SANDERLING_CANN
    HiAI_ExecuteDevice order[] = {HIAI_EXECUTE_DEVICE_NPU};
    Check(HMS_HiAIOptions_SetModelDeviceOrder(compilation_, order, 1), "choosing the NPU");
#endif
    Check(OH_NNCompilation_Build(compilation_), "building the model");
    executor_ = OH_NNExecutor_Construct(compilation_);
    if (executor_ == nullptr) {
        throw std::runtime_error("the runtime makes no executor of the model");
    }
}

// Describes one tensor and gives it memory of the device's driver; takes `description` over.
void Model::AddPort(NN_TensorDesc *description, std::vector<Port> &ports, std::vector<NN_Tensor *> &tensors)
{
    if (description == nullptr) {
        throw std::runtime_error("the runtime does not describe a tensor");
    }
    std::unique_ptr<NN_TensorDesc, void (*)(NN_TensorDesc *)> held(description, [](NN_TensorDesc *one) {
        OH_NNTensorDesc_Destroy(&one);
    });
    Port port;
    const char *name = nullptr;
    OH_NN_DataType type = OH_NN_UNKNOWN;
    int32_t *shape = nullptr;
    size_t axes = 0;
    Check(OH_NNTensorDesc_GetName(description, &name), "naming a tensor");
    Check(OH_NNTensorDesc_GetDataType(description, &type), "asking for a tensor's type");
    Check(OH_NNTensorDesc_GetShape(description, &shape, &axes), "asking for a tensor's shape");
    port.name = name == nullptr ? "" : name;
    port.dtype = NameOf(type);
    port.shape.assign(shape, shape + axes);

    NN_Tensor *tensor = OH_NNTensor_Create(device_, description);
    if (tensor == nullptr) {
        throw std::runtime_error("the device has no memory for tensor '" + port.name + "'");
    }
    tensors.push_back(tensor);
    Check(OH_NNTensor_GetSize(tensor, &port.sizeBytes), "asking for a tensor's size");
    port.data = OH_NNTensor_GetDataBuffer(tensor);
    if (port.data == nullptr) {
        throw std::runtime_error("tensor '" + port.name + "' has no memory");
    }
    ports.push_back(port);
}

void Model::Run()
{
    Check(OH_NNExecutor_RunSync(executor_, inputTensors_.data(), inputTensors_.size(), outputTensors_.data(),
                                outputTensors_.size()),
          "running the model");
}

void Model::Release()
{
    for (std::vector<NN_Tensor *> *tensors : {&inputTensors_, &outputTensors_}) {
        for (NN_Tensor *tensor : *tensors) {
            OH_NNTensor_Destroy(&tensor);
        }
        tensors->clear();
    }
    if (executor_ != nullptr) {
        OH_NNExecutor_Destroy(&executor_);
    }
    if (compilation_ != nullptr) {
        OH_NNCompilation_Destroy(&compilation_);
    }
}

} // namespace sanderling
