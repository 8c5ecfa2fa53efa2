#include "client/trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/own_server.h"
#include "proto/base/signing.h"
#include "tests/temp_dir.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class TrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"KILN_TOKEN", "KILN_TOKEN_FILE"}) unsetenv(name);
    setenv("XDG_RUNTIME_DIR", (dir_.path() + "/run").c_str(), 1);
    std::filesystem::create_directories(dir_.path() + "/run");
    unsetenv("KILN_PUBLIC_KEY");
    unsetenv("KILN_KNOWN_SERVERS");
    setenv("XDG_CONFIG_HOME", dir_.path().c_str(), 1);
  }
  std::shared_ptr<Trust> Load(const ClientOptions& options = {}) { return *Trust::Load(options); }
  std::string FileText() {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  std::string File(const std::string& name, const std::string& text, unsigned mode = 0600) {
    const std::string path = dir_.path() + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string Sign(const SigningKey& key) { return key.Sign(kArtifactKind, name_, digest_); }

  TempDir dir_;
  std::string path_ = dir_.path() + "/kiln/known_servers";
  std::unique_ptr<SigningKey> mine_ = *SigningKey::LoadOrCreate(dir_.path() + "/mine");
  std::unique_ptr<SigningKey> other_ = *SigningKey::LoadOrCreate(dir_.path() + "/other");
  Digest name_ = Sha256("key"), digest_ = Sha256("bytes");
};

TEST_F(TrustTest, KeepsTheFirstKeyOfAServerForGood) {
  ASSERT_TRUE(Load()->Introduce("build.example:7461", mine_->public_key()).ok());
  EXPECT_EQ(FileText(),
            absl::StrCat("build.example:7461 ", FormatPublicKey(mine_->public_key()), "\n"));
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);

  auto later = Load();
  EXPECT_TRUE(later->Introduce("https://build.example:7461", mine_->public_key()).ok());
  absl::Status changed = later->Introduce("build.example:7461", other_->public_key());
  EXPECT_TRUE(absl::IsUnauthenticated(changed)) << changed;
  EXPECT_THAT(changed.message(), HasSubstr(path_));
  EXPECT_THAT(changed.message(), HasSubstr(FormatPublicKey(other_->public_key())));
  EXPECT_TRUE(absl::IsUnauthenticated(later->Introduce("build.example:7461", "")))
      << "a server that stops signing";
  EXPECT_TRUE(later->Introduce("build.example:7462", other_->public_key()).ok()) << "another port";
}

TEST_F(TrustTest, ChecksSignaturesByTheKnownKey) {
  auto trust = Load();
  const char* server = "build.example:7461";
  EXPECT_TRUE(absl::IsFailedPrecondition(trust->Check(server, name_, digest_, Sign(*mine_))))
      << "nobody introduced it";
  ASSERT_TRUE(trust->Introduce(server, mine_->public_key()).ok());
  EXPECT_TRUE(trust->Check(server, name_, digest_, Sign(*mine_)).ok());
  EXPECT_TRUE(absl::IsDataLoss(trust->Check(server, name_, digest_, Sign(*other_))));
  EXPECT_TRUE(absl::IsDataLoss(trust->Check(server, digest_, digest_, Sign(*mine_))));
  absl::Status unsigned_answer = trust->Check(server, name_, digest_, "");
  EXPECT_TRUE(absl::IsDataLoss(unsigned_answer));
  EXPECT_THAT(unsigned_answer.message(), HasSubstr("without a signature"));
  // After a restart of the client, with the server away.
  auto later = Load();
  EXPECT_TRUE(later->Check(server, name_, digest_, Sign(*mine_)).ok());
  EXPECT_TRUE(absl::IsDataLoss(later->Check(server, name_, digest_, Sign(*other_))));
}

TEST_F(TrustTest, AGivenKeyGoesBeforeWhatIsKept) {
  ASSERT_TRUE(Load()->Introduce("build.example:7461", mine_->public_key()).ok());
  ClientOptions options;
  options.public_key = absl::StrCat(FormatPublicKey(other_->public_key()), ", ",
                                    FormatPublicKey(other_->public_key()));
  auto trust = Load(options);
  absl::Status status = trust->Introduce("build.example:7461", mine_->public_key());
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("public_key"));
  EXPECT_TRUE(trust->Introduce("build.example:7461", other_->public_key()).ok());
  EXPECT_TRUE(trust->Check("never.met:1", name_, digest_, Sign(*other_)).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(trust->Introduce("127.0.0.1:7461", mine_->public_key())))
      << "on this machine, too";
}

TEST_F(TrustTest, AKeyBesideTheTokenIsAGivenOne) {
  ClientOptions options;
  options.token_file =
      File("token", absl::StrCat("secret\n", FormatPublicKey(mine_->public_key()), "\n"));
  auto trust = Load(options);
  const absl::Status other = trust->Introduce("build.example:7461", other_->public_key());
  EXPECT_TRUE(absl::IsUnauthenticated(other)) << other;
  EXPECT_THAT(other.message(), HasSubstr(options.token_file));
  EXPECT_TRUE(absl::IsUnauthenticated(trust->Introduce("127.0.0.1:7461", ""))) << "signs nothing";
  EXPECT_TRUE(trust->Introduce("build.example:7461", mine_->public_key()).ok());
  EXPECT_TRUE(trust->Check("build.example:7461", name_, digest_, Sign(*mine_)).ok());
  EXPECT_TRUE(absl::IsDataLoss(trust->Check("build.example:7461", name_, digest_, Sign(*other_))));
  EXPECT_TRUE(absl::IsDataLoss(trust->Check("build.example:7461", name_, digest_, "")));
  EXPECT_TRUE(absl::IsDataLoss(trust->CheckKept({"a:1"}, name_, digest_, Sign(*other_))));
  EXPECT_FALSE(std::filesystem::exists(path_)) << "nothing to keep";

  options.public_key = FormatPublicKey(other_->public_key());
  EXPECT_TRUE(Load(options)->Introduce("build.example:7461", other_->public_key()).ok())
      << "the option goes before it";
  setenv("KILN_TOKEN_FILE", options.token_file.c_str(), 1);
  EXPECT_FALSE(Load()->Introduce("build.example:7461", other_->public_key()).ok());
  options = ClientOptions();
  options.token = "another";  // in the place of the environment's file, keys and all
  EXPECT_TRUE(Load(options)->Introduce("build.example:7461", other_->public_key()).ok());
}

TEST_F(TrustTest, ATokenFileWithKeysIsRefusedWhereOthersMayWriteIt) {
  ClientOptions options;
  const std::string key = FormatPublicKey(mine_->public_key());
  options.token_file = File("token", absl::StrCat("secret ", key), 0620);
  absl::Status status = Trust::Load(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("others may write '" + options.token_file));
  options.token_file = File("token", "secret ed25519:short", 0600);
  status = Trust::Load(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(options.token_file));
  options.token_file = File("token", "secret\n", 0664);
  EXPECT_TRUE(Trust::Load(options).ok()) << "a token alone";
}

TEST_F(TrustTest, WhoTakesThePortOfAServerOfThisUserIsNotTrusted) {
  std::filesystem::create_directories(dir_.path() + "/run/kiln");
  ASSERT_EQ(chmod((dir_.path() + "/run/kiln").c_str(), 0700), 0);
  const std::string left = LocalTokenFile(dir_.path() + "/run/kiln", 7461);
  const std::string text = absl::StrCat("secret\n", FormatPublicKey(mine_->public_key()), "\n");
  std::ofstream(left) << text;
  ASSERT_EQ(chmod(left.c_str(), 0600), 0);
  auto trust = Load();
  EXPECT_TRUE(trust->Introduce("127.0.0.1:7461", mine_->public_key()).ok());
  absl::Status other = trust->Introduce("localhost:7461", other_->public_key());
  EXPECT_TRUE(absl::IsUnauthenticated(other)) << other;
  EXPECT_THAT(other.message(), HasSubstr("remove it"));
  EXPECT_THAT(other.message(), HasSubstr(left));
  EXPECT_TRUE(absl::IsUnauthenticated(trust->Introduce("127.0.0.1:7461", "")));
  EXPECT_TRUE(absl::IsDataLoss(trust->Check("127.0.0.1:7461", name_, digest_, Sign(*other_))));
  EXPECT_TRUE(absl::IsDataLoss(trust->Check("127.0.0.1:7461", name_, digest_, "")));
  EXPECT_TRUE(trust->Introduce("127.0.0.1:7462", other_->public_key()).ok()) << "another port";
  std::filesystem::remove(left);
  EXPECT_TRUE(trust->Introduce("127.0.0.1:7461", other_->public_key()).ok());
}

TEST_F(TrustTest, AServerOfThisMachineMayChangeItsKeyUnlessTheFileIsNamed) {
  auto trust = Load();
  ASSERT_TRUE(trust->Introduce("127.0.0.1:7461", mine_->public_key()).ok());
  EXPECT_EQ(FileText(), "");
  EXPECT_TRUE(absl::IsDataLoss(trust->Check("127.0.0.1:7461", name_, digest_, Sign(*other_))));
  EXPECT_TRUE(trust->Introduce("127.0.0.1:7461", other_->public_key()).ok());
  EXPECT_TRUE(trust->Check("127.0.0.1:7461", name_, digest_, Sign(*other_)).ok());

  ClientOptions options;
  options.known_servers = dir_.path() + "/named";
  ASSERT_TRUE(Load(options)->Introduce("127.0.0.1:7461", mine_->public_key()).ok());
  EXPECT_TRUE(
      absl::IsUnauthenticated(Load(options)->Introduce("127.0.0.1:7461", other_->public_key())));
}

TEST_F(TrustTest, AServerThatNeverSignedIsTakenAsItIs) {
  auto trust = Load();
  ASSERT_TRUE(trust->Introduce("old.example:7461", "").ok());
  EXPECT_TRUE(trust->Check("old.example:7461", name_, digest_, "").ok());
  EXPECT_EQ(FileText(), "");
}

TEST_F(TrustTest, SeveralLinesOfOneServerAreAllGood) {
  std::filesystem::create_directories(dir_.path() + "/kiln");
  std::ofstream(path_) << "# keys\n\na.example:1 " << FormatPublicKey(mine_->public_key())
                       << " # old\na.example:1\t" << FormatPublicKey(other_->public_key()) << "\n";
  auto trust = Load();
  EXPECT_TRUE(trust->Introduce("a.example:1", mine_->public_key()).ok());
  EXPECT_TRUE(trust->Introduce("a.example:1", other_->public_key()).ok());
  EXPECT_TRUE(trust->Check("a.example:1", name_, digest_, Sign(*other_)).ok());
}

TEST_F(TrustTest, ABadLineOrKeyIsAnErrorThatNamesIt) {
  std::filesystem::create_directories(dir_.path() + "/kiln");
  std::ofstream(path_) << "\na.example:1 ssh-ed25519 AAAA\n";
  absl::Status status = Trust::Load({}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(path_, " line 2")));
  ClientOptions options;
  options.public_key = "ed25519:short";
  EXPECT_THAT(Trust::Load(options).status().message(), HasSubstr("public_key: 'ed25519:short'"));
}

TEST_F(TrustTest, WhatIsAddedIsALineOfItsOwnOrNothing) {
  const std::string line = absl::StrCat("a:1 ", FormatPublicKey(mine_->public_key()));
  const std::string edited = File("edited", line);  // by hand, and without an end of the line
  const ClientOptions options = {.known_servers = edited};
  ASSERT_TRUE(Load(options)->Introduce("b:1", other_->public_key()).ok());
  EXPECT_TRUE(Load(options)->Introduce("a:1", mine_->public_key()).ok());
  EXPECT_TRUE(Load(options)->Introduce("b:1", other_->public_key()).ok());

  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto size = std::filesystem::file_size(edited);
  const rlimit full = {size + 10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_TRUE(Load(options)->Introduce("c:1", other_->public_key()).ok());
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(std::filesystem::file_size(edited), size);
}

TEST_F(TrustTest, ProcessesThatMeetAServerTogetherKeepOneLine) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [this] { EXPECT_TRUE(Load()->Introduce("a.example:1", mine_->public_key()).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(FileText(), '\n')).size(), 2u) << FileText();
}

TEST_F(TrustTest, WhatWasKeptLocallyIsCheckedByTheKeysOfItsServers) {
  auto trust = Load();
  EXPECT_TRUE(trust->CheckKept({"a.example:1"}, name_, digest_, "").ok()) << "none is known";
  ASSERT_TRUE(trust->Introduce("b.example:1", mine_->public_key()).ok());
  EXPECT_TRUE(trust->CheckKept({"a.example:1", "b.example:1"}, name_, digest_, Sign(*mine_)).ok());
  EXPECT_TRUE(absl::IsDataLoss(
      trust->CheckKept({"a.example:1", "b.example:1"}, name_, digest_, Sign(*other_))));
  EXPECT_TRUE(absl::IsDataLoss(trust->CheckKept({"b.example:1"}, name_, digest_, "")));
}

TEST_F(TrustTest, AFolderThatCannotBeWrittenKeepsTheKeyForTheProcess) {
  std::ofstream(dir_.path() + "/file") << "x";
  setenv("XDG_CONFIG_HOME", (dir_.path() + "/file").c_str(), 1);
  auto trust = Load();
  ASSERT_TRUE(trust->Introduce("a.example:1", mine_->public_key()).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(trust->Introduce("a.example:1", other_->public_key())));
  EXPECT_TRUE(trust->Check("a.example:1", name_, digest_, Sign(*mine_)).ok());
}

}  // namespace
}  // namespace kiln::testing
