#include "server/jobs/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/memory_store.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/key.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ChoicesTest : public ::testing::Test {
 protected:
  static v1::ReportChoicesRequest Report(const Digest& key, uint32_t chosen) {
    v1::ReportChoicesRequest report;
    v1::ReportChoicesRequest::Choice& choice = *report.add_choices();
    choice.set_key(std::string(key.view()));
    choice.set_chosen(chosen);
    return report;
  }
  std::optional<uint32_t> Kept(const Digest& key, uint32_t candidates = 100) {
    const auto found = store_->Get({cache::EntryKind::kChoice, key});
    return found.ok() ? ReadChoice(*found->entry, candidates) : std::nullopt;
  }

  const Digest key_ = Sha256("a choice");
  std::unique_ptr<cache::Store> store_ = cache::MakeMemoryStore(1 << 20);
  Choices choices_{store_.get()};
};

TEST_F(ChoicesTest, TheFirstReportOfWhatWasOfferedIsKept) {
  choices_.Offer({{key_, 3}});
  EXPECT_EQ(choices_.Take(Report(key_, 2)), absl::OkStatus());
  EXPECT_EQ(choices_.Take(Report(key_, 1)), absl::OkStatus());
  EXPECT_EQ(Kept(key_), 2);
}

TEST_F(ChoicesTest, NothingElseIs) {
  choices_.Offer({{key_, 3}});
  absl::Status status = choices_.Take(Report(key_, 3));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("candidate 3"));
  status = choices_.Take(Report(Sha256("another"), 0));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::IsInvalidArgument(choices_.Take({})));
  v1::ReportChoicesRequest report = Report(key_, 1);
  report.mutable_choices(0)->set_key("short");
  EXPECT_TRUE(absl::IsInvalidArgument(choices_.Take(report)));
  // A report with one bad choice is not kept in part.
  report = Report(key_, 1);
  *report.add_choices() = Report(Sha256("another"), 0).choices(0);
  EXPECT_TRUE(absl::IsNotFound(choices_.Take(report)));
  for (int i = 0; i < 1000; ++i) *report.add_choices() = report.choices(0);
  EXPECT_TRUE(absl::IsInvalidArgument(choices_.Take(report)));
  EXPECT_EQ(Kept(key_), std::nullopt);
}

TEST_F(ChoicesTest, OldOffersAreForgotten) {
  choices_.Offer({{key_, 3}});
  for (int i = 0; i < 4096; ++i) choices_.Offer({{Sha256(absl::StrCat(i)), 2}});
  EXPECT_TRUE(absl::IsNotFound(choices_.Take(Report(key_, 2))));
  EXPECT_EQ(choices_.Take(Report(Sha256("4095"), 1)), absl::OkStatus());
}

TEST_F(ChoicesTest, WhatIsNoNumberOfACandidateIsNoChoice) {
  for (const char* text : {"", "x", "-1", "3", "99999999999"}) {
    EXPECT_EQ(ReadChoice(*cache::MakeEntry(text), 3), std::nullopt) << text;
  }
  EXPECT_EQ(ReadChoice(*cache::MakeEntry("2"), 3), 2);
}

// Steps a, then b or one of b1 and b2, then c.
class ApplyTest : public ChoicesTest {
 protected:
  ApplyTest() {
    for (const char* kernel : {"a", "b", "b1", "b2", "c"}) {
      program_.add_steps()->mutable_launch()->set_kernel(kernel);
      keys_[kernel] = Sha256(kernel);
    }
    program_.mutable_steps(1)->mutable_launch()->set_alternatives(2);
    device_.set_arch("sm_90a");
  }
  absl::StatusOr<std::vector<OpenChoice>> Apply() {
    return ApplyChoices(
        device_, options_, keys_,
        [this](absl::Span<const cache::Key> keys) { return store_->GetMany(keys); }, program_);
  }
  std::vector<std::string> Kernels() {
    std::vector<std::string> out;
    for (const v1::Step& step : program_.steps()) {
      out.push_back(
          absl::StrCat(step.launch().kernel(), step.launch().alternatives() > 0 ? "+" : ""));
    }
    return out;
  }

  v1::Device device_;
  v1::CompileOptions options_;
  absl::flat_hash_map<std::string, Digest> keys_;
  v1::Program program_;
};

TEST_F(ApplyTest, AChoiceThatIsNotKnownIsOpen) {
  const auto open = Apply();
  ASSERT_TRUE(open.ok()) << open.status();
  ASSERT_EQ(open->size(), 1u);
  EXPECT_EQ((*open)[0].candidates, 3u);
  EXPECT_EQ(program_.steps(1).launch().choice(), (*open)[0].key.view());
  EXPECT_THAT(Kernels(), ElementsAre("a", "b+", "b1", "b2", "c"));
}

TEST_F(ApplyTest, WhatWasReportedIsLeftAlone) {
  const v1::Program before = program_;
  const auto open = Apply();
  ASSERT_TRUE(open.ok()) << open.status();
  choices_.Offer(*open);
  ASSERT_EQ(choices_.Take(Report((*open)[0].key, 2)), absl::OkStatus());
  program_ = before;
  EXPECT_THAT(*Apply(), IsEmpty());
  EXPECT_THAT(Kernels(), ElementsAre("a", "b2", "c"));
  // On another device it is another choice.
  program_ = before;
  device_.set_compute_units(78);
  EXPECT_EQ(Apply()->size(), 1u);
  EXPECT_THAT(Kernels(), ElementsAre("a", "b+", "b1", "b2", "c"));
}

// A kernel may be one for all sizes.
TEST_F(ApplyTest, WithOtherSizesTheSameKernelsAreAnotherChoice) {
  const v1::Program before = program_;
  for (const int64_t rows : {64, 8192}) {
    program_ = before;
    for (int i = 1; i <= 3; ++i) {
      program_.mutable_steps(i)->mutable_launch()->add_symbols()->set_value(rows);
    }
    const v1::Program sized = program_;
    const auto of_rows = Apply();
    ASSERT_EQ(of_rows->size(), 1u) << rows;
    choices_.Offer(*of_rows);
    ASSERT_EQ(choices_.Take(Report((*of_rows)[0].key, 1)), absl::OkStatus());
    program_ = sized;
    EXPECT_THAT(*Apply(), IsEmpty()) << rows;
  }
}

TEST_F(ApplyTest, PeopleSeeTheCompilersChoiceWhereThereIsNoOther) {
  options_.set_debug(true);
  const v1::Program before = program_;
  EXPECT_THAT(*Apply(), IsEmpty());
  EXPECT_THAT(Kernels(), ElementsAre("a", "b", "c"));
  // And what was chosen where it was: the key is the same.
  program_ = before;
  options_.set_debug(false);
  const auto open = Apply();
  choices_.Offer(*open);
  ASSERT_EQ(choices_.Take(Report((*open)[0].key, 1)), absl::OkStatus());
  program_ = before;
  options_.set_debug(true);
  EXPECT_THAT(*Apply(), IsEmpty());
  EXPECT_THAT(Kernels(), ElementsAre("a", "b1", "c"));
}

TEST_F(ApplyTest, AWorkerThatNamesNoAlternativesIsAtFault) {
  program_.mutable_steps(1)->mutable_launch()->set_alternatives(4294967295);
  EXPECT_TRUE(absl::IsInternal(Apply().status()));
  program_.mutable_steps(1)->mutable_launch()->set_alternatives(2);
  program_.mutable_steps(2)->mutable_launch()->set_kernel("of another");
  EXPECT_TRUE(absl::IsInternal(Apply().status()));
}

}  // namespace
}  // namespace kiln::server
