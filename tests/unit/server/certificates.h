// Certificates for tests: authorities, and what they vouch for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kiln::testing {

struct Pair {
  std::string certificate;  // PEM
  std::string key;          // PEM, of a key on the curve P-256
};

struct Subject {
  std::string common_name;
  std::vector<std::string> alternative_names;  // as OpenSSL has them: "DNS:localhost"
  absl::Duration age = absl::Hours(1);         // since it became valid
  absl::Duration left = absl::Hours(24 * 30);  // until it expires; negative: it has
};

// For 127.0.0.1 and localhost.
Subject ServerSubject(const std::string& common_name);

class Authority {
 public:
  explicit Authority(const std::string& name);
  ~Authority();
  const std::string& certificate() const { return certificate_; }
  Pair Issue(const Subject& subject) const;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
  std::string certificate_;
};

}  // namespace kiln::testing
