#include "tests/integration/secure_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/base/digest.h"

namespace kiln::integration {
namespace {

void Prepare(grpc::ClientContext& context, const std::string& token) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
}

}  // namespace

SecureServerTest::SecureServerTest() = default;

std::string SecureServerTest::File(const std::string& name, const std::string& text) {
  std::string path = absl::StrCat(folder_.path(), "/", name);
  std::string temporary = path + ".new";
  std::ofstream(temporary) << text;
  EXPECT_EQ(chmod(temporary.c_str(), 0600), 0);
  EXPECT_EQ(std::rename(temporary.c_str(), path.c_str()), 0);
  return path;
}

void SecureServerTest::ShowCertificate(const Pair& pair) {
  File("cert.pem", pair.certificate);
  File("key.pem", pair.key);
}

std::vector<std::string> SecureServerTest::TlsFlags(const Pair& pair) {
  ShowCertificate(pair);
  return {absl::StrCat("--tls-cert=", folder_.path(), "/cert.pem"),
          absl::StrCat("--tls-key=", folder_.path(), "/key.pem")};
}

std::string SecureServerTest::AccessFlag(const std::string& lines) {
  return absl::StrCat("--access-file=", File("access", lines));
}

std::string SecureServerTest::TokenLine(const std::string& name, const std::string& role,
                                        const std::string& token) {
  return absl::StrCat(name, " ", role, " ", Sha256(token).ToHex(), "\n");
}

std::vector<std::string> SecureServerTest::Join(std::vector<std::string> a,
                                                const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::shared_ptr<grpc::Channel> SecureServerTest::Connect(const std::string& ca, const Pair* own) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ca;
  if (own != nullptr) {
    options.pem_cert_chain = own->certificate;
    options.pem_private_key = own->key;
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server().grpc_address(), grpc::SslCredentials(options),
                                   arguments);
}

grpc::Status Info(const std::shared_ptr<grpc::Channel>& channel, const std::string& token,
                  std::string* shown) {
  auto stub = v1::CompileService::NewStub(channel);
  grpc::ClientContext context;
  Prepare(context, token);
  v1::ServerInfo info;
  grpc::Status status = stub->GetServerInfo(&context, {}, &info);
  if (status.ok() && shown != nullptr) {
    auto names = context.auth_context()->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    *shown = names.empty() ? "" : std::string(names[0].data(), names[0].size());
  }
  return status;
}

grpc::Status CallEmpty(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                       const std::string& token) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  Prepare(context, token);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (wait()) {
    grpc::Slice nothing;
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), nullptr);
    wait();
  }
  grpc::ByteBuffer answer;
  do {
    call->Read(&answer, nullptr);
  } while (wait());
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  return status;
}

}  // namespace kiln::integration
