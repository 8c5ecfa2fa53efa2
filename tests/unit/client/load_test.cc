// The load generator, against a server of the test's own that answers after a known time.
#include "client/load/load.h"

#include "client/credentials.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kiln/v1/compile_service.grpc.pb.h"

namespace kiln::load {
namespace {

TEST(Histogram, QuantilesAreWithinTwoPercent) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<> seconds(-7, 2);
  std::vector<double> values;
  Histogram all, first, second;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::max(1e-6, seconds(random)));
    all.Add(absl::Seconds(values.back()));
    (i % 2 == 0 ? first : second).Add(absl::Seconds(values.back()));
  }
  std::sort(values.begin(), values.end());
  first.Merge(second);
  for (double q : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double exact = values[static_cast<size_t>(q * 20000 + 0.5) - 1];
    EXPECT_NEAR(absl::ToDoubleSeconds(all.Quantile(q)) / exact, 1, 0.02) << q;
    EXPECT_EQ(first.Quantile(q), all.Quantile(q));
  }
  EXPECT_EQ(first.count(), 20000);
  EXPECT_EQ(Histogram().Quantile(0.5), absl::ZeroDuration());
}

constexpr absl::Duration kServerTime = absl::Milliseconds(20);

class FakeServer final : public v1::CompileService::Service {
 public:
  explicit FakeServer(Entries entries) {
    for (int64_t i = 0; i < entries.count; ++i) numbers_[EntryKey(entries, i)] = i;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::ArtifactChunk>* writer) override {
    absl::SleepFor(kServerTime);
    absl::MutexLock lock(&mu_);
    peers_.insert(context->peer());
    auto it = numbers_.find(request->key());
    if (it == numbers_.end()) return {grpc::StatusCode::NOT_FOUND, "none"};
    ++fetched_[it->second];
    v1::ArtifactChunk chunk;
    chunk.set_data(std::string(100, 'x'));
    writer->Write(chunk);
    return grpc::Status::OK;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  size_t connections() {
    absl::MutexLock lock(&mu_);
    return peers_.size();
  }
  std::map<int64_t, int64_t> fetched() {
    absl::MutexLock lock(&mu_);
    return fetched_;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  std::map<std::string, int64_t> numbers_;
  std::set<std::string> peers_;
  std::map<int64_t, int64_t> fetched_;
};

LoadOptions Options(const FakeServer& server) {
  LoadOptions options;
  options.server = server.address();
  options.credentials = *Credentials::Load({});
  options.connections = 3;
  options.concurrency = 6;
  options.keys = 50;
  options.warmup = absl::Milliseconds(100);
  options.duration = absl::Milliseconds(700);
  return options;
}

TEST(Load, AClosedLoopKeepsItsRequestsUnderWay) {
  const Entries entries{.count = 50};
  FakeServer server(entries);
  auto result = RunFetches(Options(server), entries);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(server.connections(), 3u);
  EXPECT_EQ(result->by_code.size(), 1u);
  EXPECT_EQ(result->by_code["OK"], result->latency.count());
  EXPECT_EQ(result->bytes, 100 * result->latency.count());
  // Six under way, each 20 ms at least: at most 300 a second.
  EXPECT_LE(static_cast<double>(result->latency.count()), 300 * 0.7 + 6);
  EXPECT_GE(result->latency.count(), 20);
  EXPECT_GE(result->latency.Quantile(0.5), kServerTime * 0.98);
}

TEST(Load, AnOpenLoopCountsFromWhenARequestWasDue) {
  const Entries entries{.count = 50};
  FakeServer server(entries);
  LoadOptions options = Options(server);
  options.requests_per_s = 100;
  options.zipf = 1.5;
  auto result = RunFetches(options, entries);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(static_cast<double>(result->latency.count() + result->unsent), 70, 45);
  EXPECT_GE(result->latency.Quantile(0.5), kServerTime * 0.98);
  // By the exponent, the first key has about 40 % of all.
  std::map<int64_t, int64_t> fetched = server.fetched();
  for (const auto& [key, count] : fetched) EXPECT_LE(count, fetched[0]) << key;

  options.max_under_way = 1;
  options.requests_per_s = 500;
  auto narrow = RunFetches(options, entries);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_GT(narrow->unsent, narrow->latency.count());
}

TEST(Load, ErrorsAreCountedApart) {
  const Entries entries{.count = 50};
  FakeServer server({.count = 0});
  auto result = RunFetches(Options(server), entries);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->latency.count(), 0);
  EXPECT_EQ(result->by_code["NOT_FOUND"], result->failed.count());
  EXPECT_GT(result->failed.count(), 0);

  LoadOptions nowhere = Options(server);
  nowhere.server = "127.0.0.1:1";
  EXPECT_TRUE(absl::IsUnavailable(RunFetches(nowhere, entries).status()));
}

}  // namespace
}  // namespace kiln::load
