#include "session.h"

#include <dlfcn.h>

#include <stdexcept>

namespace {

constexpr int kFatal = 4, kWarning = 2;
constexpr int kArenaAllocator = 1, kDefaultMemory = 0;
constexpr int kAllOptimizations = 99;

}  // namespace

Session::Session(const std::string& library, const std::string& model, int threads) {
  handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
  const auto base = reinterpret_cast<const ort::ApiBase* (*)()>(dlsym(handle_, "OrtGetApiBase"));
  if (base == nullptr) throw std::runtime_error(library + " is no ONNX Runtime: it has no OrtGetApiBase");
  table_ = base()->GetApi(ort::kApiVersion);
  version_ = base()->GetVersionString();
  if (table_ == nullptr) throw std::runtime_error(library + " is ONNX Runtime " + version_ + ": 1.11 is needed");

  check(at<ort::CreateEnv>(ort::Place::CreateEnv)(kFatal, "sanderling", &env_));
  ort::SessionOptions* options = nullptr;
  check(at<ort::CreateSessionOptions>(ort::Place::CreateSessionOptions)(&options));
  check(at<ort::SetNumber>(ort::Place::SetIntraOpNumThreads)(options, threads));
  check(at<ort::SetNumber>(ort::Place::SetSessionGraphOptimizationLevel)(options, kAllOptimizations));
  check(at<ort::CreateSession>(ort::Place::CreateSession)(env_, model.c_str(), options, &session_));
  at<ort::Release<ort::SessionOptions>>(ort::Place::ReleaseSessionOptions)(options);
  check(at<ort::CreateCpuMemoryInfo>(ort::Place::CreateCpuMemoryInfo)(kArenaAllocator, kDefaultMemory, &memory_));
}

Session::~Session() {
  if (memory_ != nullptr) at<ort::Release<ort::MemoryInfo>>(ort::Place::ReleaseMemoryInfo)(memory_);
  if (session_ != nullptr) at<ort::Release<ort::Session>>(ort::Place::ReleaseSession)(session_);
  if (env_ != nullptr) at<ort::Release<ort::Env>>(ort::Place::ReleaseEnv)(env_);
}

void Session::run(const std::vector<Tensor>& inputs, const std::vector<Expected>& expected, size_t call,
                  std::vector<std::vector<char>>& outputs) {
  std::vector<const char*> input_names, output_names;
  std::vector<ort::Value*> given(inputs.size()), made(expected.size());
  for (size_t index = 0; index < inputs.size(); ++index) {
    const Tensor& tensor = inputs[index];
    input_names.push_back(tensor.name.c_str());
    char* data = const_cast<char*>(tensor.data.data()) + call * tensor.call_bytes();  // only read
    check(at<ort::CreateTensor>(ort::Place::CreateTensorWithDataAsOrtValue)(
        memory_, data, tensor.call_bytes(), tensor.shape.data(), tensor.shape.size(), tensor.element_type,
        &given[index]));
  }
  for (const Expected& output : expected) output_names.push_back(output.tensor.name.c_str());
  check(at<ort::Run>(ort::Place::Run)(session_, nullptr, input_names.data(), given.data(), given.size(),
                                      output_names.data(), made.size(), made.data()));
  outputs.resize(made.size());
  for (size_t index = 0; index < made.size(); ++index) {
    copy(made[index], expected[index].tensor, outputs[index]);
    at<ort::Release<ort::Value>>(ort::Place::ReleaseValue)(made[index]);
  }
  for (ort::Value* value : given) at<ort::Release<ort::Value>>(ort::Place::ReleaseValue)(value);
}

void Session::copy(ort::Value* value, const Tensor& expected, std::vector<char>& bytes) const {
  ort::ShapeInfo* info = nullptr;
  int element_type = 0;
  size_t count = 0;
  void* data = nullptr;
  check(at<ort::GetTensorTypeAndShape>(ort::Place::GetTensorTypeAndShape)(value, &info));
  check(at<ort::GetTensorElementType>(ort::Place::GetTensorElementType)(info, &element_type));
  check(at<ort::GetTensorShapeElementCount>(ort::Place::GetTensorShapeElementCount)(info, &count));
  at<ort::Release<ort::ShapeInfo>>(ort::Place::ReleaseTensorTypeAndShapeInfo)(info);
  if (element_type != expected.element_type || count * expected.element_bytes != expected.call_bytes())
    throw std::runtime_error("output '" + expected.name + "' has another dtype or size than is expected");
  check(at<ort::GetTensorMutableData>(ort::Place::GetTensorMutableData)(value, &data));
  bytes.assign(static_cast<char*>(data), static_cast<char*>(data) + expected.call_bytes());
}

void Session::check(ort::Status* status) const {
  if (status == nullptr) return;
  const std::string message = at<ort::GetErrorMessage>(ort::Place::GetErrorMessage)(status);
  at<ort::Release<ort::Status>>(ort::Place::ReleaseStatus)(status);
  throw std::runtime_error(message);
}
