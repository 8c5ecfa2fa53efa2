#include "client/load/load.h"

#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/channels.h"
#include "client/credentials.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/digest.h"
#include "proto/base/status_macros.h"

namespace kiln::load {
namespace {

using Stub = v1::CompileService::Stub;

constexpr size_t kRecordBytes = 1 << 20;

void AddHeaders(const LoadOptions& options, grpc::ClientContext& context) {
  for (const auto& [name, value] : options.headers) context.AddMetadata(name, value);
  options.credentials->Apply(context);
}

absl::Status ToAbsl(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

// What one key's popularity is, by the inverse of the cumulative distribution.
class KeyPicker {
 public:
  KeyPicker(int64_t keys, double zipf) : keys_(keys) {
    if (zipf <= 0) return;
    double sum = 0;
    cumulative_.reserve(static_cast<size_t>(keys));
    for (int64_t i = 0; i < keys; ++i) {
      sum += std::pow(static_cast<double>(i + 1), -zipf);
      cumulative_.push_back(sum);
    }
  }
  int64_t Pick(std::mt19937_64& random) const {
    if (cumulative_.empty()) return std::uniform_int_distribution<int64_t>(0, keys_ - 1)(random);
    const double at = std::uniform_real_distribution<>(0, cumulative_.back())(random);
    return std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, at) - cumulative_.begin();
  }

 private:
  int64_t keys_;
  std::vector<double> cumulative_;
};

class Generator;

// One request under way; deletes itself.
template <typename Message>
class Request final : public grpc::ClientReadReactor<Message> {
 public:
  Request(Generator& generator, absl::Time due) : generator_(generator), due_(due) {}

  grpc::ClientContext& context() { return context_; }
  void Begin() {
    this->StartRead(&message_);
    this->StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    bytes_ += DataBytes(message_);
    this->StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override;

 private:
  static int64_t DataBytes(const v1::ArtifactChunk& chunk) {
    return static_cast<int64_t>(chunk.data().size());
  }
  static int64_t DataBytes(const v1::CompileEvent& event) {
    return static_cast<int64_t>(event.chunk().data().size());
  }

  Generator& generator_;
  const absl::Time due_;
  grpc::ClientContext context_;
  Message message_;
  int64_t bytes_ = 0;
};

class Generator {
 public:
  // Sends one request through `stub` for the key of that number.
  using Send = std::function<void(Generator& generator, Stub& stub, int64_t key, absl::Time due)>;

  Generator(const LoadOptions& options, Send send)
      : options_(options), send_(std::move(send)), picker_(options.keys, options.zipf) {}

  absl::StatusOr<LoadResult> Run() {
    for (int i = 0; i < options_.connections; ++i) {
      std::shared_ptr<grpc::Channel> channel = OwnChannel(options_.server, *options_.credentials);
      if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5))) {
        return absl::UnavailableError(absl::StrCat("cannot reach the server at ", options_.server));
      }
      stubs_.push_back(v1::CompileService::NewStub(channel));
    }
    count_from_ = absl::Now() + options_.warmup;
    stop_at_ = count_from_ + options_.duration;
    if (options_.requests_per_s > 0) {
      RunOpenLoop();
    } else {
      for (int i = 0; i < options_.concurrency; ++i) SendNext();
    }
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &Generator::IsDone));
    result_.took = std::max(last_done_, stop_at_) - count_from_;
    return std::move(result_);
  }

  void Done(grpc::StatusCode code, absl::Time due, int64_t bytes) {
    const absl::Time now = absl::Now();
    {
      absl::MutexLock lock(&mu_);
      if (due >= count_from_) {
        ++result_.by_code[absl::StatusCodeToString(static_cast<absl::StatusCode>(code))];
        (code == grpc::StatusCode::OK ? result_.latency : result_.failed).Add(now - due);
        result_.bytes += bytes;
        last_done_ = now;
      }
    }
    if (options_.requests_per_s <= 0 && now < stop_at_) SendNext();
    absl::MutexLock lock(&mu_);  // after SendNext, so that it is never idle in between
    --under_way_;
  }

  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoNanoseconds(options_.timeout));
    AddHeaders(options_, context);
  }

 private:
  bool IsDone() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return under_way_ == 0; }

  void SendNext() { SendAt(absl::Now()); }

  void SendAt(absl::Time due) {
    int64_t key;
    size_t stub;
    {
      absl::MutexLock lock(&mu_);
      key = picker_.Pick(random_);
      stub = next_stub_++ % stubs_.size();
      ++under_way_;
    }
    send_(*this, *stubs_[stub], key, due);
  }

  void RunOpenLoop() {
    prctl(PR_SET_TIMERSLACK, 1);  // ns: what a sleep takes too long would count as the server's
    std::mt19937_64 random(options_.seed + 1);
    std::exponential_distribution<> gap_s(options_.requests_per_s);
    for (absl::Time due = absl::Now(); due < stop_at_; due += absl::Seconds(gap_s(random))) {
      absl::SleepFor(due - absl::Now());
      bool full;
      {
        absl::MutexLock lock(&mu_);
        full = under_way_ >= options_.max_under_way;
        if (full && due >= count_from_) ++result_.unsent;
      }
      if (!full) SendAt(due);
    }
  }

  const LoadOptions& options_;
  const Send send_;
  const KeyPicker picker_;
  std::vector<std::unique_ptr<Stub>> stubs_;
  absl::Time count_from_;
  absl::Time stop_at_;

  absl::Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_){options_.seed};
  size_t next_stub_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_done_ ABSL_GUARDED_BY(mu_);
  LoadResult result_ ABSL_GUARDED_BY(mu_);
};

template <typename Message>
void Request<Message>::OnDone(const grpc::Status& status) {
  // First what holds a part of gRPC's call: whoever waits for the last one may end the process.
  Generator& generator = generator_;
  const absl::Time due = due_;
  const int64_t bytes = bytes_;
  const grpc::StatusCode code = status.error_code();
  delete this;
  generator.Done(code, due, bytes);
}

std::string EntryBytes(const Entries& entries, int64_t number) {
  std::mt19937_64 random(static_cast<uint64_t>(number));
  std::string bytes(static_cast<size_t>(entries.bytes), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

bool WriteEntry(grpc::ClientWriter<v1::CacheRecord>& writer, const Entries& entries,
                int64_t number) {
  const std::string bytes = EntryBytes(entries, number);
  for (size_t begin = 0; begin < bytes.size() || begin == 0; begin += kRecordBytes) {
    v1::CacheRecord record;
    if (begin == 0) {
      record.set_kind("artifact");
      record.set_key(EntryKey(entries, number));
      record.set_digest(std::string(Sha256(bytes).view()));
      record.set_total_bytes(entries.bytes);
    }
    record.set_data(bytes.substr(begin, kRecordBytes));
    if (!writer.Write(record)) return false;
  }
  return true;
}

}  // namespace

std::string EntryKey(const Entries& entries, int64_t number) {
  return std::string(
      Sha256(absl::StrCat("kiln load entry ", number, " of ", entries.bytes, " bytes")).view());
}

absl::Status PutEntries(const LoadOptions& options, const Entries& entries) {
  std::shared_ptr<grpc::Channel> channel = OwnChannel(options.server, *options.credentials);
  std::unique_ptr<Stub> stub = v1::CompileService::NewStub(channel);
  grpc::ClientContext context;
  AddHeaders(options, context);
  v1::ImportCacheResponse response;
  auto writer = stub->ImportCache(&context, &response);
  for (int64_t i = 0; i < entries.count && WriteEntry(*writer, entries, i); ++i) {
  }
  writer->WritesDone();
  return ToAbsl(writer->Finish());
}

absl::StatusOr<LoadResult> RunFetches(const LoadOptions& options, const Entries& entries) {
  std::vector<v1::FetchRequest> requests(static_cast<size_t>(options.keys));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_key(EntryKey(entries, static_cast<int64_t>(i)));
  }
  Generator generator(options, [&](Generator& load, Stub& stub, int64_t key, absl::Time due) {
    auto* request = new Request<v1::ArtifactChunk>(load, due);
    load.Prepare(request->context());
    stub.async()->Fetch(&request->context(), &requests[static_cast<size_t>(key)], request);
    request->Begin();
  });
  return generator.Run();
}

absl::StatusOr<LoadResult> RunCompiles(const LoadOptions& options,
                                       const v1::CompileRequest& request) {
  Generator generator(options, [&](Generator& load, Stub& stub, int64_t key, absl::Time due) {
    v1::CompileRequest own = request;
    own.mutable_device()->set_memory_bytes(request.device().memory_bytes() + key);
    auto* reactor = new Request<v1::CompileEvent>(load, due);
    load.Prepare(reactor->context());
    stub.async()->Compile(&reactor->context(), &own, reactor);  // serialized here
    reactor->Begin();
  });
  return generator.Run();
}

}  // namespace kiln::load
