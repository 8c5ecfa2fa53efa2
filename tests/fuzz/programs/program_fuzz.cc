// Changes single fields of programs, signs them again as a server could, loads and runs them.
//
//   program_fuzz --seconds N --seed S [--case K] [GRAPH ARTIFACT]...
//
// Of every four cases one keeps the stamp of the machine code, and three renew it, as a server does
// that links anew. A finding, printed with its case: the process dies (under a sanitizer: reports);
// it hangs; a run ends well with outputs of other types than the graph's, or with changed inputs;
// or, where the stamp was kept, with other values. Exit code 1 where there are findings.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/base/program_stamp.h"
#include "tests/fuzz/programs/mutator.h"
#include "tests/fuzz/programs/run_case.h"
#include "tests/fuzz/programs/subjects.h"

// Impossible sizes are the program's to refuse or the caller's to survive; reports end the process.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:detect_leaks=0:max_allocation_size_mb=4096:"
         "handle_abort=1";
}
extern "C" const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}

namespace kiln::fuzz {
namespace {

constexpr int kMostFields = 4096;  // that values may differ by
constexpr absl::Duration kHang = absl::Seconds(60);

// What the process that runs cases tells the one that watches it; it may die at any time.
struct Shared {
  uint64_t case_number;  // in progress
  uint64_t cases, refused_at_load, refused_at_run, same, other_values, findings;
  bool done;
};

struct Options {
  double seconds = 10;
  uint64_t seed = 1;
  int64_t only = -1;
  std::vector<Subject> subjects;
};

class Cases {
 public:
  Cases(const Options& options, Shared& shared) : options_(options), shared_(shared) {
    for (const Subject& subject : options.subjects) {
      v1::Artifact sealed = subject.artifact;
      StampProgram(sealed.program().SerializeAsString(), *sealed.mutable_binary());
      artifacts_.push_back(sealed);
      auto expected = runners_.emplace_back(subject).LoadAndRun(sealed.SerializeAsString());
      if (!expected.ok()) {
        std::printf("%s does not run: %s\n", subject.name.c_str(),
                    std::string(expected.status().message()).c_str());
        std::exit(2);
      }
      expected_.push_back(*std::move(expected));
    }
  }

  void Run(uint64_t number, bool explain) {
    shared_.case_number = number;
    std::seed_seq mix{options_.seed, number, number >> 32};
    std::mt19937_64 random(mix);
    const size_t s = random() % options_.subjects.size();
    const Subject& subject = options_.subjects[s];
    v1::Artifact changed = artifacts_[s];
    Mutator mutator(random(), [](const google::protobuf::FieldDescriptor& field) {
      return field.full_name() == "kiln.v1.Artifact.binary" ||
             field.full_name() == "kiln.v1.Artifact.debug";
    });
    for (const v1::Step& step : changed.program().steps()) mutator.AddWord(step.launch().kernel());
    mutator.AddWord("test_double_through_scratch");
    mutator.AddWord("test_count_tasks");
    std::string what = mutator.Change(changed);
    const bool renew = random() % 4 != 0;
    if (renew) {
      StampProgram(changed.program().SerializeAsString(), *changed.mutable_binary());
    }
    if (explain) {
      std::printf("case %llu of %s, stamp %s: %s\n", static_cast<unsigned long long>(number),
                  subject.name.c_str(), renew ? "renewed" : "kept", what.c_str());
      std::fflush(stdout);
    }
    const std::string bytes = changed.SerializeAsString();
    ++shared_.cases;
    absl::StatusOr<Seen> seen = runners_[s].LoadAndRun(bytes);
    if (explain && !seen.ok()) std::printf("%s\n", seen.status().ToString().c_str());
    if (!seen.ok()) {
      // Loading never runs a kernel: whether it came so far does not matter to the count.
      const bool at_load = absl::IsDataLoss(seen.status()) ||
                           absl::IsFailedPrecondition(seen.status()) ||
                           absl::IsInvalidArgument(seen.status());
      ++(at_load ? shared_.refused_at_load : shared_.refused_at_run);
      return;
    }
    Judge(*seen, expected_[s], subject, renew, what, number);
  }

  const std::map<std::string, int>& fields() const { return fields_; }

 private:
  void Judge(const Seen& seen, const Seen& expected, const Subject& subject, bool renewed,
             const std::string& what, uint64_t number) {
    const char* finding = nullptr;
    if (seen.types != expected.types) finding = "outputs of other types";
    if (!seen.changed.empty()) finding = "changed inputs";
    const bool same = seen.values == expected.values;
    if (finding == nullptr && !same && !renewed) finding = "other values";
    if (finding != nullptr) {
      ++shared_.findings;
      std::printf("FINDING %s: case %llu of %s, stamp %s: %s\n", finding,
                  static_cast<unsigned long long>(number), subject.name.c_str(),
                  renewed ? "renewed" : "kept", what.c_str());
      std::fflush(stdout);
      return;
    }
    ++(same ? shared_.same : shared_.other_values);
    if (!same && fields_.size() < kMostFields) ++fields_[what];
  }

  const Options& options_;
  Shared& shared_;
  std::vector<v1::Artifact> artifacts_;
  std::vector<Runner> runners_;
  std::vector<Seen> expected_;
  std::map<std::string, int> fields_;
};

// Runs cases until the time is over; in a process of its own.
[[noreturn]] void Child(const Options& options, Shared& shared, uint64_t first, absl::Time end) {
  google::protobuf::LogSilencer quiet;
  Cases cases(options, shared);
  for (uint64_t number = first; absl::Now() < end; ++number) cases.Run(number, false);
  for (const auto& [field, count] : cases.fields()) {
    std::printf("  other values %7d  %s\n", count, field.c_str());
  }
  std::fflush(stdout);
  shared.done = true;
  _exit(0);
}

// False where the child died or hung, which is a finding.
bool Watch(pid_t child, const Shared& shared) {
  uint64_t seen = shared.case_number;
  absl::Time since = absl::Now();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    absl::SleepFor(absl::Milliseconds(20));
    if (shared.case_number != seen) {
      seen = shared.case_number;
      since = absl::Now();
    }
    if (absl::Now() - since < kHang) continue;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    std::printf("FINDING it hangs: case %llu\n", static_cast<unsigned long long>(seen));
    return false;
  }
  if (shared.done) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) std::exit(2);
  std::printf("FINDING it died: case %llu\n", static_cast<unsigned long long>(shared.case_number));
  return false;
}

int FuzzPrograms(const Options& options) {
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) return 2;
  *shared = {};
  if (options.only >= 0) {
    Cases(options, *shared).Run(static_cast<uint64_t>(options.only), true);
    return shared->findings > 0 ? 1 : 0;
  }
  const absl::Time end = absl::Now() + absl::Seconds(options.seconds);
  uint64_t first = 0;
  while (absl::Now() < end) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) Child(options, *shared, first, end);
    if (!Watch(child, *shared)) ++shared->findings;
    first = shared->case_number + 1;
  }
  std::printf(
      "seed %llu: %llu cases, %llu refused at load, %llu at run, %llu the same, %llu other values "
      "(stamp renewed), %llu findings\n",
      static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(shared->cases),
      static_cast<unsigned long long>(shared->refused_at_load),
      static_cast<unsigned long long>(shared->refused_at_run),
      static_cast<unsigned long long>(shared->same),
      static_cast<unsigned long long>(shared->other_values),
      static_cast<unsigned long long>(shared->findings));
  return shared->findings > 0 ? 1 : 0;
}

bool Parse(int argc, char** argv, Options& options) {
  options.subjects = MadeSubjects();
  for (int i = 1; i + 1 < argc; i += 2) {
    const absl::string_view flag = argv[i];
    if (flag == "--seconds") {
      if (!absl::SimpleAtod(argv[i + 1], &options.seconds)) return false;
    } else if (flag == "--seed") {
      if (!absl::SimpleAtoi(argv[i + 1], &options.seed)) return false;
    } else if (flag == "--case") {
      if (!absl::SimpleAtoi(argv[i + 1], &options.only)) return false;
    } else if (absl::StartsWith(flag, "-")) {
      return false;
    } else {
      auto subject = ReadSubject(argv[i], argv[i + 1]);
      if (!subject.ok()) {
        std::fprintf(stderr, "%s\n", std::string(subject.status().message()).c_str());
        return false;
      }
      options.subjects.push_back(*std::move(subject));
    }
  }
  return argc % 2 == 1;
}

}  // namespace
}  // namespace kiln::fuzz

int main(int argc, char** argv) {
  kiln::fuzz::Options options;
  if (!kiln::fuzz::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: program_fuzz [--seconds N] [--seed S] [--case K] [GRAPH ARTIFACT]...\n");
    return 2;
  }
  return kiln::fuzz::FuzzPrograms(options);
}
