#include "golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace {

struct Dtype {
  const char* name;
  int element_type;
  size_t bytes;
};

constexpr Dtype kDtypes[] = {{"float32", 1, 4}, {"uint8", 2, 1},   {"int8", 3, 1}, {"int32", 6, 4},
                             {"int64", 7, 8},   {"float64", 11, 8}, {"bool", 9, 1}};

std::vector<char> read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

Tensor read_tensor(const std::string& folder, const std::vector<std::string>& fields, size_t calls) {
  Tensor tensor;
  tensor.name = fields.at(1);
  const auto found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const Dtype& dtype) { return fields.at(2) == dtype.name; });
  if (found == std::end(kDtypes)) throw std::runtime_error("golden.tsv: unknown dtype " + fields.at(2));
  tensor.element_type = found->element_type;
  tensor.element_bytes = found->bytes;
  for (const auto& size : split(fields.at(3), ',')) tensor.shape.push_back(std::stoll(size));
  tensor.data = read_file(folder + "/" + fields.at(4));
  if (tensor.data.size() != tensor.call_bytes() * calls)
    throw std::runtime_error(fields.at(4) + " has another size than golden.tsv says");
  return tensor;
}

double value_at(const std::vector<char>& data, size_t index, const Tensor& tensor) {
  const char* place = data.data() + index * tensor.element_bytes;
  const auto as = [&](auto value) {
    std::memcpy(&value, place, sizeof value);
    return static_cast<double>(value);
  };
  switch (tensor.element_type) {
    case 1: return as(float{});
    case 3: return as(int8_t{});
    case 6: return as(int32_t{});
    case 7: return as(int64_t{});
    case 11: return as(double{});
    default: return as(uint8_t{});
  }
}

}  // namespace

size_t Tensor::call_bytes() const {
  size_t count = element_bytes;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

Golden read_golden(const std::string& folder) {
  std::ifstream stream(folder + "/golden.tsv");
  if (!stream) throw std::runtime_error("cannot read " + folder + "/golden.tsv");
  Golden golden;
  for (std::string line; std::getline(stream, line);) {
    const auto fields = split(line, '\t');
    if (fields.empty()) continue;
    if (fields[0] == "model") golden.model = fields.at(1);
    if (fields[0] == "calls") golden.calls = std::stoul(fields.at(1));
    if (fields[0] == "input") golden.inputs.push_back(read_tensor(folder, fields, golden.calls));
    if (fields[0] == "output") {
      Tensor tensor = read_tensor(folder, fields, golden.calls);
      auto reference = read_file(folder + "/" + fields.at(5));
      if (reference.size() != tensor.data.size()) throw std::runtime_error(fields.at(5) + " has another size");
      golden.outputs.push_back({tensor, reference, std::stod(fields.at(6)), std::stod(fields.at(7))});
    }
  }
  if (golden.calls == 0 || golden.inputs.empty() || golden.outputs.empty())
    throw std::runtime_error("golden.tsv names no calls, inputs or outputs");
  return golden;
}

Comparison compare(const Expected& expected, const std::vector<char>& data) {
  if (data.size() != expected.tensor.data.size()) return {INFINITY, -INFINITY, false};
  double largest = 0, difference = 0, signal = 0, noise = 0;
  bool finite = true;
  for (size_t index = 0; index < data.size() / expected.tensor.element_bytes; ++index) {
    const double own = value_at(expected.tensor.data, index, expected.tensor);
    const double exact = value_at(expected.reference, index, expected.tensor);
    const double got = value_at(data, index, expected.tensor);
    if (!std::isfinite(own)) {  // a mask's infinity must be there again
      finite = finite && (got == own || (std::isnan(got) && std::isnan(own)));
      continue;
    }
    finite = finite && std::isfinite(got);
    largest = std::max(largest, std::abs(own));
    difference = std::max(difference, std::abs(own - got));
    signal += exact * exact;
    noise += (exact - got) * (exact - got);
  }
  const double error = largest > 0 ? difference / largest : difference;
  const double ratio_db = noise > 0 ? 10 * std::log10(signal / noise) : 200;
  return {error, ratio_db, finite && (error <= expected.tolerance || ratio_db >= expected.least_db)};
}
