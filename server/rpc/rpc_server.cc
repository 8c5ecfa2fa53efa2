#include "server/rpc/rpc_server.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

constexpr int kCallsAwaited = 64;  // of each queue: that come at once before gRPC must wait for us

}  // namespace

// Waits for a call to come, finds its method, and passes on to the reactor what happens to the
// call, all on its queue's thread. Deletes itself after the reactor's OnDone.
class RpcCall final : public RequestReader {
 public:
  // What comes out of the queue: something that happened to a call.
  struct Event {
    RpcCall* call;
    void (RpcCall::*react)(bool ok);
  };

  // From here on it belongs to the queue.
  static void Await(RpcServer& server, grpc::ServerCompletionQueue& queue) {
    auto* call = new RpcCall(server, queue);
    call->context_.AsyncNotifyWhenDone(&call->over_);  // comes only if the call does
    server.service_.RequestCall(&call->context_, &call->stream_, &queue, &queue, &call->came_);
  }

  void StartRead(grpc::ByteBuffer* message) {
    Hold();
    reading_ = message;
    server_.watch_.Begin(awaited_, this, context_.peer(), std::exchange(has_read_, true));
    stream_.Read(message, &read_);
  }
  void StartWrite(const grpc::ByteBuffer& message) {
    Hold();
    stream_.Write(message, &written_);
  }
  void StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) {
    stream_.WriteAndFinish(message, grpc::WriteOptions(), status, &finished_);
  }
  void Finish(const grpc::Status& status) { stream_.Finish(status, &finished_); }

 private:
  RpcCall(RpcServer& server, grpc::ServerCompletionQueue& queue) : server_(server), queue_(queue) {
    server.calls_.fetch_add(1, std::memory_order_relaxed);
  }
  ~RpcCall() override {
    if (server_.calls_.fetch_sub(1, std::memory_order_acq_rel) == 1) server_.calls_.notify_all();
  }

  void OnCame(bool ok) {
    if (!ok) {  // the server is shutting down
      delete this;
      return;
    }
    Await(server_, queue_);
    auto method = server_.methods_.find(context_.method());
    if (method == server_.methods_.end()) {
      return Finish({grpc::StatusCode::UNIMPLEMENTED,
                     absl::StrCat("this server has no method ", context_.method())});
    }
    method_ = &method->second;
    if (method_->reads_stream) return Begin();
    Hold();
    server_.watch_.Begin(awaited_, this, context_.peer());
    stream_.Read(&request_, &requested_);
  }
  void OnRequested(bool ok) {
    const auto bytes = ok ? static_cast<int64_t>(request_.Length()) : -1;
    if (!server_.watch_.End(awaited_, bytes)) return LetGo();  // finished by Refuse
    if (!ok) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT, "the call brings no message"});
    } else if (bytes > method_->max_request_bytes) {
      request_.Clear();
      Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
              absl::StrCat("the request has ", bytes, " bytes; ", context_.method(), " takes ",
                           method_->max_request_bytes, " at most")});
    } else {
      Begin();
    }
    LetGo();
  }

  void AwaitRefusal() override { Hold(); }
  void Refuse(absl::string_view why) override {
    if (method_->reads_stream) {
      context_.TryCancel();  // the reactor finishes the call
    } else {
      Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, std::string(why)});
    }
    LetGo();
  }

  void Begin() {
    Hold();  // until Start has returned
    server_.under_way_.fetch_add(1);
    reactor_ = method_->make(context_, request_);
    reactor_->call_ = this;
    reactor_->Start();
    if (cancelled_) reactor_->OnCancel();
    LetGo();
  }

  void OnRead(bool ok) {
    const auto bytes = ok ? static_cast<int64_t>(reading_->Length()) : -1;
    reactor_->OnReadDone(server_.watch_.End(awaited_, bytes) && ok);
    LetGo();
  }
  void OnWritten(bool ok) {
    reactor_->OnWriteDone(ok);
    LetGo();
  }
  void OnFinished(bool) { LetGo(); }
  void OnOver(bool) {
    cancelled_ = context_.IsCancelled();
    if (cancelled_ && reactor_ != nullptr) reactor_->OnCancel();
    LetGo();
  }

  void Hold() { holds_.fetch_add(1, std::memory_order_relaxed); }
  void LetGo() {
    if (holds_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (reactor_ != nullptr) {
      reactor_->OnDone();
      server_.last_end_ns_ = absl::GetCurrentTimeNanos();
      server_.under_way_.fetch_sub(1);
    }
    delete this;
  }

  RpcServer& server_;
  grpc::ServerCompletionQueue& queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  const Method* method_ = nullptr;
  Reactor* reactor_ = nullptr;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer* reading_ = nullptr;  // of a stream
  bool has_read_ = false;                // something of a stream
  RequestWatch::Read awaited_;
  bool cancelled_ = false;      // perhaps before there is a reactor to be told
  std::atomic<int> holds_ = 2;  // until the call is over, and until it is finished

  Event came_{this, &RpcCall::OnCame};
  Event requested_{this, &RpcCall::OnRequested};
  Event read_{this, &RpcCall::OnRead};
  Event written_{this, &RpcCall::OnWritten};
  Event finished_{this, &RpcCall::OnFinished};
  Event over_{this, &RpcCall::OnOver};
};

namespace {

void RunThread(grpc::ServerCompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
    const auto* event = static_cast<RpcCall::Event*>(tag);
    (event->call->*event->react)(ok);
  }
}

}  // namespace

void Reactor::StartRead(grpc::ByteBuffer* message) {
  call_->StartRead(message);
}

void Reactor::StartWrite(const grpc::ByteBuffer& message) {
  call_->StartWrite(message);
}

void Reactor::StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status) {
  call_->StartWriteAndFinish(message, status);
}

void Reactor::Finish(const grpc::Status& status) {
  call_->Finish(status);
}

std::unique_ptr<RpcServer> RpcServer::Start(grpc::ServerBuilder& builder, Methods methods,
                                            int threads, RequestLimits limits) {
  std::unique_ptr<RpcServer> server(new RpcServer(std::move(methods), std::move(limits)));
  for (int i = 0; i < threads; ++i) server->queues_.push_back(builder.AddCompletionQueue());
  builder.RegisterAsyncGenericService(&server->service_);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return nullptr;
  for (auto& queue : server->queues_) {
    for (int i = 0; i < kCallsAwaited; ++i) RpcCall::Await(*server, *queue);
    server->threads_.emplace_back([&queue = *queue] { RunThread(queue); });
  }
  return server;
}

absl::Duration RpcServer::IdleFor() const {
  if (under_way_ > 0) return absl::ZeroDuration();
  return absl::Nanoseconds(absl::GetCurrentTimeNanos() - last_end_ns_);
}

RpcServer::~RpcServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  // Calls go on using their queues until they are done.
  for (int left = calls_; left != 0; left = calls_) calls_.wait(left);
  for (auto& queue : queues_) queue->Shutdown();  // ends its thread
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace kiln::server
