// A man in the middle who can alter every answer: the client loads nothing that the known server
// did not sign.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kiln/client.h"
#include "proto/base/signing.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::HasSubstr;

enum class Meddling {
  kNone,
  kAlterBytes,  // and the digest with them
  kDropSignature,
  kAlterSignature,
  kAnswerOther,    // with an artifact that the server signed for another key
  kSignAnew,       // with a key of one's own
  kReplaceServer,  // sign anew, and show that key as the server's
};

// Passes calls on to a real server and alters the answers.
class Meddler final : public v1::CompileService::Service {
 public:
  explicit Meddler(std::unique_ptr<v1::CompileService::Stub> stub) : stub_(std::move(stub)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Meddler() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  const std::string& own_public_key() const { return own_key_->public_key(); }

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* info) override {
    auto onward = grpc::ClientContext::FromServerContext(*context);
    grpc::Status status = stub_->GetServerInfo(onward.get(), *request, info);
    if (meddling == Meddling::kReplaceServer) info->set_public_key(own_key_->public_key());
    return status;
  }

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::ArtifactChunk>* writer) override {
    v1::FetchRequest asked = *request;
    if (meddling == Meddling::kAnswerOther) asked.set_key(other_key);
    auto onward = grpc::ClientContext::FromServerContext(*context);
    auto reader = stub_->Fetch(onward.get(), asked);
    std::vector<v1::ArtifactChunk> chunks;
    for (v1::ArtifactChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
    grpc::Status status = reader->Finish();
    Meddle(request->key(), chunks);
    for (const v1::ArtifactChunk& chunk : chunks) writer->Write(chunk);
    return status;
  }

  grpc::Status Compile(grpc::ServerContext* context, const v1::CompileRequest* request,
                       grpc::ServerWriter<v1::CompileEvent>* writer) override {
    auto onward = grpc::ClientContext::FromServerContext(*context);
    auto reader = stub_->Compile(onward.get(), *request);
    std::vector<v1::ArtifactChunk> chunks;
    for (v1::CompileEvent event; reader->Read(&event);) {
      if (event.has_chunk()) chunks.push_back(event.chunk());
    }
    grpc::Status status = reader->Finish();
    Meddle("", chunks);
    for (const v1::ArtifactChunk& chunk : chunks) {
      v1::CompileEvent event;
      *event.mutable_chunk() = chunk;
      writer->Write(event);
    }
    return status;
  }

  Meddling meddling = Meddling::kNone;  // set between calls
  std::string other_key;

 private:
  void Meddle(const std::string& key, std::vector<v1::ArtifactChunk>& chunks) {
    if (chunks.empty()) return;
    v1::ArtifactChunk& first = chunks.front();
    std::string& signature = *first.mutable_signature();
    switch (meddling) {
      case Meddling::kNone:
      case Meddling::kAnswerOther:
        return;
      case Meddling::kAlterBytes: {
        std::string& data = *chunks.back().mutable_data();
        data.back() = static_cast<char>(data.back() ^ 1);
        std::string all;
        for (const v1::ArtifactChunk& chunk : chunks) all += chunk.data();
        first.set_digest(std::string(Sha256(all).view()));
        return;
      }
      case Meddling::kDropSignature:
        return signature.clear();
      case Meddling::kAlterSignature:
        signature.front() = static_cast<char>(signature.front() ^ 1);
        return;
      case Meddling::kSignAnew:
      case Meddling::kReplaceServer:
        if (key.empty()) return signature.clear();
        signature = own_key_->Sign(kArtifactKind, *Digest::FromBytes(key),
                                   *Digest::FromBytes(first.digest()));
        return;
    }
  }

  const std::unique_ptr<v1::CompileService::Stub> stub_;
  TempDir dir_;
  const std::unique_ptr<SigningKey> own_key_ = *SigningKey::LoadOrCreate(dir_.path() + "/own.key");
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class SignatureTest : public ServerTest {
 protected:
  absl::Status CompileThrough(const Meddler& meddler, ClientOptions options) {
    ForgetPrograms();
    options.server = meddler.address();
    options.threads = 1;
    options.timeout = absl::Seconds(60);
    return (*Client::Create(options))->Compile(QuickRequest(100).graph()).status();
  }
  std::string ServersKey() { return FormatPublicKey(GetServerInfo(stub()).public_key()); }

  TempDir folder_;
};

TEST_F(SignatureTest, NothingThatWasAlteredIsLoaded) {
  ASSERT_TRUE(StartServer());
  Answer other = Compile(stub(), QuickRequest(200));
  ASSERT_TRUE(other.ok()) << Text(other.status);
  Meddler meddler(server().NewStub());
  meddler.other_key = std::string(Digest::FromHex(other.artifact.header().key()).value().view());
  ClientOptions given;
  given.public_key = ServersKey();
  ClientOptions kept;
  kept.known_servers = folder_.path() + "/known_servers";
  // Meets the server, and fills its cache.
  ASSERT_TRUE(CompileThrough(meddler, kept).ok());
  ASSERT_TRUE(CompileThrough(meddler, given).ok());
  const struct {
    Meddling meddling;
    const char* error;
  } cases[] = {
      {Meddling::kAlterBytes, "is not that of the server"},
      {Meddling::kDropSignature, "without a signature"},
      {Meddling::kAlterSignature, "is not that of the server"},
      {Meddling::kSignAnew, "signature"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.error);
    meddler.meddling = c.meddling;
    // With a key given, a key kept, and the key that a server of this machine shows.
    for (const ClientOptions& options : {given, kept, ClientOptions()}) {
      absl::Status status = CompileThrough(meddler, options);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.error));
    }
  }
  // The client notices at Fetch; Compile then brings the right one.
  meddler.meddling = Meddling::kAnswerOther;
  EXPECT_TRUE(CompileThrough(meddler, given).ok());
  meddler.meddling = Meddling::kReplaceServer;
  for (const ClientOptions& options : {given, kept}) {
    absl::Status status = CompileThrough(meddler, options);
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(FormatPublicKey(meddler.own_public_key())));
  }
  meddler.meddling = Meddling::kNone;
  EXPECT_TRUE(CompileThrough(meddler, kept).ok()) << "the server itself is believed as before";
}

TEST_F(SignatureTest, EveryAnswerIsSignedByOneKeyThatOutlivesTheProcess) {
  ASSERT_TRUE(StartServer());
  std::string key = GetServerInfo(stub()).public_key();
  ASSERT_EQ(key.size(), kPublicKeyBytes);
  Answer compiled = Compile(stub(), QuickRequest(100));
  ASSERT_TRUE(compiled.ok());
  ASSERT_TRUE(StartServer());
  EXPECT_EQ(GetServerInfo(stub()).public_key(), key);
  grpc::ClientContext context;
  v1::FetchRequest request;
  Digest name = *Digest::FromHex(compiled.artifact.header().key());
  request.set_key(std::string(name.view()));
  auto reader = stub().Fetch(&context, request);
  v1::ArtifactChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_TRUE(VerifySignature(key, kArtifactKind, name, *Digest::FromBytes(chunk.digest()),
                              chunk.signature())
                  .ok());
  while (reader->Read(&chunk)) EXPECT_EQ(chunk.signature(), "") << "once an answer is enough";
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(SignatureTest, ServersCanShareAKey) {
  std::string path = folder_.path() + "/shared.key";
  auto key = SigningKey::LoadOrCreate(path).value();
  ASSERT_TRUE(StartServer({absl::StrCat("--signing-key=", path)}));
  EXPECT_EQ(GetServerInfo(stub()).public_key(), key->public_key());
}

}  // namespace
}  // namespace kiln::integration
