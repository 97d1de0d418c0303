// A C interface to MindSpore Lite 2.0.0: convert ONNX or TFLite to .ms, load a .ms, resize, run.
//
// Compiled on the machine that uses it, by library.py, against the headers of the PyPI wheel. Functions that can fail
// return 0 (or a pointer) when they succeed, and otherwise leave the reason in `message`.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "include/api/context.h"
#include "include/api/model.h"
#include "include/api/status.h"
#include "include/registry/converter_context.h"

namespace mindspore {
struct ConverterPara;

// The wheel holds this class and not its header.
class MS_API Converter {
 public:
  Converter();
  ~Converter() = default;
  void SetWeightFp16(bool);
  void SetSaveType(ModelType);
  void SetInputFormat(Format);
  void SetConfigFile(const std::vector<char> &);
  Status Convert(converter::FmkType, const std::vector<char> &, const std::vector<char> &, const std::vector<char> &);

 private:
  std::shared_ptr<ConverterPara> data_;
};
}  // namespace mindspore

namespace {

struct Loaded {
  mindspore::Model model;
  std::vector<mindspore::MSTensor> inputs;
  std::vector<mindspore::MSTensor> outputs;
};

std::vector<char> Chars(const char *text) { return std::vector<char>(text, text + std::strlen(text)); }

void Tell(const std::string &reason, char *message, size_t size) {
  if (size == 0) return;
  const size_t count = std::min(reason.size(), size - 1);
  std::memcpy(message, reason.data(), count);
  message[count] = '\0';
}

// Run `work`, and turn a failing status or an exception into a message.
template <typename Work>
int Guarded(Work work, char *message, size_t size) {
  try {
    const mindspore::Status status = work();
    if (status.IsOk()) return 0;
    Tell(status.ToString(), message, size);
  } catch (const std::exception &error) {
    Tell(error.what(), message, size);
  } catch (...) {
    Tell("an unknown exception", message, size);
  }
  return 1;
}

const mindspore::MSTensor &At(void *handle, int is_output, int index) {
  auto *loaded = static_cast<Loaded *>(handle);
  return (is_output ? loaded->outputs : loaded->inputs)[static_cast<size_t>(index)];
}

}  // namespace

extern "C" {

// Write `target`.ms; `config` names a file with the converter's sections, or is empty. Inputs of four axes keep their
// order, or become NHWC.
int sdl_convert(const char *source, const char *target, int is_tflite, int half_weights, int channels_last,
                const char *config, char *message, size_t size) {
  return Guarded(
    [&] {
      mindspore::Converter converter;
      converter.SetSaveType(mindspore::kMindIR_Lite);
      converter.SetWeightFp16(half_weights != 0);
      converter.SetInputFormat(channels_last ? mindspore::NHWC : mindspore::NCHW);
      if (config[0] != '\0') converter.SetConfigFile(Chars(config));
      const auto framework = is_tflite ? mindspore::converter::kFmkTypeTflite : mindspore::converter::kFmkTypeOnnx;
      return converter.Convert(framework, Chars(source), Chars(target), Chars(""));
    },
    message, size);
}

// Load the bytes of a .ms on the CPU; `threads` 0 leaves their number to the runtime. Null when it fails.
void *sdl_load(const void *data, size_t bytes, int threads, char *message, size_t size) {
  auto loaded = std::make_unique<Loaded>();
  const int failed = Guarded(
    [&] {
      auto context = std::make_shared<mindspore::Context>();
      if (threads > 0) context->SetThreadNum(threads);
      context->MutableDeviceInfo().push_back(std::make_shared<mindspore::CPUDeviceInfo>());
      const mindspore::Status status = loaded->model.Build(data, bytes, mindspore::kMindIR_Lite, context);
      if (status.IsOk()) {
        loaded->inputs = loaded->model.GetInputs();
        loaded->outputs = loaded->model.GetOutputs();
      }
      return status;
    },
    message, size);
  return failed ? nullptr : loaded.release();
}

void sdl_free(void *handle) { delete static_cast<Loaded *>(handle); }

int sdl_count(void *handle, int is_output) {
  auto *loaded = static_cast<Loaded *>(handle);
  return static_cast<int>((is_output ? loaded->outputs : loaded->inputs).size());
}

// Name, dtype and format of a tensor, in MindSpore's own numbers. Returns the rank; at most `room` sizes go to `shape`.
int sdl_describe(void *handle, int is_output, int index, char *name, size_t size, int *dtype, int *format,
                 int64_t *shape, int room) {
  const mindspore::MSTensor &tensor = At(handle, is_output, index);
  Tell(tensor.Name(), name, size);
  *dtype = static_cast<int>(tensor.DataType());
  *format = static_cast<int>(tensor.format());
  const std::vector<int64_t> &sizes = tensor.Shape();
  std::copy_n(sizes.begin(), std::min(sizes.size(), static_cast<size_t>(room)), shape);
  return static_cast<int>(sizes.size());
}

// Give every input a new shape: `ranks` of them, and all sizes one after another.
int sdl_resize(void *handle, const int *ranks, const int64_t *sizes, char *message, size_t size) {
  auto *loaded = static_cast<Loaded *>(handle);
  return Guarded(
    [&] {
      std::vector<std::vector<int64_t>> shapes;
      for (size_t index = 0; index < loaded->inputs.size(); ++index) {
        shapes.emplace_back(sizes, sizes + ranks[index]);
        sizes += ranks[index];
      }
      const mindspore::Status status = loaded->model.Resize(loaded->inputs, shapes);
      if (status.IsOk()) {
        loaded->inputs = loaded->model.GetInputs();
        loaded->outputs = loaded->model.GetOutputs();
      }
      return status;
    },
    message, size);
}

// Copy `data` into the inputs, in their order, and execute once. `bytes` must be what each input holds.
int sdl_run(void *handle, const void *const *data, const size_t *bytes, char *message, size_t size) {
  auto *loaded = static_cast<Loaded *>(handle);
  return Guarded(
    [&] {
      for (size_t index = 0; index < loaded->inputs.size(); ++index) {
        mindspore::MSTensor &input = loaded->inputs[index];
        void *memory = input.MutableData();
        if (memory == nullptr || input.DataSize() != bytes[index]) {
          return mindspore::Status(mindspore::kLiteInputTensorError,
                                   "input " + input.Name() + " holds " + std::to_string(input.DataSize()) +
                                     " bytes, and got " + std::to_string(bytes[index]));
        }
        std::memcpy(memory, data[index], bytes[index]);
      }
      return loaded->model.Predict(loaded->inputs, &loaded->outputs);
    },
    message, size);
}

// Where the output of the last run lies, and how many bytes it has; it stays there until the next call.
const void *sdl_output(void *handle, int index, size_t *bytes) {
  auto *loaded = static_cast<Loaded *>(handle);
  mindspore::MSTensor &output = loaded->outputs[static_cast<size_t>(index)];
  *bytes = output.DataSize();
  return output.MutableData();
}

}  // extern "C"
