// A trace collector for tests: takes OTLP over HTTP on a port of its own and keeps what it gets.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln::server {

class Collector {
 public:
  Collector();
  ~Collector();

  std::string url() const;
  // What the next requests are answered with; 0 never answers.
  void set_status(int status) { status_ = status; }
  // The bodies so far, once there are `count`; fewer after `timeout`.
  std::vector<std::string> Bodies(size_t count, absl::Duration timeout);
  // The head of the last request.
  std::string LastHead();

 private:
  void Run();
  void Serve(int connection);

  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> status_ = 200;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::vector<std::string> bodies_ ABSL_GUARDED_BY(mu_);
  std::string head_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace kiln::server
