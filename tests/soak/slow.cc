// Clients that are slow: a byte now and then, answers that nobody reads.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cache_entries.h"
#include "tests/integration/calls.h"
#include "tests/integration/raw_http2.h"
#include "tests/soak/act.h"
#include "tests/soak/stranger.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

constexpr absl::Duration kLongest = absl::Seconds(6);

void DripHttp(World& world, Random& random) {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";
  Stranger stranger(world.servers()[random() % 2].process->http_address(), "127.0.0.7");
  const absl::Time end = absl::Now() + DrawTime(random, absl::Seconds(1), kLongest);
  for (size_t i = 0; absl::Now() < end && !world.ending(); ++i) {
    stranger.Send(request.substr(std::min(i, request.size() - 1), 1));
    if (stranger.ClosesWithin(absl::Milliseconds(100))) {
      return world.ledger.Count("slow clients that were shown the door");
    }
  }
}

void DripCall(World& world, Random& random) {
  integration::RawHttp2 connection(world.open().grpc_address(), "127.0.0.7");
  connection.Begin("/kiln.v1.CompileService/Compile", 1 << 20);
  const absl::Time end = absl::Now() + DrawTime(random, absl::Seconds(1), kLongest);
  while (absl::Now() < end && !world.ending()) {
    connection.SendToAll(/*bytes=*/1, absl::Milliseconds(50));
    connection.Listen(absl::Milliseconds(50));
    if (connection.ended().empty() && connection.open()) continue;
    return world.ledger.Count("slow clients that were shown the door");
  }
}

// Asks for a large artifact and takes its time over each piece.
void ReadSlowly(World& world, Random& random) {
  constexpr size_t kBytes = 3 << 20;
  auto stub = world.open().NewStub();
  const integration::MadeEntry entry = integration::MakeUpEntry(Draw(random, 0, 3), kBytes);
  if (!integration::Import(*stub, integration::RecordsOf(entry)).ok()) {
    return world.ledger.Count("slow readers without anything to read");
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::FetchRequest request;
  request.set_key(std::string(entry.key.view()));
  auto reader = stub->Fetch(&context, request);
  std::string bytes;
  v1::ArtifactChunk chunk;
  const bool leaves = Draw(random, 0, 1) == 0;
  while (reader->Read(&chunk)) {
    bytes += chunk.data();
    if (leaves && bytes.size() > kBytes / 2) context.TryCancel();
    world.Rest(absl::Milliseconds(500));
  }
  const grpc::Status status = reader->Finish();
  if (status.ok() && bytes != entry.bytes) {
    world.ledger.Breach("a slow reader got other bytes than were stored");
  }
  // NOT_FOUND: the cache is small, and others store as well.
  if (status.ok() || (leaves && status.error_code() == grpc::StatusCode::CANCELLED) ||
      status.error_code() == grpc::StatusCode::NOT_FOUND) {
    return world.ledger.Count(
        absl::StrCat("slow readers: ", static_cast<int>(status.error_code())));
  }
  world.ledger.Breach("a slow reader got " + integration::Text(status));
}

}  // namespace

Group SlowClients() {
  return {.acts = {{"drips on the HTTP port", DripHttp},
                   {"drips of a call", DripCall},
                   {"slow readers", ReadSlowly}},
          .threads = 2,
          .longest_pause = absl::Milliseconds(500)};
}

}  // namespace kiln::soak
