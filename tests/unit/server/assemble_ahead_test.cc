#include "server/jobs/assemble_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "cache/memory_store.h"
#include "kiln/v1/worker.pb.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;

// Has tasks until it is told to answer them.
class FakeAssembler final : public WorkerBackend {
 public:
  void Submit(WorkerTask task) override {
    asked.push_back(task.request->assemble().ptx());
    EXPECT_EQ(task.request->assemble().arch(), "sm_90a");
    tasks.push_back(std::move(task));
  }
  void Answer(const absl::Status& status = absl::OkStatus()) {
    const WorkerTask task = std::move(tasks.front());
    tasks.erase(tasks.begin());
    if (!status.ok()) return task.done(status);
    v1::WorkerResponse response;
    response.mutable_assemble()->set_cubin("code of " + task.request->assemble().ptx());
    response.mutable_assemble()->set_assembler("ptxas 1");
    task.done(std::move(response));
  }

  std::vector<std::string> asked;
  std::vector<WorkerTask> tasks;
};

class AssembleAheadTest : public ::testing::Test {
 protected:
  void Make(int at_a_time) {
    std::vector<AssembleAhead::Kernel> kernels;
    for (const char* ptx : {"a", "b", "c", "d"}) kernels.push_back({Sha256(ptx), "sm_90a", ptx});
    ahead_.emplace(kernels, &assembler_, store_.get(),
                   AssembleAhead::Options{.at_a_time = at_a_time,
                                          .on_assembled = [this](bool ok) { results_ += ok; }});
    ahead_->Start();
  }
  cache::Key KeyOf(const std::string& ptx) { return {cache::EntryKind::kKernel, Sha256(ptx)}; }
  void Put(const std::string& ptx, const std::string& cubin) {
    v1::CompileKernelResponse kernel;
    kernel.set_object(ptx);
    kernel.set_cubin(cubin);
    ASSERT_TRUE(store_->Put(KeyOf(ptx), cache::MakeEntry(kernel.SerializeAsString())).ok());
  }
  std::string CubinOf(const std::string& ptx) {
    const auto found = store_->Get(KeyOf(ptx));
    v1::CompileKernelResponse kernel;
    if (!found.ok() || !kernel.ParseFromString(found->entry->bytes)) return "";
    EXPECT_EQ(kernel.object(), ptx);
    return kernel.cubin();
  }

  std::unique_ptr<cache::Store> store_ = cache::MakeMemoryStore(1 << 20);
  FakeAssembler assembler_;
  int results_ = 0;
  std::optional<AssembleAhead> ahead_;
};

TEST_F(AssembleAheadTest, MakesWhatTheStoreLacksAFewAtATime) {
  Put("b", "has it");
  Put("c", "");  // by a server without an assembler
  Make(2);
  EXPECT_THAT(assembler_.asked, ElementsAre("a", "c"));
  assembler_.Answer();
  EXPECT_THAT(assembler_.asked, ElementsAre("a", "c", "d"));
  EXPECT_EQ(CubinOf("a"), "code of a");
  EXPECT_EQ(CubinOf("c"), "");
  while (!assembler_.tasks.empty()) assembler_.Answer();
  EXPECT_EQ(CubinOf("b"), "has it");
  EXPECT_EQ(CubinOf("c"), "code of c");
  EXPECT_EQ(CubinOf("d"), "code of d");
  EXPECT_EQ(results_, 3);
  ahead_.reset();
}

TEST_F(AssembleAheadTest, EndsWithTheFirstThatFails) {
  Make(1);
  assembler_.Answer(absl::InternalError("an old ptxas"));
  EXPECT_THAT(assembler_.asked, ElementsAre("a"));
  EXPECT_TRUE(assembler_.tasks.empty());
  EXPECT_EQ(CubinOf("a"), "");
  EXPECT_EQ(results_, 0);
}

TEST_F(AssembleAheadTest, EndsWhatRunsBeforeItIsGone) {
  Make(1);
  EXPECT_FALSE(assembler_.tasks.front().stopped());
  absl::Notification gone;
  std::thread end([&] {
    ahead_.reset();
    gone.Notify();
  });
  while (!assembler_.tasks.front().stopped()) std::this_thread::yield();
  EXPECT_FALSE(gone.HasBeenNotified());
  assembler_.Answer(absl::CancelledError("stopped"));
  end.join();
  EXPECT_THAT(assembler_.asked, ElementsAre("a"));
}

}  // namespace
}  // namespace kiln::server
