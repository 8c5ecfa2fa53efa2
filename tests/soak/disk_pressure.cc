// A disk that is full for a while, and more entries than the cache may hold.
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/cache_entries.h"
#include "tests/integration/calls.h"
#include "tests/soak/act.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

void FillDisk(World& world, Random& random) {
  if (world.small_disk().empty()) return;
  const std::string path = world.small_disk() + "/filler";
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  const std::string block(1 << 16, 'x');
  // Whatever is freed meanwhile as well.
  const int rounds = Draw(random, 1, 100);
  for (int i = 0; i < rounds && !world.ending(); ++i) {
    for (size_t size = block.size(); size >= 4096;) {
      if (write(fd, block.data(), size) <= 0) size /= 2;
    }
    world.Rest(absl::Milliseconds(30));
  }
  close(fd);
  unlink(path.c_str());
  world.ledger.Count("times the disk was full");
}

void Crowd(World& world, Random& random) {
  auto stub = world.open().NewStub();
  for (int i = Draw(random, 1, 20); i > 0 && !world.ending(); --i) {
    const auto number = static_cast<int64_t>(random() >> 1);
    const auto bytes = static_cast<size_t>(1) << Draw(random, 8, 21);
    const auto entry =
        integration::MakeUpEntry(number, bytes, Draw(random, 0, 1) == 0 ? "kernel" : "artifact");
    const grpc::Status status = integration::Import(*stub, integration::RecordsOf(entry));
    world.ledger.Count("entries imported", status.ok() ? 1 : 0);
    if (status.ok()) continue;
    world.ledger.Breach("an import got " + integration::Text(status));
  }
}

}  // namespace

Group DiskPressure() {
  return {.acts = {{"a full disk", FillDisk}, {"more than the cache holds", Crowd}},
          .threads = 1,
          .longest_pause = absl::Seconds(2)};
}

}  // namespace kiln::soak
