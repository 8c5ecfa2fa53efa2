// A TCP connection that is closed when the object goes.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kiln::soak {

class Stranger {
 public:
  // `address`: "127.0.0.1:PORT"; `from`: this end's address. Waits a moment for the connection.
  Stranger(const std::string& address, const std::string& from);
  ~Stranger();
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  // What finds room at once.
  void Send(absl::string_view bytes);
  // Reads and forgets until the server closes or `time` passes; whether it closed.
  bool ClosesWithin(absl::Duration time);
  // The end will be a reset, not a farewell.
  void ResetAtEnd();

 private:
  const int fd_;
};

}  // namespace kiln::soak
