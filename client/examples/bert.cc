// Compiles a saved graph and runs it, in C++: with the weights that .safetensors files have, and
// with random numbers for the rest.
//
//   cmake -B build . && cmake --build build && build/bert_cc bert-base.kgraph
//   [model.safetensors...]
#include <kiln/client.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

// Memory for an input of fixed sizes: small numbers, which are good indices as well.
std::vector<char> MakeValues(const kiln_value_info& info, std::minstd_rand& random) {
  size_t count = 1;
  for (int d = 0; d < info.ndim; ++d) count *= static_cast<size_t>(info.sizes[d]);
  std::vector<char> bytes((count + 1) * sizeof(int64_t));
  for (size_t i = 0; i < count; ++i) {
    if (info.dtype == KILN_FLOAT32) {
      reinterpret_cast<float*>(bytes.data())[i] = std::normal_distribution<float>(0, 0.1f)(random);
    } else if (info.dtype == KILN_INT64) {
      reinterpret_cast<int64_t*>(bytes.data())[i] = static_cast<int64_t>(random() % 2);
    }
  }
  return bytes;
}

absl::Status Run(const char* path, const std::vector<std::string>& weight_files) {
  absl::StatusOr<std::unique_ptr<kiln::Client>> client = kiln::Client::Create({});
  if (!client.ok()) return client.status();
  absl::StatusOr<kiln::Graph> graph = kiln::LoadGraph(path);
  if (!graph.ok()) return graph.status();
  absl::StatusOr<kiln::Compiled> compiled = (*client)->Compile(*graph);
  if (!compiled.ok()) return compiled.status();
  std::printf("%s in %.0f ms\n", compiled->source, compiled->fetch_ms + compiled->compile_ms);

  std::minstd_rand random(1);
  std::vector<std::vector<char>> values;
  std::vector<kiln_tensor> inputs;
  for (size_t i = 0; i < compiled->program->num_inputs(); ++i) {
    absl::StatusOr<kiln_value_info> info = compiled->program->Input(i);
    if (!info.ok()) return info.status();
    values.push_back(MakeValues(*info, random));
    inputs.push_back(
        {values.back().data(), info->sizes, info->strides, info->ndim, info->dtype, KILN_CPU, 0});
  }
  absl::StatusOr<std::unique_ptr<kiln::Weights>> weights = kiln::Weights::Load(weight_files);
  if (!weights.ok()) return weights.status();
  absl::StatusOr<kiln::Weights::Binding> bound = (*weights)->Bind(*graph, absl::MakeSpan(inputs));
  if (!bound.ok()) return bound.status();
  for (size_t i = 0; i < inputs.size() && !weight_files.empty(); ++i) {
    if (!bound->given[i]) {
      std::printf("random: %s\n", std::string(graph->input_name(i, 0)).c_str());
    }
  }
  absl::StatusOr<kiln::Outputs> outputs = compiled->program->Run(inputs);
  if (!outputs.ok()) return outputs.status();
  for (size_t i = 0; i < outputs->size(); ++i) {
    std::printf("output %zu: %g ...\n", i, static_cast<const float*>((*outputs)[i].data)[0]);
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bert GRAPH [WEIGHTS...]\n");
    return 2;
  }
  const absl::Status status = Run(argv[1], {argv + 2, argv + argc});
  if (kiln::IsCacheMiss(status)) std::fprintf(stderr, "KILN_FAIL_ON_MISS is set\n");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
