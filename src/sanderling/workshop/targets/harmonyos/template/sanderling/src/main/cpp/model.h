// An offline model, `.om` or `.omc`, on a device of Neural Network Runtime. Its tensors lie in memory that the device
// shares: what is written to an input is not copied again before the device reads it.
#ifndef SANDERLING_MODEL_H
#define SANDERLING_MODEL_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <neural_network_runtime/neural_network_core.h>

namespace sanderling {

// An input or output; `dtype` as NumPy calls it. `data` is valid as long as its model.
struct Port {
    std::string name;
    std::string dtype;
    std::vector<int32_t> shape;
    void *data = nullptr;
    size_t sizeBytes = 0;
};

class Model {
public:
    // Loads a model on the device of that name; it is compiled for that device already. Throws std::runtime_error.
    Model(std::vector<uint8_t> bytes, const std::string &device);
    ~Model();
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    const std::vector<Port> &Inputs() const { return inputs_; }
    const std::vector<Port> &Outputs() const { return outputs_; }

    // Computes the outputs of what the inputs hold. One call at a time. Throws std::runtime_error.
    void Run();

private:
    void Compile(const std::string &device);
    void AddPort(NN_TensorDesc *description, std::vector<Port> &ports, std::vector<NN_Tensor *> &tensors);
    void Release();

    std::vector<uint8_t> bytes_; // the runtime keeps a pointer to them
    size_t device_ = 0;
    OH_NNCompilation *compilation_ = nullptr;
    OH_NNExecutor *executor_ = nullptr;
    std::vector<NN_Tensor *> inputTensors_;
    std::vector<NN_Tensor *> outputTensors_;
    std::vector<Port> inputs_;
    std::vector<Port> outputs_;
};

} // namespace sanderling

#endif // SANDERLING_MODEL_H
