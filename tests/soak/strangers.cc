// Silence, garbage and halves of requests on every port, from addresses of their own: what one
// address may hold is theirs to fill, not the clients'.
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/integration/http_get.h"
#include "tests/integration/raw_http2.h"
#include "tests/soak/act.h"
#include "tests/soak/stranger.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

constexpr char kCompile[] = "/kiln.v1.CompileService/Compile";
constexpr absl::Duration kStay = absl::Seconds(3);

std::string AnyPort(World& world, Random& random) {
  const integration::ServerProcess& server =
      *world.servers()[random() % world.servers().size()].process;
  return Draw(random, 0, 1) == 0 ? server.grpc_address() : server.http_address();
}

std::string OwnAddress(Random& random) {
  return absl::StrCat("127.0.0.", Draw(random, 2, 6));
}

std::string Bytes(Random& random, size_t most) {
  std::string bytes(1 + random() % most, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// As the beginning of something that the ports know, cut anywhere.
std::string Half(Random& random) {
  const std::string whole[] = {
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "POST /api/v1/compiles/00/details HTTP/1.1\r\nContent-Length: 65536\r\n\r\n{\"a\":",
      absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", std::string("\0\0\0\4\0\0\0\0\0", 9)),
      absl::StrCat("\x16\x03\x01\x02", Bytes(random, 500)),  // a TLS client's hello
  };
  const std::string& one = whole[random() % std::size(whole)];
  return one.substr(0, 1 + random() % one.size());
}

void Crowd(World& world, Random& random, const std::string& bytes, bool reset) {
  const std::string address = AnyPort(world, random);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = Draw(random, 1, 20); i > 0; --i) {
    crowd.push_back(std::make_unique<Stranger>(address, OwnAddress(random)));
    if (!bytes.empty()) crowd.back()->Send(bytes);
    if (reset) crowd.back()->ResetAtEnd();
  }
  world.Rest(DrawTime(random, absl::ZeroDuration(), kStay));
}

void GarbageFrames(World& world, Random& random) {
  Stranger stranger(world.open().grpc_address(), OwnAddress(random));
  stranger.Send(
      absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", std::string("\0\0\0\4\0\0\0\0\0", 9)));
  for (int i = Draw(random, 1, 30); i > 0; --i) {
    const std::string payload = Bytes(random, 60);
    const char header[] = {0,
                           0,
                           static_cast<char>(payload.size()),
                           static_cast<char>(random() % 12),
                           static_cast<char>(random()),
                           0,
                           0,
                           0,
                           static_cast<char>(random() % 9)};
    stranger.Send(absl::StrCat(absl::string_view(header, sizeof(header)), payload));
  }
  stranger.ClosesWithin(absl::Milliseconds(500));
}

// Requests that announce much, and bring part of it.
void HalfCalls(World& world, Random& random) {
  integration::RawHttp2 connection(world.open().grpc_address(), OwnAddress(random));
  const auto announced = static_cast<uint32_t>(1) << Draw(random, 10, 31);
  for (int i = Draw(random, 1, 30); i > 0; --i) connection.Begin(kCompile, announced);
  connection.SendToAll(int64_t{1} << Draw(random, 0, 22), absl::Seconds(1));
  if (Draw(random, 0, 1) == 0) connection.Listen(DrawTime(random, absl::ZeroDuration(), kStay));
}

void OddPaths(World& world, Random& random) {
  const std::string paths[] = {"/",
                               "/metrics",
                               "/readyz",
                               "/api/v1/activity?recent=200&slowest=50",
                               "/api/v1/activity?recent=-1&slowest=99999999999999999999",
                               absl::StrCat("/api/v1/compiles/", std::string(64, '0')),
                               absl::StrCat("/", std::string(20000, 'a')),
                               "/../../etc/passwd",
                               "/api/v1/compiles/%00/ir/-1"};
  for (int i = Draw(random, 1, 10); i > 0; --i) {
    auto& server = *world.servers()[random() % world.servers().size()].process;
    auto answer = integration::HttpGet(server.http_address(), paths[random() % std::size(paths)],
                                       Draw(random, 0, 3) == 0 ? "evil.example" : "");
    // A long request may be answered and cut while it is still sent.
    world.ledger.Count(absl::StrCat("odd paths: ", answer.ok() ? answer->code : 0));
  }
}

}  // namespace

Group Strangers() {
  return {.acts = {{"silent connections",
                    [](World& world, Random& random) { Crowd(world, random, "", false); }},
                   {"silent connections that are reset",
                    [](World& world, Random& random) { Crowd(world, random, "", true); }},
                   {"garbage",
                    [](World& world, Random& random) {
                      Crowd(world, random, Bytes(random, 4096), Draw(random, 0, 1) == 0);
                    }},
                   {"halves of requests",
                    [](World& world, Random& random) {
                      Crowd(world, random, Half(random), Draw(random, 0, 1) == 0);
                    }},
                   {"garbage as HTTP/2 frames", GarbageFrames},
                   {"half calls", HalfCalls},
                   {"odd paths", OddPaths}},
          .threads = 2,
          .longest_pause = absl::Milliseconds(300)};
}

}  // namespace kiln::soak
