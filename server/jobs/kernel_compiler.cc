#include "server/jobs/kernel_compiler.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

constexpr int kMaxAttempts = 2;

// Where whether to stop is asked: first when a worker takes the task, whose time begins there.
void NoteStart(std::atomic<int64_t>& started_ns) {
  int64_t unset = 0;
  started_ns.compare_exchange_strong(unset, absl::GetCurrentTimeNanos());
}

}  // namespace

struct KernelCompiler::Flight {
  Digest key;
  std::shared_ptr<const v1::WorkerRequest> request;
  int64_t job = 0;
  int64_t weight = 0;
  // Only the flight's current attempt reads and writes these, one at a time.
  int attempts = 0;
  int worker_deaths = 0;
  std::atomic<int64_t> started_ns = 0, assembling_ns = 0;

  absl::Mutex mu;
  struct Subscriber {
    std::function<bool()> stopped;
    std::function<void(const KernelOutcome&)> done;
  };
  std::vector<Subscriber> subscribers ABSL_GUARDED_BY(mu);

  bool AllStopped() {
    absl::MutexLock lock(&mu);
    return std::all_of(subscribers.begin(), subscribers.end(),
                       [](const Subscriber& s) { return s.stopped(); });
  }
};

void KernelCompiler::Compile(KernelRequest request) {
  std::shared_ptr<Flight> flight;
  {
    absl::MutexLock lock(&mu_);
    std::shared_ptr<Flight>& place = flights_[request.key];
    bool is_new = place == nullptr;
    if (is_new) {
      place = std::make_shared<Flight>();
      place->key = request.key;
      place->request = std::move(request.request);
      place->job = request.job;
      place->weight = request.weight;
    }
    absl::MutexLock flight_lock(&place->mu);
    place->subscribers.push_back({std::move(request.stopped), std::move(request.done)});
    if (!is_new) return;
    flight = place;
  }
  // From here on the key is compiled nowhere else, but it may have been since the job looked.
  std::shared_ptr<const v1::WorkerResponse> found = FindInMemory(flight->key);
  if (found == nullptr) return Submit(flight);
  Land(flight, {.kernel = CompiledKernel{std::move(found)}, .joined = true});
}

std::shared_ptr<const v1::WorkerResponse> KernelCompiler::FindInMemory(const Digest& key) {
  auto found = memory_.Get({cache::EntryKind::kKernel, key});
  if (!found.ok()) return nullptr;
  auto response = std::make_shared<v1::WorkerResponse>();
  if (!response->mutable_compile_kernel()->ParseFromString(found->entry->bytes)) return nullptr;
  return response;
}

void KernelCompiler::Submit(const std::shared_ptr<Flight>& flight) {
  ++flight->attempts;
  flight->started_ns = flight->assembling_ns = 0;
  WorkerTask task;
  task.request = flight->request;
  task.job = flight->job;
  task.weight = flight->weight;
  task.stopped = [flight] {
    NoteStart(flight->started_ns);
    return flight->AllStopped();
  };
  task.done = [this, flight](absl::StatusOr<v1::WorkerResponse> response) {
    Finish(flight, std::move(response));
  };
  workers_.Submit(std::move(task));
}

void KernelCompiler::Finish(const std::shared_ptr<Flight>& flight,
                            absl::StatusOr<v1::WorkerResponse> response) {
  const int64_t started_ns = flight->started_ns, now_ns = absl::GetCurrentTimeNanos();
  CompiledKernel kernel{.compile_ns = started_ns == 0 ? 0 : now_ns - started_ns,
                        .compiled = absl::FromUnixNanos(now_ns)};
  if (IsWorkerDeath(response.status())) ++flight->worker_deaths;
  if (IsWorkerCrash(response.status()) && flight->attempts < kMaxAttempts) {
    Log(LogLevel::kWarning, "a kernel is compiled a second time after a crash",
        {{"kernel", flight->key.ShortHex()}});
    return Submit(flight);
  }
  if (!response.ok()) {
    return Land(flight, {.kernel = response.status(), .worker_deaths = flight->worker_deaths});
  }
  if (WantsCubin(*flight)) return SubmitAssembly(flight, *std::move(response), std::move(kernel));
  StoreAndLand(flight, *std::move(response), std::move(kernel), /*whole=*/true);
}

bool KernelCompiler::WantsCubin(const Flight& flight) const {
  if (assembler_.workers == nullptr) return false;
  const v1::Device& device = flight.request->compile_kernel().device();
  return device.target() == v1::TARGET_PTX &&
         std::any_of(device.binary_formats().begin(), device.binary_formats().end(),
                     [](const auto& format) { return format.kind() == v1::BINARY_KIND_CUBIN; });
}

void KernelCompiler::SubmitAssembly(const std::shared_ptr<Flight>& flight,
                                    v1::WorkerResponse response, CompiledKernel kernel) {
  auto request = std::make_shared<v1::WorkerRequest>();
  request->mutable_assemble()->set_ptx(response.compile_kernel().object());
  request->mutable_assemble()->set_arch(flight->request->compile_kernel().device().arch());
  WorkerTask task;
  task.request = std::move(request);
  task.job = flight->job;
  task.weight = flight->weight;
  // Goes on without anyone who waits: what is stored is to be whole.
  task.stopped = [flight] {
    NoteStart(flight->assembling_ns);
    return false;
  };
  auto compiled = std::make_shared<v1::WorkerResponse>(std::move(response));
  task.done = [this, flight, compiled,
               kernel](absl::StatusOr<v1::WorkerResponse> assembled) mutable {
    const int64_t assembling_ns = flight->assembling_ns;
    if (assembling_ns != 0) kernel.assembling = absl::FromUnixNanos(assembling_ns);
    if (assembled.ok()) {
      v1::CompileKernelResponse& to = *compiled->mutable_compile_kernel();
      to.set_cubin(std::move(*assembled->mutable_assemble()->mutable_cubin()));
      to.set_assembler(assembled->assemble().assembler());
    } else {
      Log(LogLevel::kWarning, "a kernel has no cubin, only PTX",
          {{"kernel", flight->key.ShortHex()}, {"why", std::string(assembled.status().message())}});
    }
    if (assembler_.on_assembled) assembler_.on_assembled(assembled.ok());
    StoreAndLand(flight, std::move(*compiled), std::move(kernel),
                 /*whole=*/!absl::IsCancelled(assembled.status()));
  };
  assembler_.workers->Submit(std::move(task));
}

void KernelCompiler::StoreAndLand(const std::shared_ptr<Flight>& flight,
                                  v1::WorkerResponse response, CompiledKernel kernel, bool whole) {
  auto shared = std::make_shared<const v1::WorkerResponse>(std::move(response));
  if (whole) {
    absl::Status stored =
        store_.Put({cache::EntryKind::kKernel, flight->key},
                   cache::MakeEntry(shared->compile_kernel().SerializeAsString()));
    if (!stored.ok()) {
      Log(LogLevel::kWarning, "a kernel was not stored", {{"why", stored.ToString()}});
    }
  }
  kernel.response = std::move(shared);
  Land(flight, {.kernel = std::move(kernel), .worker_deaths = flight->worker_deaths});
}

void KernelCompiler::Land(const std::shared_ptr<Flight>& flight, KernelOutcome outcome) {
  std::vector<Flight::Subscriber> subscribers;
  {
    absl::MutexLock lock(&mu_);
    absl::MutexLock flight_lock(&flight->mu);
    // A job that joined after the last one had left still wants it.
    bool wanted = std::any_of(flight->subscribers.begin(), flight->subscribers.end(),
                              [](const Flight::Subscriber& s) { return !s.stopped(); });
    if (!absl::IsCancelled(outcome.kernel.status()) || !wanted ||
        flight->attempts >= kMaxAttempts) {
      subscribers.swap(flight->subscribers);
      flights_.erase(flight->key);
    }
  }
  if (subscribers.empty()) return Submit(flight);
  for (const Flight::Subscriber& subscriber : subscribers) {
    subscriber.done(outcome);
    outcome.joined = true;
  }
}

}  // namespace kiln::server
