// Copies and launches of one run on the device's streams: side by side where they touch different
// bytes, and in their order where they do not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/runtime/executor.h"
#include "client/runtime/gcu/runtime.h"

namespace kiln::gcu {

// Bytes of device memory that a piece of work reads, and writes where it says so.
struct Access {
  gcu_address_t begin = 0;
  uint64_t bytes = 0;
  bool writes = false;
};

// For each byte the work that wrote it last, and what has read it since: what new work waits for.
class Dependences {
 public:
  // Pieces of work are numbered in the order in which they are added. Appends to `before` the
  // numbers of those that must come before this one, some of them several times.
  void Add(int work, const Access& access, std::vector<int>& before);

 private:
  struct Part {
    uint64_t end = 0;
    int writer = -1;           // -1: nobody
    std::vector<int> readers;  // since then
  };

  // Makes parts that cover [begin, end) and nothing else of what is there.
  void Cut(uint64_t begin, uint64_t end);

  std::map<uint64_t, Part> parts_;  // by first byte; none meet
};

// Of one thread. Launches spread over few streams, copies have one of their own.
class Queue {
 public:
  explicit Queue(const Runtime& runtime) : runtime_(runtime) {}
  ~Queue();  // waits for everything
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // `name` is the kernel's; `arguments` are taken before the call returns.
  absl::Status Launch(const std::string& name, gcu_function_t function, uint64_t l2_bytes,
                      absl::Span<void*> arguments, absl::Span<const Access> accesses);
  // The source must stay as it is until WaitForUploads.
  absl::Status ToDevice(gcu_address_t to, const void* from, uint64_t bytes);
  absl::Status WaitForUploads();
  // Has the bytes when it returns.
  absl::Status ToHost(void* to, gcu_address_t from, uint64_t bytes);
  // Waits for everything, so that what a launch or copy did wrong is known.
  absl::Status Finish();

  // What the launches did, in order. After Finish.
  struct Launched {
    std::string name;
    gcu_launch_report report;
  };
  absl::StatusOr<std::vector<Launched>> Reports() const;

 private:
  struct Stream {
    gcu_stream_t stream = nullptr;
    int last = -1;           // its last piece of work
    std::vector<int> known;  // by stream: the last of its work that this one's comes after
  };
  struct Work {
    size_t stream = 0;
    gcu_event_t event = nullptr;  // null: not recorded yet
  };

  absl::Status AddStream();
  absl::Status Record(Work& work);
  // The stream that the next launch goes to, given what comes before it.
  absl::StatusOr<size_t> ChooseStream(const std::vector<int>& before);
  // Has the stream wait, and adds the work that is issued next.
  absl::Status Begin(size_t stream, std::vector<int> before);

  const Runtime& runtime_;
  std::vector<Stream> streams_;  // the first one is for copies
  std::vector<Work> works_;
  std::vector<gcu_event_t> events_;
  std::vector<std::pair<std::string, int>> launches_;  // names, and pieces of work
  Dependences dependences_;
  bool uploads_ = false;  // some may not be done
};

}  // namespace kiln::gcu
