#include "tests/integration/metric_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kiln::integration {
namespace {

// `text`: a="b",c="d"; values hold no escapes and no commas here.
Labels ParseLabels(absl::string_view text) {
  Labels labels;
  for (absl::string_view pair : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits("=\"", 1));
    labels[parts.first] = std::string(absl::StripSuffix(parts.second, "\""));
  }
  return labels;
}

}  // namespace

MetricText::MetricText(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) {
      std::pair<std::string, std::string> parts = absl::StrSplit(line, ' ');
      types_[parts.first] = parts.second;
      continue;
    }
    size_t space = line.rfind(' ');
    if (absl::StartsWith(line, "#") || space == absl::string_view::npos) continue;
    Sample sample;
    if (!absl::SimpleAtod(line.substr(space + 1), &sample.value)) continue;
    absl::string_view name = line.substr(0, space);
    if (size_t brace = name.find('{'); brace != absl::string_view::npos) {
      sample.labels = ParseLabels(absl::StripSuffix(name.substr(brace + 1), "}"));
      name = name.substr(0, brace);
    }
    sample.name = std::string(name);
    samples_.push_back(std::move(sample));
  }
}

double MetricText::Sum(const std::string& name, const Labels& labels) const {
  double sum = 0;
  for (const Sample& sample : samples_) {
    if (sample.name != name) continue;
    bool matches = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
      auto it = sample.labels.find(label.first);
      return it != sample.labels.end() && it->second == label.second;
    });
    if (matches) sum += sample.value;
  }
  return sum;
}

std::string MetricText::Type(const std::string& name) const {
  auto it = types_.find(name);
  return it == types_.end() ? "" : it->second;
}

std::vector<std::string> MetricText::LabelNames(const std::string& name) const {
  std::vector<std::string> names;
  for (const Sample& sample : samples_) {
    if (sample.name != name) continue;
    for (const auto& [label, value] : sample.labels) names.push_back(label);
    break;
  }
  return names;
}

}  // namespace kiln::integration
