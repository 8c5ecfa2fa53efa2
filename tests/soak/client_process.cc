#include "tests/soak/client_process.h"

#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/status_bridge.h"
#include "kiln/client.h"
#include "tests/soak/programs.h"

namespace kiln::soak {
namespace {

// What most clients ask for, the first ones most, and what hardly anybody asked for before.
constexpr int kPopular = 150;
constexpr int kRare = 1 << 30;
constexpr double kRarePart = 0.04;
constexpr double kRememberPart = 0.1;  // requests that the process's own programs may answer
constexpr absl::Duration kLongestPause = absl::Milliseconds(30);

volatile sig_atomic_t g_end = 0;
volatile sig_atomic_t g_pause = 0;

uint64_t DrawNumber(std::mt19937_64& random) {
  std::uniform_real_distribution<> part(0, 1);
  if (part(random) < kRarePart) return kPopular + random() % kRare;
  return static_cast<uint64_t>(std::pow(kPopular, part(random))) - 1;
}

void SayError(const absl::Status& status) {
  kiln_status* error = ToCStatus(status);
  const std::string reason = kiln_status_reason(error);
  std::printf("error %s %s %s\n", kiln_status_code_name(error),
              reason.empty() ? "-" : reason.c_str(),
              absl::StrReplaceAll(kiln_status_message(error), {{"\n", " "}}).c_str());
  kiln_status_destroy(error);
}

absl::StatusOr<Outputs> Run(const Program& program, const KnownProgram& known) {
  std::vector<kiln_tensor> tensors;
  std::vector<integration::Sizes> strides;
  strides.reserve(known.sizes.size());
  for (size_t i = 0; i < known.sizes.size(); ++i) {
    const integration::Sizes& sizes = known.sizes[i];
    integration::Sizes& steps = strides.emplace_back(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d > 0; --d) steps[d - 1] = steps[d] * sizes[d];
    tensors.push_back({.data = const_cast<float*>(known.inputs[i].data()),
                       .sizes = sizes.data(),
                       .strides = steps.data(),
                       .ndim = static_cast<int32_t>(sizes.size()),
                       .dtype = KILN_FLOAT32,
                       .device_type = KILN_CPU,
                       .device_index = 0});
  }
  return program.Run(tensors);
}

void AskAndCheck(Client& client, uint64_t number) {
  const KnownProgram known = MakeProgram(number);
  absl::StatusOr<Compiled> compiled = client.Compile(known.request.graph());
  if (!compiled.ok()) return SayError(compiled.status());
  absl::StatusOr<Outputs> outputs = Run(*compiled->program, known);
  if (!outputs.ok()) return SayError(outputs.status());
  const auto* data = static_cast<const float*>((*outputs)[0].data);
  for (size_t i = 0; i < known.answer.size(); ++i) {
    if (data[i] == known.answer[i]) continue;
    std::printf("wrong program %llu, element %zu: %.9g instead of %.9g (%s)\n",
                static_cast<unsigned long long>(number), i, static_cast<double>(data[i]),
                static_cast<double>(known.answer[i]), compiled->source);
    return;
  }
  std::printf("answer %s %.0f\n", compiled->source, compiled->fetch_ms * 1000);
}

// Holds nothing that it could have given back.
void Pause() {
  ForgetPrograms();
  malloc_trim(0);
  std::printf("paused\n");
  std::fflush(stdout);
  while (g_pause && !g_end) absl::SleepFor(absl::Milliseconds(20));
}

}  // namespace

int RunClientProcess(uint64_t seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, [](int) { g_end = 1; });
  signal(SIGUSR1, [](int) { g_pause = 1; });
  signal(SIGUSR2, [](int) { g_pause = 0; });
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<> part(0, 1);
  while (!g_end) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create({.threads = 1});
    if (!client.ok()) {
      SayError(client.status());
      return 1;
    }
    while (!g_end && !g_pause) {
      if (part(random) > kRememberPart) ForgetPrograms();
      AskAndCheck(**client, DrawNumber(random));
      std::fflush(stdout);
      absl::SleepFor(kLongestPause * part(random));
    }
    client->reset();
    if (!g_end && g_pause) Pause();
  }
  return 0;
}

}  // namespace kiln::soak
