// One session of ONNX Runtime, whose library is found when the program runs.
#pragma once

#include <string>
#include <vector>

#include "golden.h"
#include "ort_api.h"

class Session {
 public:
  // Loads the library and the model; throws std::runtime_error with ONNX Runtime's own message.
  Session(const std::string& library, const std::string& model, int threads);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Runs one call; `outputs` gets the bytes of each output.
  void run(const std::vector<Tensor>& inputs, const std::vector<Expected>& expected, size_t call,
           std::vector<std::vector<char>>& outputs);

  const std::string& version() const { return version_; }

 private:
  template <typename Function>
  Function at(ort::Place place) const {
    return reinterpret_cast<Function>(const_cast<void*>(table_[static_cast<size_t>(place)]));
  }
  void check(ort::Status* status) const;
  void copy(ort::Value* value, const Tensor& expected, std::vector<char>& bytes) const;

  void* handle_ = nullptr;
  const void* const* table_ = nullptr;
  ort::Env* env_ = nullptr;
  ort::Session* session_ = nullptr;
  ort::MemoryInfo* memory_ = nullptr;
  std::string version_;
};
