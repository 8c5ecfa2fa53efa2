// cache_writer PATH FIRST: puts entries FIRST, FIRST + 1, ... into the store at PATH until killed,
// and prints each number once its Put has returned.
#include <cstdint>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "cache/rocksdb_store.h"
#include "tests/unit/cache/entries.h"

int main(int argc, char** argv) {
  int64_t number = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &number)) return 2;
  kiln::cache::RocksDbOptions options;
  options.path = argv[1];
  auto store = kiln::cache::OpenRocksDbStore(options);
  if (!store.ok()) {
    fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  for (;; ++number) {
    absl::Status put = (*store)->Put(kiln::cache::ArtifactKeyOf(number),
                                     kiln::cache::MakeEntry(kiln::cache::CrashBytesOf(number)));
    if (!put.ok()) {
      fprintf(stderr, "%s\n", put.ToString().c_str());
      return 1;
    }
    printf("%lld\n", static_cast<long long>(number));
    if (fflush(stdout) != 0) return 0;  // the test is gone
  }
}
