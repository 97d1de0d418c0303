// Runs the golden calls of a folder, times the first, and writes what it found as JSON.
//
//   sanderling-run FOLDER [--model FILE] [--library FILE] [--threads N] [--warmup N] [--repeats N] [--out FILE]
//
// FOLDER has golden.tsv and what that names. Exit code 0 when every output is right, 1 when one is not, 2 otherwise.
#include <sys/utsname.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "golden.h"
#include "session.h"

namespace {

using Clock = std::chrono::steady_clock;
using Options = std::map<std::string, std::string>;

Options parse(int count, char** words) {
  Options options = {{"--threads", "1"}, {"--warmup", "10"}, {"--repeats", "100"}, {"--library", ""}, {"--out", ""},
                     {"--model", ""}};
  if (count < 2 || count % 2 != 0) throw std::runtime_error("usage: sanderling-run FOLDER [--OPTION VALUE]...");
  for (int index = 2; index < count; index += 2) {
    if (options.count(words[index]) == 0) throw std::runtime_error(std::string("unknown option ") + words[index]);
    options[words[index]] = words[index + 1];
  }
  options["folder"] = words[1];
  return options;
}

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') made += '\\';
    made += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return made + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  std::ostringstream stream;
  stream.precision(9);
  stream << value;
  return stream.str();
}

std::string machine() {
  utsname name{};
  uname(&name);
  return quoted(std::string(name.sysname) + " " + name.release + " " + name.machine);
}

// Most memory that this process has had at once, in bytes, as the kernel counts it; 0 where it does not tell.
long long peak_memory_bytes() {
  std::ifstream stream("/proc/self/status");
  long long size = 0;
  for (std::string line; std::getline(stream, line);)
    if (std::sscanf(line.c_str(), "VmHWM: %lld kB", &size) == 1) return size * 1024;
  return 0;
}

bool check_calls(Session& session, const Golden& golden, std::ostream& json) {
  std::vector<std::vector<char>> all(golden.outputs.size()), outputs;
  for (size_t call = 0; call < golden.calls; ++call) {
    session.run(golden.inputs, golden.outputs, call, outputs);
    for (size_t index = 0; index < outputs.size(); ++index)
      all[index].insert(all[index].end(), outputs[index].begin(), outputs[index].end());
  }
  bool passed = true;
  json << "\"outputs\": [";
  for (size_t index = 0; index < all.size(); ++index) {
    const Expected& expected = golden.outputs[index];
    const Comparison found = compare(expected, all[index]);
    passed = passed && found.passed;
    json << (index ? ", " : "") << "{\"name\": " << quoted(expected.tensor.name)
         << ", \"relative_error\": " << number(found.relative_error) << ", \"tolerance\": " << number(expected.tolerance)
         << ", \"sqnr_db\": " << number(found.sqnr_db) << ", \"least_db\": " << number(expected.least_db)
         << ", \"passed\": " << (found.passed ? "true" : "false") << "}";
  }
  json << "], \"passed\": " << (passed ? "true" : "false");
  return passed;
}

void time_calls(Session& session, const Golden& golden, int warmup, int repeats, std::ostream& json) {
  std::vector<std::vector<char>> outputs;
  for (int call = 0; call < warmup; ++call) session.run(golden.inputs, golden.outputs, 0, outputs);
  json << "\"samples_ms\": [";
  for (int call = 0; call < repeats; ++call) {
    const auto start = Clock::now();
    session.run(golden.inputs, golden.outputs, 0, outputs);
    const std::chrono::duration<double, std::milli> taken = Clock::now() - start;
    json << (call ? ", " : "") << number(taken.count());
  }
  json << "]";
}

int run(Options& options) {
  const std::string folder = options["folder"];
  const Golden golden = read_golden(folder);
  const std::string library = options["--library"].empty() ? folder + "/libonnxruntime.so" : options["--library"];
  const std::string model = options["--model"].empty() ? golden.model : options["--model"];
  const int threads = std::stoi(options["--threads"]);
  Session session(library, folder + "/" + model, threads);
  std::ostringstream json;
  json << "{\"schema_version\": 1, \"runner\": \"sanderling-run\", \"onnxruntime\": " << quoted(session.version())
       << ", \"model\": " << quoted(model) << ", \"machine\": " << machine() << ", \"threads\": " << threads << ", ";
  const bool passed = check_calls(session, golden, json);
  json << ", ";
  time_calls(session, golden, std::stoi(options["--warmup"]), std::stoi(options["--repeats"]), json);
  json << ", \"peak_memory_bytes\": " << peak_memory_bytes() << "}\n";
  if (options["--out"].empty()) {
    std::cout << json.str();
  } else if (!(std::ofstream(options["--out"]) << json.str())) {
    throw std::runtime_error("cannot write " + options["--out"]);
  }
  return passed ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    Options options = parse(count, words);
    return run(options);
  } catch (const std::exception& error) {
    std::cerr << "sanderling-run: " << error.what() << "\n";
    return 2;
  }
}
