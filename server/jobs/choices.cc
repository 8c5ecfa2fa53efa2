#include "server/jobs/choices.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr size_t kMostOffers = 4096;
constexpr int kMostChoices = 1000;  // of one report

// One for each launch with alternatives, in order.
absl::StatusOr<std::vector<OpenChoice>> FindChoices(
    const v1::Device& device, const v1::CompileOptions& options,
    const absl::flat_hash_map<std::string, Digest>& kernels, const v1::Program& program) {
  std::vector<OpenChoice> out;
  for (int i = 0; i < program.steps_size(); ++i) {
    const int64_t alternatives = program.steps(i).launch().alternatives();
    if (alternatives == 0) continue;
    std::vector<Candidate> candidates;
    for (int64_t at = i; at <= i + alternatives; ++at) {
      const v1::LaunchStep& launch = at < program.steps_size()
                                         ? program.steps(static_cast<int>(at)).launch()
                                         : v1::LaunchStep::default_instance();
      const auto kernel = kernels.find(launch.kernel());
      if (kernel == kernels.end()) {
        return absl::InternalError(absl::StrCat("step ", i, " lacks its alternatives"));
      }
      Candidate& candidate = candidates.emplace_back(Candidate{.kernel = kernel->second});
      for (const v1::SymInt& size : launch.symbols()) {
        candidate.sizes.push_back(size.has_expr() ? std::nullopt : std::optional(size.value()));
      }
    }
    out.push_back(
        {ChoiceKey(device, options, candidates), static_cast<uint32_t>(candidates.size())});
    i += static_cast<int>(alternatives);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<OpenChoice>> ApplyChoices(
    const v1::Device& device, const v1::CompileOptions& options,
    const absl::flat_hash_map<std::string, Digest>& kernels,
    const std::function<std::vector<absl::StatusOr<cache::Found>>(absl::Span<const cache::Key>)>&
        find,
    v1::Program& program) {
  KILN_ASSIGN_OR_RETURN(const std::vector<OpenChoice> all,
                        FindChoices(device, options, kernels, program));
  std::vector<OpenChoice> open;
  if (all.empty()) return open;
  std::vector<cache::Key> wanted;
  for (const OpenChoice& choice : all) wanted.push_back({cache::EntryKind::kChoice, choice.key});
  const std::vector<absl::StatusOr<cache::Found>> found = find(wanted);
  google::protobuf::RepeatedPtrField<v1::Step> steps;
  steps.Swap(program.mutable_steps());
  size_t number = 0;
  for (int i = 0; i < steps.size(); ++i) {
    const auto alternatives = static_cast<int>(steps[i].launch().alternatives());
    if (alternatives == 0) {
      program.mutable_steps()->Add(std::move(steps[i]));
      continue;
    }
    const OpenChoice& choice = all[number];
    std::optional<uint32_t> chosen;
    if (found[number].ok()) chosen = ReadChoice(*found[number]->entry, choice.candidates);
    ++number;
    if (!chosen && options.debug()) chosen = 0;
    if (chosen) {
      v1::Step& step = steps[i + static_cast<int>(*chosen)];
      step.mutable_launch()->clear_alternatives();
      program.mutable_steps()->Add(std::move(step));
    } else {
      open.push_back(choice);
      steps[i].mutable_launch()->set_choice(std::string(choice.key.view()));
      for (int n = 0; n <= alternatives; ++n) {
        program.mutable_steps()->Add(std::move(steps[i + n]));
      }
    }
    i += alternatives;
  }
  return open;
}

std::optional<uint32_t> ReadChoice(const cache::Entry& entry, uint32_t candidates) {
  uint32_t chosen = 0;
  if (!absl::SimpleAtoi(entry.bytes, &chosen) || chosen >= candidates) return std::nullopt;
  return chosen;
}

void Choices::Offer(absl::Span<const OpenChoice> choices) {
  absl::MutexLock lock(&mu_);
  for (const OpenChoice& choice : choices) {
    // Nothing was found in the store, so what was decided before is gone from there.
    if (!offers_.insert_or_assign(choice.key, Offered{choice.candidates, false}).second) continue;
    order_.push_back(choice.key);
    if (order_.size() <= kMostOffers) continue;
    offers_.erase(order_.front());
    order_.pop_front();
  }
}

absl::Status Choices::Take(const v1::ReportChoicesRequest& request) {
  if (request.choices().empty() || request.choices_size() > kMostChoices) {
    return absl::InvalidArgumentError(absl::StrCat("the report is of ", request.choices_size(),
                                                   " choices; expected 1 to ", kMostChoices));
  }
  struct Decided {
    Digest key;
    uint32_t chosen;
  };
  std::vector<Decided> decided;
  {
    absl::MutexLock lock(&mu_);
    for (const v1::ReportChoicesRequest::Choice& choice : request.choices()) {
      KILN_ASSIGN_OR_RETURN(const Digest key, Digest::FromBytes(choice.key()));
      const auto offer = offers_.find(key);
      if (offer == offers_.end()) {
        return absl::NotFoundError(
            absl::StrCat("this server remembers no offer of the choice ", key.ShortHex()));
      }
      if (choice.chosen() >= offer->second.candidates) {
        return absl::InvalidArgumentError(
            absl::StrCat("candidate ", choice.chosen(), " of the choice ", key.ShortHex(),
                         " is none; there are ", offer->second.candidates));
      }
      if (!offer->second.decided) decided.push_back({key, choice.chosen()});
    }
    for (const Decided& one : decided) offers_[one.key].decided = true;
  }
  for (const Decided& one : decided) {
    KILN_RETURN_IF_ERROR(store_.Put({cache::EntryKind::kChoice, one.key},
                                    cache::MakeEntry(absl::StrCat(one.chosen))));
    Log(LogLevel::kInfo, "a client chose among a kernel's schedules",
        {{"choice", one.key.ShortHex()}, {"chosen", absl::StrCat(one.chosen)}});
  }
  return absl::OkStatus();
}

}  // namespace kiln::server
