// libgcu_runtime.so through its C interface alone, as the client uses it: by dlopen.
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "client/gcu_simulator/program.h"
#include "compiler/toolchain/gcu/binary.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"
#include "tests/unit/client/gcu_simulator/runtime_fixture.h"
#include "tests/unit/compiler/toolchain/gcu/random_module.h"

namespace kiln {
namespace {

TEST_F(GcuRuntimeTest, ALaunchIsReportedTimedAndTraced) {
  std::vector<int32_t> x(64), y(64);
  for (int i = 0; i < 64; ++i) x[i] = i * i;
  const gcu_address_t from = Malloc(256), to = Malloc(256);
  const auto pointer = [](auto& v) { return reinterpret_cast<uint64_t>(v.data()); };
  ASSERT_EQ(GCU(memcpy)(context_, from, pointer(x), 256, GCU_HOST_TO_DEVICE), GCU_OK);
  gcu_event_t begin = nullptr, end = nullptr;
  ASSERT_EQ(GCU(event_create)(context_, &begin), GCU_OK);
  ASSERT_EQ(GCU(event_create)(context_, &end), GCU_OK);
  double ms = 0;
  EXPECT_EQ(GCU(event_elapsed)(begin, end, &ms), GCU_INVALID_ARGUMENT);
  gcu_launch_report report;
  EXPECT_EQ(GCU(stream_get_report)(stream_, &report), GCU_NOT_FOUND);
  ASSERT_EQ(GCU(set_tracing)(context_, 1), GCU_OK);
  ASSERT_EQ(GCU(event_record)(begin, stream_), GCU_OK);
  ASSERT_EQ(Launch(add_, {from, to, 5}), GCU_OK) << Error();
  ASSERT_EQ(GCU(event_record)(end, stream_), GCU_OK);
  ASSERT_EQ(GCU(memcpy_async)(stream_, pointer(y), to, 256, GCU_DEVICE_TO_HOST), GCU_OK);
  ASSERT_EQ(GCU(stream_synchronize)(stream_), GCU_OK);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y[i], i * i + 5);
  ASSERT_EQ(GCU(stream_get_report)(stream_, &report), GCU_OK);
  ASSERT_EQ(GCU(event_elapsed)(begin, end, &ms), GCU_OK);
  EXPECT_DOUBLE_EQ(ms, static_cast<double>(report.time_ps) / 1e9);
  EXPECT_EQ(report.l3_read_bytes, 256);
  EXPECT_EQ(report.l2_written_bytes, 256);
  EXPECT_EQ(report.l2_peak_bytes, 4096);
  const TempDir folder;
  const std::string path = folder.path() + "/trace.json";
  ASSERT_EQ(GCU(write_trace)(context_, path.c_str()), GCU_OK);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find("\"tid\":\"core 0 dma\""), std::string::npos);
  EXPECT_NE(text.str().find("\"name\":\"v.add\""), std::string::npos);
  EXPECT_EQ(GCU(write_trace)(context_, "/proc/none/trace"), GCU_NOT_FOUND);
}

TEST_F(GcuRuntimeTest, FaultsAreCodesWithTexts) {
  EXPECT_EQ(Launch(add_, {8, 8, 5}), GCU_BOUNDS);
  EXPECT_NE(Error().find("kernel 'add', core 0, instruction 15 (dma): L3 has no allocation at 8"),
            std::string::npos)
      << Error();
  EXPECT_EQ(Launch(add_, {Malloc(256), Malloc(256), 5}), GCU_POISON);
  gcu_function_t refuse = nullptr;
  ASSERT_EQ(GCU(module_get_function)(module_, "refuse", &refuse), GCU_OK);
  EXPECT_EQ(Launch(refuse, {}), GCU_TRAP);
  EXPECT_NE(Error().find("trap 7"), std::string::npos);
  EXPECT_EQ(GCU(module_get_function)(module_, "none", &refuse), GCU_NOT_FOUND);
  EXPECT_STREQ(GCU(error_name)(GCU_POISON), "GCU_POISON");
  EXPECT_STREQ(GCU(error_name)(77), "an unknown status");
}

TEST_F(GcuRuntimeTest, WrongArgumentsAreRefused) {
  EXPECT_EQ(Launch(add_, {1, 2, 3}, 100), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Error(), "kernel 'add': wants 4096 bytes of L2, is given 100");
  EXPECT_EQ(Launch(add_, {1, 2, 3}, 4096, 5), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Launch(add_, {1, 2, 3}, 17 << 20), GCU_OUT_OF_MEMORY);
  EXPECT_EQ(GCU(launch_kernel)(add_, 1, 1, 1, 0, 0, 0, nullptr, 4096, stream_),
            GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Error(), "kernel 'add': argument 0 is a null pointer");
  EXPECT_EQ(GCU(launch_kernel)(add_, 0, 1, 1, 0, 0, 0, nullptr, 4096, stream_),
            GCU_INVALID_ARGUMENT);
  gcu_address_t address = 0;
  EXPECT_EQ(GCU(malloc)(context_, 0, GCU_MEMORY_L3, &address), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(malloc)(context_, 1, 2, &address), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(malloc)(context_, 1, GCU_MEMORY_L3, nullptr), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(malloc)(context_, ~uint64_t{0}, GCU_MEMORY_L3, &address), GCU_OUT_OF_MEMORY);
  EXPECT_EQ(GCU(memcpy)(context_, 0, 0, 4, 9), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(memcpy)(context_, Malloc(4), 0, 4, GCU_HOST_TO_DEVICE), GCU_INVALID_ARGUMENT);
  std::vector<char> host(4096);
  EXPECT_EQ(GCU(memcpy)(context_, reinterpret_cast<uint64_t>(host.data()), Malloc(16), 4096,
                        GCU_DEVICE_TO_HOST),
            GCU_BOUNDS);
  uint32_t count = 0;
  EXPECT_EQ(GCU(function_get_argument_count)(add_, &count), GCU_OK);
  EXPECT_EQ(count, 3U);
  gcu_argument_info info;
  EXPECT_EQ(GCU(function_get_argument)(add_, 1, &info), GCU_OK);
  EXPECT_STREQ(info.name, "y");
  EXPECT_EQ(info.access, 2U);
  EXPECT_EQ(GCU(function_get_argument)(add_, 3, &info), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(get_device_count)(nullptr), GCU_INVALID_ARGUMENT);
}

TEST_F(GcuRuntimeTest, DeadAndForeignHandlesAreRefused) {
  gcu_context_t other = nullptr;
  ASSERT_EQ(GCU(context_create)(0, &other), GCU_OK);
  gcu_stream_t stream = nullptr;
  ASSERT_EQ(GCU(stream_create)(other, &stream), GCU_OK);
  EXPECT_EQ(GCU(launch_kernel)(add_, 1, 1, 1, 0, 0, 0, nullptr, 4096, stream),
            GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Error(), "kernel 'add': function and stream are of two contexts");
  ASSERT_EQ(GCU(context_destroy)(other), GCU_OK);
  EXPECT_EQ(GCU(context_destroy)(other), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(stream_destroy)(stream), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(stream_synchronize)(nullptr), GCU_INVALID_ARGUMENT);
  ASSERT_EQ(GCU(module_unload)(module_), GCU_OK);
  EXPECT_EQ(GCU(module_unload)(module_), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Launch(add_, {1, 2, 3}), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(Error(), "gcu_launch_kernel: no such function or stream");
  const gcu_address_t address = Malloc(4);
  EXPECT_EQ(GCU(free)(context_, address, GCU_MEMORY_L2), GCU_INVALID_ARGUMENT);
  EXPECT_EQ(GCU(free)(context_, address, GCU_MEMORY_L3), GCU_OK);
  EXPECT_EQ(GCU(free)(context_, address, GCU_MEMORY_L3), GCU_INVALID_ARGUMENT);
  int local = 0;
  EXPECT_EQ(GCU(event_destroy)(reinterpret_cast<gcu_event_t>(&local)), GCU_INVALID_ARGUMENT);
}

TEST_F(GcuRuntimeTest, L2IsHandedOutAgain) {
  gcu_address_t all = 0, again = 0;
  ASSERT_EQ(GCU(l2_malloc)(context_, 16 << 20, &all), GCU_OK);
  EXPECT_EQ(GCU(l2_malloc)(context_, 512, &again), GCU_OUT_OF_MEMORY);
  EXPECT_EQ(Launch(add_, {1, 2, 3}), GCU_OUT_OF_MEMORY);
  ASSERT_EQ(GCU(l2_free)(context_, all), GCU_OK);
  ASSERT_EQ(GCU(l2_malloc)(context_, 512, &again), GCU_OK);
  EXPECT_EQ(again, all);
}

TEST_F(GcuRuntimeTest, ProfilesAreOfTheEnvironmentAndMustFit) {
  gcu_device_properties properties;
  ASSERT_EQ(GCU(get_device_properties)(0, &properties), GCU_OK);
  EXPECT_STREQ(properties.name, "gcu-16m");
  EXPECT_EQ(properties.l2_bytes, 16U << 20);
  EXPECT_EQ(GCU(get_device_properties)(1, &properties), GCU_INVALID_ARGUMENT);
  std::string text = kAdd;
  text.replace(text.find("gcu-16m"), 7, "gcu-s60");
  const std::string binary = BinaryOf(text);
  gcu_module_t module = nullptr;
  EXPECT_EQ(GCU(module_load)(context_, binary.data(), binary.size(), &module), GCU_WRONG_PROFILE);
  setenv("GCU_PROFILE", "gcu-s60", 1);
  gcu_context_t context = nullptr;
  ASSERT_EQ(GCU(context_create)(0, &context), GCU_OK);
  EXPECT_EQ(GCU(module_load)(context, binary.data(), binary.size(), &module), GCU_OK) << Error();
  EXPECT_EQ(GCU(context_destroy)(context), GCU_OK);
  setenv("GCU_PROFILE", "gcu-0", 1);
  EXPECT_EQ(GCU(context_create)(0, &context), GCU_NOT_FOUND);
  EXPECT_EQ(Error(), "GCU_PROFILE names no profile: gcu-0");
  unsetenv("GCU_PROFILE");
}

TEST_F(GcuRuntimeTest, ThreadsShareAContext) {
  const gcu_address_t from = Malloc(256), to = Malloc(256);
  std::vector<int32_t> x(64, 1);
  ASSERT_EQ(
      GCU(memcpy)(context_, from, reinterpret_cast<uint64_t>(x.data()), 256, GCU_HOST_TO_DEVICE),
      GCU_OK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 20; ++n) {
        EXPECT_EQ(i == 0 ? Launch(add_, {8, to, 1}) : Launch(add_, {from, to, 1}),
                  i == 0 ? GCU_BOUNDS : GCU_OK);
      }
      EXPECT_EQ(Error().empty(), i != 0);  // each thread's own
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Writer and reader of binaries are written from the specification, each by itself: they agree on
// what is one.
TEST(GcuLoaderTest, TakesWhatTheAssemblerTakesAndNothingElse) {
  const auto with_checksum = [](std::string binary) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < binary.size(); ++i) {
      hash = (hash ^ (i >= 72 && i < 80 ? 0 : static_cast<uint8_t>(binary[i]))) * 0x100000001b3;
    }
    for (int i = 0; i < 8; ++i) binary[72 + i] = static_cast<char>(hash >> (8 * i));
    return binary;
  };
  int taken = 0, refused = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string binary = *gcu::Encode(gcu::RandomModule(random));
    gcu_simulator::Program program;
    ASSERT_FALSE(gcu_simulator::LoadProgram(binary.data(), binary.size(), program));
    for (int round = 0; round < 400; ++round) {
      std::string changed = binary;
      const size_t at = random() % (round % 2 == 0 ? changed.size() : 80);
      changed[at] = static_cast<char>(round % 4 < 2 ? random() : changed[at] ^ 1 << random() % 8);
      if (round % 8 == 0) changed.resize(random() % changed.size());
      if (round % 16 != 1 && changed.size() >= 80) changed = with_checksum(changed);
      const bool by_assembler = gcu::Decode(changed).ok();
      const auto fault = gcu_simulator::LoadProgram(changed.data(), changed.size(), program);
      ASSERT_EQ(!fault, by_assembler) << "byte " << at << ", " << (fault ? fault->text : "taken");
      (fault ? refused : taken)++;
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace kiln
