// What every call of the service shares: its number, its clock, its end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/observe/metrics.h"
#include "server/observe/tracing.h"
#include "server/security/auth.h"

namespace kiln::server {

// Belongs to one call; used by one thread at a time.
class Call {
 public:
  Call(absl::string_view method, grpc::ServerContextBase& context, Metrics& metrics);
  // Logs the call: the client need not wait for that.
  ~Call();

  // Finds out who calls and whether it may: method_roles.h says what the method takes. Call it
  // first.
  absl::Status Admit(Authenticator& authenticator);
  // Its trace is this call's own span once the call is admitted.
  const Caller& caller() const { return caller_; }
  absl::Duration elapsed() const { return absl::Now() - start_; }

  void set_key(std::string short_key) { key_ = std::move(short_key); }
  void set_target(absl::string_view target) { target_ = target; }
  // "memory", "disk", "remote": a cache had it; else "compiled" or "coalesced".
  void set_source(absl::string_view source) { source_ = source; }
  void set_sent_bytes(int64_t bytes) { sent_bytes_ = bytes; }
  // The span of what this call waited for.
  void Link(const TraceContext& other) { span_.Link(other); }

  // Counts the call, puts the error's details into the trailing metadata, and returns what Finish
  // wants. Call it once, just before Finish.
  grpc::Status End(const absl::Status& status);

 private:
  void EndSpan();
  void Count();

  const absl::string_view method_;
  grpc::ServerContextBase& context_;
  Metrics& metrics_;
  const int64_t number_;
  const absl::Time start_ = absl::Now();
  Caller caller_;
  std::string key_;
  absl::string_view target_;
  absl::string_view source_;
  int64_t sent_bytes_ = 0;
  Span span_;
  std::optional<absl::Status> outcome_;  // once it has ended
  absl::Duration duration_;
};

}  // namespace kiln::server
