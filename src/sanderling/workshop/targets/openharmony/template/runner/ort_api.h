// The part of ONNX Runtime's C API that this program uses, by its places in the table of functions.
//
// The table only grows, so that a place means the same in every release; the places up to 101 are those of 1.0. With this
// file any libonnxruntime.so will do, without the headers of its release.
// Source: onnxruntime/core/session/onnxruntime_c_api.h, struct OrtApi.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kApiVersion = 11;  // oldest whose table is asked for

struct Status;
struct Env;
struct Session;
struct SessionOptions;
struct RunOptions;
struct Value;
struct MemoryInfo;
struct ShapeInfo;

struct ApiBase {
  const void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// Names as in the header; Place is the position of the function in the table.
enum class Place : size_t {
  GetErrorMessage = 2,
  CreateEnv = 3,
  CreateSession = 7,
  Run = 9,
  CreateSessionOptions = 10,
  SetSessionGraphOptimizationLevel = 23,
  SetIntraOpNumThreads = 24,
  CreateTensorWithDataAsOrtValue = 49,
  GetTensorMutableData = 51,
  GetTensorElementType = 60,
  GetTensorShapeElementCount = 64,
  GetTensorTypeAndShape = 65,
  CreateCpuMemoryInfo = 69,
  ReleaseEnv = 92,
  ReleaseStatus = 93,
  ReleaseMemoryInfo = 94,
  ReleaseSession = 95,
  ReleaseValue = 96,
  ReleaseTensorTypeAndShapeInfo = 99,
  ReleaseSessionOptions = 100,
};

using GetErrorMessage = const char* (*)(const Status*);
using CreateEnv = Status* (*)(int severity, const char* name, Env** made);
using CreateSession = Status* (*)(const Env*, const char* path, const SessionOptions*, Session** made);
using Run = Status* (*)(Session*, const RunOptions*, const char* const* input_names, const Value* const* inputs,
                        size_t input_count, const char* const* output_names, size_t output_count, Value** outputs);
using CreateSessionOptions = Status* (*)(SessionOptions** made);
using SetNumber = Status* (*)(SessionOptions*, int);
using CreateTensor = Status* (*)(const MemoryInfo*, void* data, size_t size_bytes, const int64_t* shape, size_t rank,
                                 int element_type, Value** made);
using GetTensorMutableData = Status* (*)(Value*, void** data);
using GetTensorElementType = Status* (*)(const ShapeInfo*, int* element_type);
using GetTensorShapeElementCount = Status* (*)(const ShapeInfo*, size_t* count);
using GetTensorTypeAndShape = Status* (*)(const Value*, ShapeInfo** made);
using CreateCpuMemoryInfo = Status* (*)(int allocator, int memory, MemoryInfo** made);
template <typename T>
using Release = void (*)(T*);

}  // namespace ort
