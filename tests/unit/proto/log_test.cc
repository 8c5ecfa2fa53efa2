#include "proto/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What `body` writes to standard error.
template <typename F>
std::string Logged(LogFormat format, F body) {
  std::FILE* file = std::tmpfile();
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  SetLogFormat(format);
  SetLogLevel(LogLevel::kInfo);
  body();
  SetLogFormat(LogFormat::kText);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(fileno(file), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  std::fclose(file);
  return text;
}

google::protobuf::Struct ParseJson(const std::string& text) {
  google::protobuf::Struct object;
  auto status = google::protobuf::util::JsonStringToMessage(text, &object);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << text;
  return object;
}

const std::string kHostile[] = {"plain",
                                "\"},{\"level\":\"error\"",
                                "a\nb\r\nkilnd ready: x",
                                std::string("nul\0here", 8),
                                "\x1b[2Jescape \xc2\x9b"
                                "31m",
                                "broken \xff\xfe\xc0\xaf \xed\xa0\x80 \xf5\x80\x80\x80 \xe2\x82",
                                "good \xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5",
                                "line\xe2\x80\xa8separator",
                                "back\\slash",
                                ""};

TEST(LogTest, HostileStringsStayInsideOneJsonField) {
  for (const std::string& hostile : kHostile) {
    std::string line = Logged(LogFormat::kJson, [&] {
      Log(LogLevel::kInfo, hostile, {{"graph", hostile}, {"after", "x"}});
    });
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    google::protobuf::Struct object = ParseJson(line);
    EXPECT_EQ(object.fields_size(), 5) << line;
    EXPECT_EQ(object.fields().at("level").string_value(), "info");
    EXPECT_EQ(object.fields().at("after").string_value(), "x");
  }
}

TEST(LogTest, GoodTextComesBackAsItWas) {
  for (const char* text :
       {"plain", "a\nb", "good \xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5", "\x1b["}) {
    std::string line = Logged(LogFormat::kJson, [&] { Log(LogLevel::kInfo, "m", {{"k", text}}); });
    EXPECT_EQ(ParseJson(line).fields().at("k").string_value(), text);
  }
}

TEST(LogTest, BytesThatAreNoUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(JsonQuote("a\xff"
                      "b"),
            "\"a\xEF\xBF\xBD"
            "b\"");
  EXPECT_EQ(JsonQuote("\xed\xa0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a surrogate
  EXPECT_EQ(JsonQuote("\xe2\x82"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");                  // cut short
  EXPECT_EQ(JsonQuote("\xc2\x9b"), "\"\\u009b\"");
}

TEST(LogTest, RandomBytesAreAlwaysValidJson) {
  const unsigned seed = 7461;
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 24, '\0');
    for (char& c : text) c = static_cast<char>(random());
    google::protobuf::Struct object = ParseJson("{\"k\":" + JsonQuote(text) + "}");
    ASSERT_EQ(object.fields_size(), 1) << "seed " << seed << ", round " << i;
  }
}

TEST(LogTest, NumbersAreNumbers) {
  std::string line = Logged(LogFormat::kJson, [] {
    Log(LogLevel::kInfo, "m",
        {{"bytes", int64_t{1} << 40},
         {"ms", 0.25},
         {"bad", std::numeric_limits<double>::quiet_NaN()}});
  });
  google::protobuf::Struct object = ParseJson(line);
  EXPECT_EQ(object.fields().at("bytes").number_value(), 1099511627776.0);
  EXPECT_EQ(object.fields().at("ms").number_value(), 0.25);
  EXPECT_EQ(object.fields().at("bad").string_value(), "nan");
}

TEST(LogTest, TextLinesHoldNoControlCharacters) {
  for (const std::string& hostile : kHostile) {
    std::string line =
        Logged(LogFormat::kText, [&] { Log(LogLevel::kInfo, "m", {{"graph", hostile}}); });
    ASSERT_FALSE(line.empty());
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_THAT(line, Not(HasSubstr("\x1b")));
    EXPECT_THAT(line, Not(HasSubstr("\xc2\x9b")));
  }
}

TEST(LogThreadTest, WritesAllLinesInOrderByItsEnd) {
  constexpr int kThreads = 4;
  constexpr int kLines = 2000;
  const std::string text = Logged(LogFormat::kText, [] {
    LogThread log;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        for (int j = 0; j < kLines; ++j) LogSoon(LogLevel::kInfo, "line", {{"from", i}, {"n", j}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  int next[kThreads] = {};
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    int from = -1;
    int n = -1;
    ASSERT_EQ(std::sscanf(std::string(line).c_str(), "%*s info line from=%d n=%d", &from, &n), 2)
        << line;
    ASSERT_TRUE(from >= 0 && from < kThreads) << line;
    EXPECT_EQ(n, next[from]++);
  }
  for (int count : next) EXPECT_EQ(count, kLines);
}

TEST(LogThreadTest, LogComesAtOnceAfterWhatWaits) {
  const std::string text = Logged(LogFormat::kText, [] {
    LogThread log;
    LogSoon(LogLevel::kInfo, "first");
    const off_t before = lseek(STDERR_FILENO, 0, SEEK_END);
    Log(LogLevel::kInfo, "second");
    EXPECT_GT(lseek(STDERR_FILENO, 0, SEEK_END), before);
    LogSoon(LogLevel::kInfo, std::string(10000, 'x'));  // more than a pipe takes in one piece
    LogSoon(LogLevel::kInfo, "last");
  });
  EXPECT_THAT(text, testing::ContainsRegex("first\n.*second\n.*xxxx\n.*last\n"));
}

TEST(LogThreadTest, ALineIsWrittenSoon) {
  const std::string text = Logged(LogFormat::kText, [] {
    LogThread log;
    LogSoon(LogLevel::kInfo, "alone");
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    while (lseek(STDERR_FILENO, 0, SEEK_END) == 0 && absl::Now() < limit) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_GT(lseek(STDERR_FILENO, 0, SEEK_END), 0);
  });
  EXPECT_THAT(text, HasSubstr("alone"));
}

}  // namespace
}  // namespace kiln
