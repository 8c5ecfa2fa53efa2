// Fixture: a server with a certificate, and callers of all kinds.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/server_test.h"
#include "tests/unit/server/certificates.h"

namespace kiln::integration {

using kiln::testing::Authority;
using kiln::testing::Pair;
using kiln::testing::ServerSubject;
using kiln::testing::Subject;

class SecureServerTest : public ServerTest {
 protected:
  SecureServerTest();

  // Writes, or replaces in one step, a file of this test; its path.
  std::string File(const std::string& name, const std::string& text);
  // Replaces what --tls-cert and --tls-key name.
  void ShowCertificate(const Pair& pair);

  // --tls-cert and --tls-key, for `pair`.
  std::vector<std::string> TlsFlags(const Pair& pair);
  // --access-file with `lines`.
  std::string AccessFlag(const std::string& lines);
  // "NAME ROLE <hash of the token>\n"
  static std::string TokenLine(const std::string& name, const std::string& role,
                               const std::string& token);
  static std::vector<std::string> Join(std::vector<std::string> a,
                                       const std::vector<std::string>& b);

  // A connection of its own, over TLS. `ca`: who may vouch for the server. `own`: the client's.
  std::shared_ptr<grpc::Channel> Connect(const std::string& ca, const Pair* own = nullptr);
  std::shared_ptr<grpc::Channel> Connect(const Pair* own = nullptr) {
    return Connect(authority_.certificate(), own);
  }

  Authority authority_{"the test's authority"};
  Pair server_pair_ = authority_.Issue(ServerSubject("server-1"));
  TempDir folder_;
};

// Calls GetServerInfo. `shown`, where given, gets the common name of the server's certificate.
grpc::Status Info(const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "",
                  std::string* shown = nullptr);

// Calls `method` ("/package.Service/Name") with one empty message.
grpc::Status CallEmpty(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                       const std::string& token = "");

}  // namespace kiln::integration
