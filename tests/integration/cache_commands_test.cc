// `kiln cache` against real servers: bundles, pins, removal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "proto/base/signing.h"
#include "tests/integration/cache_entries.h"
#include "tests/integration/graphs.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CacheCommandsTest : public ServerTest {
 protected:
  Ended Kiln(const std::string& server, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {KILN_CLI, "cache"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    command.push_back(absl::StrCat("--server=", server));
    return RunToEnd(command);
  }
  Ended Kiln(const std::vector<std::string>& arguments) {
    return Kiln(server().grpc_address(), arguments);
  }

  std::vector<std::string> PinnedKeys() {
    std::vector<std::string> keys;
    v1::ListCacheResponse listed = ListCache(stub());
    for (const v1::CacheEntry& entry : listed.entries()) {
      if (entry.pinned()) keys.push_back(entry.key());
    }
    return keys;
  }

  std::string ReadFile(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }

  TempDir other_;
  const std::string bundle_ = other_.path() + "/cache.bundle";
};

TEST_F(CacheCommandsTest, ABundleWarmsAFreshServerSoThatItCompilesNothing) {
  ASSERT_TRUE(StartServer());
  std::vector<v1::CompileRequest> requests;
  for (int64_t size : {100, 200, 300, 5000}) requests.push_back(QuickRequest(size));
  std::vector<std::string> artifacts;
  for (const v1::CompileRequest& request : requests) {
    Answer answer = Compile(stub(), request);
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    artifacts.push_back(answer.bytes);
  }
  Ended exported = Kiln({"export", bundle_});
  ASSERT_EQ(exported.code, 0) << exported.errors;
  EXPECT_THAT(exported.output, HasSubstr("exported "));

  auto fresh = ServerProcess::Start(other_.path() + "/data");
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  // What is imported is code that clients run: not a stranger's.
  const std::string key = FormatPublicKey(GetServerInfo(this->stub()).public_key());
  Ended stranger = Kiln((*fresh)->grpc_address(), {"import", bundle_});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.errors, HasSubstr(key));
  EXPECT_THAT(stranger.output, HasSubstr("imported 0 entries"));
  Ended imported =
      Kiln((*fresh)->grpc_address(), {"import", bundle_, absl::StrCat("--signed-by=", key)});
  ASSERT_EQ(imported.code, 0) << imported.errors;
  EXPECT_THAT(imported.output, HasSubstr(" 0 were there already"));
  auto stub = (*fresh)->NewStub();
  for (size_t i = 0; i < requests.size(); ++i) {
    Answer answer = Compile(*stub, requests[i]);
    ASSERT_TRUE(answer.ok()) << Text(answer.status);
    EXPECT_EQ(answer.source, "disk");
    EXPECT_TRUE(answer.bytes == artifacts[i]);
  }
  MetricText metrics = (*fresh)->Metrics();
  EXPECT_EQ(metrics.Sum("kiln_kernels_compiled_total"), 0);
  EXPECT_EQ(metrics.Sum("kiln_cache_requests_total",
                        {{"kind", "artifact"}, {"tier", "disk"}, {"result", "hit"}}),
            static_cast<double>(requests.size()));
  EXPECT_EQ(metrics.Sum("kiln_cache_requests_total",
                        {{"kind", "artifact"}, {"tier", "disk"}, {"result", "miss"}}),
            0);
  Ended again =
      Kiln((*fresh)->grpc_address(), {"import", bundle_, absl::StrCat("--signed-by=", key)});
  EXPECT_THAT(again.output, HasSubstr("imported 0 entries"));
}

TEST_F(CacheCommandsTest, ExportTakesOneKindOrSomeKeys) {
  ASSERT_TRUE(StartServer());
  std::vector<MadeEntry> entries = {MakeUpEntry(1, 100), MakeUpEntry(2, 3 << 20),
                                    MakeUpEntry(3, 20'000, "kernel")};
  for (const MadeEntry& entry : entries) ASSERT_TRUE(Import(stub(), RecordsOf(entry)).ok());
  EXPECT_THAT(Kiln({"export", bundle_}).output, HasSubstr("exported 3 entries"));
  EXPECT_THAT(Kiln({"export", bundle_, "--kind", "kernel"}).output,
              HasSubstr("exported 1 entries"));
  Ended one = Kiln({"export", bundle_, entries[1].key.ToHex().substr(0, 12)});
  EXPECT_THAT(one.output, HasSubstr("exported 1 entries"));
  Ended none = Kiln({"export", bundle_ + ".none", "0123456789abcdef"});
  EXPECT_EQ(none.code, 1);
  EXPECT_FALSE(std::ifstream(bundle_ + ".none").good());
  Ended bad = Kiln({"export", bundle_ + ".none", "12x4"});
  EXPECT_THAT(bad.errors, HasSubstr("'12x4' is no key"));
  ASSERT_EQ(Kiln({"clear"}).code, 0);
  EXPECT_THAT(Kiln({"import", bundle_}).output, HasSubstr("imported 1 entries"));
  EXPECT_TRUE(Fetch(stub(), entries[1].key.ToHex()).bytes == entries[1].bytes);
}

TEST_F(CacheCommandsTest, DamagedRecordsAreNamedAndSkippedWithExitCodeOne) {
  ASSERT_TRUE(StartServer());
  std::vector<MadeEntry> entries = {MakeUpEntry(1, 5000), MakeUpEntry(2, 5000),
                                    MakeUpEntry(3, 5000)};
  for (const MadeEntry& entry : entries) ASSERT_TRUE(Import(stub(), RecordsOf(entry)).ok());
  ASSERT_EQ(Kiln({"export", bundle_}).code, 0);
  std::string contents = ReadFile(bundle_);
  size_t second = contents.find(entries[1].bytes);
  ASSERT_NE(second, std::string::npos);
  std::string damaged = contents;
  damaged[second + 100] ^= 1;
  std::ofstream(bundle_, std::ios::binary) << damaged;
  ASSERT_EQ(Kiln({"clear"}).code, 0);
  Ended imported = Kiln({"import", bundle_});
  EXPECT_EQ(imported.code, 1);
  EXPECT_THAT(imported.errors, HasSubstr(entries[1].key.ToHex()));
  EXPECT_THAT(imported.output, HasSubstr("imported 2 entries"));
  EXPECT_TRUE(Fetch(stub(), entries[0].key.ToHex()).ok());
  EXPECT_FALSE(Fetch(stub(), entries[1].key.ToHex()).ok());
  EXPECT_TRUE(Fetch(stub(), entries[2].key.ToHex()).ok());
  // Half a file: whole entries only.
  ASSERT_EQ(Kiln({"clear"}).code, 0);
  std::ofstream(bundle_, std::ios::binary) << contents.substr(0, contents.size() / 2);
  Ended half = Kiln({"import", bundle_});
  EXPECT_EQ(half.code, 1);
  EXPECT_THAT(half.errors, HasSubstr("early"));
  EXPECT_THAT(half.output, HasSubstr("imported 1 entries"));
  EXPECT_EQ(VerifyCache(stub()).checked(), 1);
  EXPECT_EQ(VerifyCache(stub()).corrupt(), 0);
}

TEST_F(CacheCommandsTest, AnImportThatIsMalformedOrCutOffLeavesNoHalfEntry) {
  ASSERT_TRUE(StartServer());
  MadeEntry whole = MakeUpEntry(1, 100);
  MadeEntry large = MakeUpEntry(2, 3 << 20);
  std::vector<v1::CacheRecord> records = RecordsOf(whole);
  std::vector<v1::CacheRecord> more = RecordsOf(large);
  records.insert(records.end(), more.begin(), more.end() - 1);
  grpc::Status cut = Import(stub(), records);
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(cut.error_message(), HasSubstr(large.key.ToHex()));
  auto expect_refused = [this](std::vector<v1::CacheRecord> bad, const std::string& why) {
    grpc::Status status = Import(stub(), bad);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << why;
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  };
  more[1].mutable_data()->at(17) ^= 1;
  expect_refused(more, "do not match its digest");
  more = RecordsOf(large);
  expect_refused({more[1]}, "belongs to no entry");
  more[0].set_kind("toy");
  expect_refused(more, "'toy'");
  more = RecordsOf(large);
  more[0].set_key("short");
  expect_refused(more, "");
  more = RecordsOf(large);
  more[0].set_total_bytes(int64_t{1} << 40);
  expect_refused(more, "at most");
  more = RecordsOf(large);
  more[0].set_total_bytes(5);
  expect_refused(more, "more data than it said");
  v1::ListCacheResponse listed = ListCache(stub());
  ASSERT_EQ(listed.entries_size(), 1) << "what came before is kept";
  EXPECT_EQ(listed.entries(0).key(), whole.key.ToHex());
}

TEST_F(CacheCommandsTest, PinsAreShownKeptAndTakenAway) {
  const std::vector<std::string> flags = {"--cache-max-size=32MiB", "--cache-memory-size=1MiB"};
  ASSERT_TRUE(StartServer(flags));
  MadeEntry pinned = MakeUpEntry(1, 2 << 20);
  ASSERT_TRUE(Import(stub(), RecordsOf(pinned)).ok());
  std::string key = pinned.key.ToHex();
  Ended pin = Kiln({"pin", key.substr(0, 8)});
  ASSERT_EQ(pin.code, 0) << pin.errors;
  EXPECT_THAT(pin.output, HasSubstr("pinned 1 entries"));
  EXPECT_THAT(Kiln({"ls"}).output, HasSubstr("pinned"));
  for (int i = 2; i < 40; ++i) ASSERT_TRUE(Import(stub(), RecordsOf(MakeUpEntry(i, 2 << 20))).ok());
  ASSERT_TRUE(StartServer(flags));
  EXPECT_THAT(PinnedKeys(), ElementsAre(key));
  EXPECT_TRUE(Fetch(stub(), key).ok()) << "a pinned entry was evicted";
  EXPECT_FALSE(Fetch(stub(), MakeUpEntry(2, 0).key.ToHex()).ok()) << "nothing was evicted";
  EXPECT_THAT(Kiln({"unpin", key}).output, HasSubstr("unpinned 1 entries"));
  EXPECT_THAT(PinnedKeys(), IsEmpty());
  EXPECT_THAT(Kiln({"ls"}).output, Not(HasSubstr("pinned")));
  Ended unknown = Kiln({"pin", "0123456789"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.errors, HasSubstr("'0123456789'"));
  EXPECT_THAT(Kiln({"pin", "abc"}).errors, HasSubstr("is no key"));
  EXPECT_EQ(Kiln({"pin"}).code, 2);
}

TEST_F(CacheCommandsTest, RemovedEntriesAreGoneFromEveryTier) {
  ASSERT_TRUE(StartServer());
  Answer answer = Compile(stub(), QuickRequest(100));
  ASSERT_TRUE(answer.ok());
  std::string key = answer.artifact.header().key();
  ASSERT_TRUE(Fetch(stub(), key).ok());
  Ended removed = Kiln({"rm", key});
  ASSERT_EQ(removed.code, 0) << removed.errors;
  EXPECT_EQ(Fetch(stub(), key).status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Kiln({"rm", key}).code, 1);
  EXPECT_EQ(Compile(stub(), QuickRequest(100)).source, "compiled");
}

TEST_F(CacheCommandsTest, ADownloadUnderWayOutlivesItsEntry) {
  ASSERT_TRUE(StartServer({"--cache-memory-size=1MiB"}));
  MadeEntry large = MakeUpEntry(1, 48 << 20);
  ASSERT_TRUE(Import(stub(), RecordsOf(large)).ok());
  grpc::ClientContext context;
  v1::FetchRequest request;
  request.set_key(std::string(large.key.view()));
  auto reader = stub().Fetch(&context, request);
  v1::ArtifactChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  std::string bytes = chunk.data();
  // Flow control holds the rest back.
  ASSERT_EQ(Kiln({"rm", large.key.ToHex()}).code, 0);
  EXPECT_EQ(Fetch(stub(), large.key.ToHex()).status.error_code(), grpc::StatusCode::NOT_FOUND);
  while (reader->Read(&chunk)) bytes += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(bytes == large.bytes);
}

}  // namespace
}  // namespace kiln::integration
