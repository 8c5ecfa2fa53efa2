#include "client/load/load.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
// gRPC waits in steps of 1 ms: what is due sooner is waited for without sleeping.
constexpr absl::Duration kCoarseWait = absl::Microseconds(1500);

void AddIdentity(const LoadOptions& options, grpc::ClientContext& context) {
  AddHeaders(options.headers, context);
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

// One request under way. Its address is the tag of all that the queue says of it.
class Request {
 public:
  explicit Request(absl::Time due) : due_(due) {}
  virtual ~Request() = default;

  // Takes what the queue says of it; false once it has ended.
  virtual bool Proceed(bool ok) = 0;

  grpc::ClientContext& context() { return context_; }
  absl::Time due() const { return due_; }
  const grpc::Status& status() const { return status_; }
  int64_t bytes() const { return bytes_; }

 protected:
  const absl::Time due_;
  grpc::ClientContext context_;
  grpc::Status status_;
  int64_t bytes_ = 0;
};

template <typename Message>
class StreamRequest final : public Request {
 public:
  using Request::Request;

  void Begin(std::unique_ptr<grpc::ClientAsyncReader<Message>> reader) {
    reader_ = std::move(reader);
    reader_->StartCall(this);
  }

  bool Proceed(bool ok) override {
    if (stage_ == Stage::kFinishing) return false;
    if (ok) {
      if (stage_ == Stage::kReading) bytes_ += DataBytes(message_);
      stage_ = Stage::kReading;
      reader_->Read(&message_, this);
    } else {
      stage_ = Stage::kFinishing;
      reader_->Finish(&status_, this);
    }
    return true;
  }

 private:
  enum class Stage { kStarting, kReading, kFinishing };

  static int64_t DataBytes(const v1::ArtifactChunk& chunk) {
    return static_cast<int64_t>(chunk.data().size());
  }
  static int64_t DataBytes(const v1::CompileEvent& event) {
    return static_cast<int64_t>(event.chunk().data().size());
  }

  std::unique_ptr<grpc::ClientAsyncReader<Message>> reader_;
  Message message_;
  Stage stage_ = Stage::kStarting;
};

// Sends and receives on one thread: several would wake each other, which costs more than the
// requests and would count as the server's time.
class Generator {
 public:
  // Sends a request for the key of that number; what happens to it goes to the queue.
  using Send = std::function<void(Generator& generator, Stub& stub, grpc::CompletionQueue& queue,
                                  int64_t key, absl::Time due)>;

  Generator(const LoadOptions& options, Send send)
      : options_(options),
        send_(std::move(send)),
        picker_(options.keys, options.zipf),
        gap_s_(open_loop() ? options.requests_per_s : 1) {}

  absl::StatusOr<LoadResult> Run() {
    for (int i = 0; i < options_.connections; ++i) {
      std::shared_ptr<grpc::Channel> channel = OwnChannel(options_.server, *options_.credentials);
      if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5))) {
        return absl::UnavailableError(absl::StrCat("cannot reach the server at ", options_.server));
      }
      stubs_.push_back(v1::CompileService::NewStub(channel));
    }
    next_due_ = absl::Now();
    count_from_ = next_due_ + options_.warmup;
    stop_at_ = count_from_ + options_.duration;
    if (!open_loop()) {
      for (int i = 0; i < options_.concurrency; ++i) SendAt(absl::Now());
    }
    do {
      if (open_loop()) SendDue();
      TakeEvent();
    } while (under_way_ > 0 || (open_loop() && next_due_ < stop_at_));
    queue_.Shutdown();
    result_.took = std::max(last_done_, stop_at_) - count_from_;
    return std::move(result_);
  }

  void Prepare(grpc::ClientContext& context) const {
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoNanoseconds(options_.timeout));
    AddIdentity(options_, context);
  }

 private:
  bool open_loop() const { return options_.requests_per_s > 0; }

  void SendAt(absl::Time due) {
    ++under_way_;
    send_(*this, *stubs_[next_stub_++ % stubs_.size()], queue_, picker_.Pick(random_), due);
  }

  // What an open loop is to have sent by now.
  void SendDue() {
    for (const absl::Time now = absl::Now(); next_due_ <= now && next_due_ < stop_at_;
         next_due_ += absl::Seconds(gap_s_(gap_random_))) {
      if (under_way_ < options_.max_under_way) {
        SendAt(next_due_);
      } else if (next_due_ >= count_from_) {
        ++result_.unsent;
      }
    }
  }

  // Waits for the next event, in an open loop only until the next request is due.
  void TakeEvent() {
    const bool more = open_loop() && next_due_ < stop_at_;
    const absl::Time until = more ? next_due_ - kCoarseWait : absl::InfiniteFuture();
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(until)) !=
        grpc::CompletionQueue::GOT_EVENT) {
      return;
    }
    auto* request = static_cast<Request*>(tag);
    if (!request->Proceed(ok)) End(std::unique_ptr<Request>(request));
  }

  void End(std::unique_ptr<Request> request) {
    const absl::Time now = absl::Now();
    const auto code = static_cast<absl::StatusCode>(request->status().error_code());
    if (request->due() >= count_from_) {
      ++result_.by_code[absl::StatusCodeToString(code)];
      (request->status().ok() ? result_.latency : result_.failed).Add(now - request->due());
      result_.bytes += request->bytes();
      last_done_ = now;
    }
    --under_way_;
    if (!open_loop() && now < stop_at_) SendAt(now);
  }

  const LoadOptions& options_;
  const Send send_;
  const KeyPicker picker_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Stub>> stubs_;
  std::mt19937_64 random_{options_.seed};
  std::mt19937_64 gap_random_{options_.seed + 1};
  std::exponential_distribution<> gap_s_;
  size_t next_stub_ = 0;
  int under_way_ = 0;
  absl::Time next_due_;  // of an open loop
  absl::Time count_from_;
  absl::Time stop_at_;
  absl::Time last_done_;
  LoadResult result_;
};

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
  AddIdentity(options, context);
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
  return Generator(options,
                   [&](Generator& load, Stub& stub, grpc::CompletionQueue& queue, int64_t key,
                       absl::Time due) {
                     auto* request = new StreamRequest<v1::ArtifactChunk>(due);
                     load.Prepare(request->context());
                     request->Begin(stub.PrepareAsyncFetch(
                         &request->context(), requests[static_cast<size_t>(key)], &queue));
                   })
      .Run();
}

absl::StatusOr<LoadResult> RunCompiles(const LoadOptions& options,
                                       const v1::CompileRequest& request) {
  v1::CompileRequest own = request;
  return Generator(options,
                   [&](Generator& load, Stub& stub, grpc::CompletionQueue& queue, int64_t key,
                       absl::Time due) {
                     auto* compile = new StreamRequest<v1::CompileEvent>(due);
                     load.Prepare(compile->context());
                     own.mutable_device()->set_memory_bytes(request.device().memory_bytes() + key);
                     compile->Begin(stub.PrepareAsyncCompile(&compile->context(), own, &queue));
                   })
      .Run();
}

}  // namespace kiln::load
