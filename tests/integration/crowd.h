// Many calls at once from one process: clients that wait without a thread each.
#pragma once

#include <grpcpp/completion_queue.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "kiln/v1/error.pb.h"

namespace kiln::integration {

// How one call ended.
struct CrowdAnswer {
  grpc::Status status;
  v1::ErrorDetail detail;
  std::string digest;  // that the server gave
  std::string source;
  int64_t bytes = 0;
  absl::Time done;
};

// Compile calls, spread over the stubs. Used by one thread; waits for its calls at the end.
class Crowd {
 public:
  // `stubs` must outlive it.
  explicit Crowd(std::vector<v1::CompileService::Stub*> stubs);
  ~Crowd();

  // `tenant` and `priority` may be empty. `request` must live until the call is over.
  void Start(const v1::CompileRequest& request, absl::Duration deadline = absl::Seconds(120),
             const std::string& tenant = "", const std::string& priority = "");
  // Every call's, in the order in which they were started.
  std::vector<CrowdAnswer> Wait();
  void Cancel(size_t call);

 private:
  class Member;
  void TakeEvents();

  const std::vector<v1::CompileService::Stub*> stubs_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Member>> members_;
  std::thread thread_;  // takes what comes out of the queue
};

}  // namespace kiln::integration
