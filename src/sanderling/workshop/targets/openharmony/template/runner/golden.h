// Golden calls: inputs, and the outputs that the model must give for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Tensor {
  std::string name;
  int element_type;             // ONNX's number of the dtype
  size_t element_bytes;
  std::vector<int64_t> shape;   // of one call
  std::vector<char> data;       // of all calls, one after the other

  size_t call_bytes() const;
};

struct Expected {
  Tensor tensor;
  std::vector<char> reference;  // what FP32 gives
  double tolerance;             // largest difference over the largest expected value
  double least_db;              // else, least ratio of signal to noise against the reference
};

struct Golden {
  std::string model;
  size_t calls = 0;
  std::vector<Tensor> inputs;
  std::vector<Expected> outputs;
};

struct Comparison {
  double relative_error;
  double sqnr_db;
  bool passed;
};

// Reads golden.tsv of a folder; throws std::runtime_error.
Golden read_golden(const std::string& folder);

// Compares what all calls gave, `data`, with what is expected.
Comparison compare(const Expected& expected, const std::vector<char>& data);
