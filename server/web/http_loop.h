// The connections of an HTTP server: one thread reads requests and writes replies, whoever dawdles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/net/listen.h"
#include "server/web/http.h"
#include "server/web/http_message.h"

namespace kiln::server {

class HttpLoop {
 public:
  // Called on the loop's thread with a whole request; it must lead to one Reply, from any thread.
  using Dispatch = std::function<void(uint64_t connection, ParsedRequest request)>;

  // Listens; answers from Start on.
  HttpLoop(Listening listening, const HttpLimits& limits, Dispatch dispatch);
  ~HttpLoop();
  void Start();
  // False where no descriptor was left to make it.
  bool ok() const { return epoll_.ok() && wake_.ok(); }
  // Dispatches nothing after it; replies go nowhere.
  void Stop();

  // `bytes` of SerializeReply. For a connection that has gone it does nothing.
  void Reply(uint64_t connection, std::string bytes, bool keep_alive);

 private:
  struct Connection;
  struct Answer {
    uint64_t connection;
    std::string bytes;
    bool keep_alive;
  };

  void Run();
  void Accept(int listener);
  void Add(Descriptor socket);
  bool MakeRoom(absl::string_view address, int of_address);
  // Closes the one of `address`, or of all if empty, that has waited longest for a whole request.
  bool CloseOldest(absl::string_view address);
  void OnReady(Connection& connection);
  void Read(Connection& connection);
  void TakeRequest(Connection& connection);
  void Write(Connection& connection);
  void EndReply(Connection& connection);
  void StartReply(Connection& connection, std::string bytes, bool keep_alive);
  void TakeAnswers();
  void CloseLate(absl::Time now);
  void Arm(Connection& connection, uint32_t events);
  void Close(uint64_t connection);

  const HttpLimits limits_;
  const Dispatch dispatch_;
  Listening listening_;
  Descriptor epoll_;
  Descriptor wake_;
  SpareDescriptors spares_{8};
  uint64_t next_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace kiln::server
