// What of several streams' work comes before what: by vector clocks. Two pieces of work without an
// order must not touch the same bytes where one of them writes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "client/gcu_simulator/fault.h"
#include "client/gcu_simulator/footprint.h"

namespace kiln::gcu_simulator {

class Order {
 public:
  // By stream: the number of its last piece of work that is known to be done; 0: none is.
  using Known = std::map<int64_t, int64_t>;

  int64_t AddStream();
  // The host has waited for it.
  void RemoveStream(int64_t stream);

  // All work of a stream so far, and what that came after: an event keeps it.
  Known After(int64_t stream) const;
  // What is issued on the stream from now on comes after that.
  void StreamWaits(int64_t stream, const Known& known);
  // The host has seen that: whatever it issues from now on comes after it.
  void HostWaits(const Known& known);
  void HostWaitsForAll();

  // The stream's next piece of work, done: kRace where it and one without an order meet. `what`
  // names it: "kernel 'add'".
  std::optional<Fault> Add(int64_t stream, std::string what, Footprint footprint);

 private:
  struct Work {
    int64_t stream = 0, number = 0;
    std::string what;
    Footprint footprint;
  };

  static void Merge(const Known& known, Known& into);

  int64_t streams_made_ = 0;
  std::map<int64_t, Known> known_;  // by stream; what the host knows each of them does
  Known host_;
  std::deque<Work> unordered_;  // that the host has not waited for

  // Of more, the oldest is compared with no later work: for programs that never wait.
  static constexpr size_t kMostWork = 4096;
};

}  // namespace kiln::gcu_simulator
