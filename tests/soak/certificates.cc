// Certificates that change while the server runs, and files that do not fit together.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/server_test.h"
#include "tests/soak/act.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

// A second is what the server promises; the rest is for a machine that is busy.
constexpr absl::Duration kReloadLimit = absl::Seconds(15);

// The common name that a new connection is shown, "" where none came about.
std::string ShownName(World& world) {
  auto stub = world.StubWithoutToken();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ServerInfo info;
  (void)stub->GetServerInfo(&context, {}, &info);  // without a token: an error that came by TLS
  const auto auth = context.auth_context();
  if (auth == nullptr) return "";
  const auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  return names.empty() ? "" : std::string(names[0].data(), names[0].size());
}

void Replace(World& world, Random& random) {
  const std::string name = absl::StrCat("server-", random());
  world.ShowCertificate(world.authority().Issue(testing::ServerSubject(name)));
  const absl::Time start = absl::Now();
  if (!integration::Eventually(kReloadLimit, [&] { return ShownName(world) == name; })) {
    world.ledger.Breach(absl::StrCat("a new certificate was not shown within ",
                                     absl::FormatDuration(absl::Now() - start)));
  }
}

// The key of another certificate: what was read before stays.
void Mismatch(World& world, Random& random) {
  const testing::Pair pair =
      world.authority().Issue(testing::ServerSubject(absl::StrCat("broken-", random())));
  const testing::Pair other = world.authority().Issue(testing::ServerSubject("other"));
  world.ShowCertificate({pair.certificate, other.key});
  world.ledger.Count("certificates that do not fit their key");
  world.Rest(absl::Seconds(3));
  Replace(world, random);
}

}  // namespace

Group Certificates() {
  return {.acts = {{"certificates replaced", Replace}, {"certificates that do not fit", Mismatch}},
          .threads = 1,
          .longest_pause = absl::Seconds(4)};
}

}  // namespace kiln::soak
