#include "server/drain.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>

#include "absl/time/clock.h"
#include "proto/base/log.h"
#include "server/jobs/admission.h"
#include "server/jobs/broker.h"

namespace kiln::server {
namespace {

constexpr absl::Duration kHurryCheck = absl::Milliseconds(100);
// For clients to see that they are to go elsewhere, before their connections close.
constexpr absl::Duration kGoodbye = absl::Milliseconds(100);
constexpr absl::Duration kQuiet = absl::Milliseconds(100);
constexpr absl::Duration kQuietLimit = absl::Seconds(2);

}  // namespace

void Drain(grpc::Server& server, Broker& broker, Admission& admission,
           const std::function<void()>& stop_accepting, const std::function<bool()>& hurry,
           const DrainLimits& limits) {
  broker.StartDrain();
  admission.StartDrain();
  Log(LogLevel::kInfo, "draining");
  absl::Time deadline = absl::Now() + limits.work;
  while (!(broker.WaitUntilIdle(kHurryCheck) && admission.WaitUntilWorkDone(kHurryCheck))) {
    if (absl::Now() > deadline || hurry()) {
      Log(LogLevel::kWarning, "ending before the compiles do");
      break;
    }
  }
  // A call that meets gRPC's own shutdown ends as CANCELLED, which no client tries again: those
  // that come are sent away before it.
  admission.Close();
  admission.WaitUntilQuiet(kQuiet, kQuietLimit);
  // gRPC waits for idle connections, too, whose clients may not look at them for a long time:
  // closed once the calls are over.
  stop_accepting();
  std::thread closer([&] {
    absl::Time end = absl::Now() + limits.last_calls;
    absl::SleepFor(kGoodbye);
    admission.WaitUntilEmpty(end - absl::Now());
    grpc_server_cancel_all_calls(server.c_server());
  });
  server.Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(limits.last_calls));
  closer.join();
}

}  // namespace kiln::server
