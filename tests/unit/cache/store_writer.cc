// Writes entries into the store at argv[1] without end, one byte on standard output for each: the
// process that rocksdb_store_test.cc kills.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "cache/rocksdb_store.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto store = kiln::cache::OpenRocksDbStore({.path = argv[1]});
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  for (int i = 0;; ++i) {
    kiln::cache::Key key{kiln::cache::EntryKind::kArtifact, kiln::Sha256(std::to_string(i))};
    std::string value(static_cast<size_t>(1000 + i * 997 % 50000), static_cast<char>(i));
    if (!(*store)->Put(key, kiln::cache::MakeEntry(value)).ok()) return 1;
    char mark = 0;
    if (write(STDOUT_FILENO, &mark, 1) != 1) return 1;
  }
}
