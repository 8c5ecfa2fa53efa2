#include "tests/soak/steady_client.h"

#include <signal.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/integration/server_test.h"
#include "tests/soak/answers.h"

namespace kiln::soak {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(1);

}  // namespace

SteadyClient::SteadyClient(World& world, uint64_t seed) : world_(world) {
  auto process = integration::Process::Start(
      {"/proc/self/exe", "client", "--seed", absl::StrCat(seed)},
      world.ClientEnvironment(absl::StrCat(world.secure_url(), ",", world.open_url())));
  if (!process.ok()) std::abort();  // a second copy of this very program
  process_ = *std::move(process);
  reader_ = std::thread([this] {
    while (!over_) {
      auto line = process_->ReadLine(absl::Milliseconds(100));
      if (!line) continue;
      if (*line == "paused") paused_ = true;
      TakeLine(world_, *line);
    }
  });
}

SteadyClient::~SteadyClient() {
  process_->Signal(SIGTERM);
  const int code = process_->Wait(kLimit).value_or(-1);
  over_ = true;
  reader_.join();
  if (code == 0) return;
  world_.ledger.Breach(
      absl::StrCat("the steady client ended with ", code, ": ", process_->Errors()));
}

void SteadyClient::Pause() {
  paused_ = false;
  process_->Signal(SIGUSR1);
  if (integration::Eventually(kLimit, [this] { return paused_.load(); })) return;
  world_.ledger.Breach("the steady client does not pause: " + process_->Errors());
}

void SteadyClient::Resume() {
  process_->Signal(SIGUSR2);
}

}  // namespace kiln::soak
