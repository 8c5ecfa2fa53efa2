// Reads Prometheus' text format.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln::integration {

using Labels = std::map<std::string, std::string>;

class MetricText {
 public:
  explicit MetricText(absl::string_view text);

  // The sum over the samples called `name` whose labels hold all of `labels`; 0 where none does.
  double Sum(const std::string& name, const Labels& labels = {}) const;
  // "counter", "gauge", "histogram", or "" where the metric is absent.
  std::string Type(const std::string& name) const;
  // Names of the labels of the first sample called `name`.
  std::vector<std::string> LabelNames(const std::string& name) const;

 private:
  struct Sample {
    std::string name;
    Labels labels;
    double value = 0;
  };
  std::vector<Sample> samples_;
  std::map<std::string, std::string> types_;
};

}  // namespace kiln::integration
