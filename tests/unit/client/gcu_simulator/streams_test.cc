// Several streams: what has an order, and how they share the device.
#include <random>

#include "client/gcu_simulator/order.h"
#include "client/gcu_simulator/timeline.h"
#include "tests/unit/client/gcu_simulator/runtime_fixture.h"

namespace kiln {
namespace {

using gcu_simulator::EndBeside;
using gcu_simulator::Footprint;
using gcu_simulator::Order;
using gcu_simulator::Timeline;
using gcu_simulator::TimeRange;

class GcuStreamsTest : public GcuRuntimeTest {
 protected:
  void SetUp() override {
    GcuRuntimeTest::SetUp();
    ASSERT_EQ(GCU(stream_create)(context_, &other_), GCU_OK);
    ASSERT_EQ(GCU(event_create)(context_, &event_), GCU_OK);
    ASSERT_EQ(GCU(event_create)(context_, &end_), GCU_OK);
    for (gcu_address_t& address : at_) {
      address = Malloc(256);
      ASSERT_EQ(Copy(address), GCU_OK);
    }
  }
  // y = x + 1, of places.
  int Add(int x, int y, gcu_stream_t stream) {
    return Launch(add_, {at_[x], at_[y], 1}, 4096, 0, stream);
  }
  // Without a stream.
  int Copy(gcu_address_t to) {
    return GCU(memcpy)(context_, to, reinterpret_cast<uint64_t>(host_.data()), 256,
                       GCU_HOST_TO_DEVICE);
  }
  int CopyOn(gcu_stream_t stream, gcu_address_t device, int kind) {
    const auto host = reinterpret_cast<uint64_t>(host_.data());
    return kind == GCU_HOST_TO_DEVICE ? GCU(memcpy_async)(stream, device, host, 256, kind)
                                      : GCU(memcpy_async)(stream, host, device, 256, kind);
  }
  // The device's time from the first record to the second, in picoseconds.
  int64_t Elapsed(gcu_event_t begin, gcu_event_t end) {
    double ms = 0;
    EXPECT_EQ(GCU(event_elapsed)(begin, end, &ms), GCU_OK);
    return std::llround(ms * 1e9);
  }

  gcu_stream_t other_ = nullptr;
  gcu_event_t event_ = nullptr, end_ = nullptr;
  gcu_address_t at_[4] = {};
  std::vector<int32_t> host_ = std::vector<int32_t>(64, 7);
};

TEST_F(GcuStreamsTest, WorkThatMeetsWithoutAnOrderIsAFault) {
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  EXPECT_EQ(Add(1, 2, other_), GCU_RACE) << "reads what the other writes";
  EXPECT_NE(Error().find("kernel 'add' reads ["), std::string::npos) << Error();
  EXPECT_NE(
      Error().find("), which kernel 'add' writes on another stream that it does not wait for"),
      std::string::npos)
      << Error();
  EXPECT_EQ(Add(2, 1, other_), GCU_RACE) << "both write";
  EXPECT_EQ(Add(3, 0, other_), GCU_RACE) << "writes what the other reads";
  EXPECT_EQ(CopyOn(other_, at_[1], GCU_DEVICE_TO_HOST), GCU_RACE);
  EXPECT_NE(Error().find("a copy to the host reads"), std::string::npos) << Error();
  EXPECT_EQ(CopyOn(other_, at_[0], GCU_HOST_TO_DEVICE), GCU_RACE);
}

TEST_F(GcuStreamsTest, WorkThatMeetsInReadsOrNotAtAllNeedsNone) {
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  EXPECT_EQ(Add(0, 2, other_), GCU_OK) << Error();
  EXPECT_EQ(CopyOn(other_, at_[0], GCU_DEVICE_TO_HOST), GCU_OK) << Error();
  EXPECT_EQ(CopyOn(other_, at_[3], GCU_HOST_TO_DEVICE), GCU_OK) << Error();
}

TEST_F(GcuStreamsTest, EventsOrderStreams) {
  EXPECT_EQ(GCU(stream_wait_event)(other_, event_), GCU_INVALID_ARGUMENT) << "not recorded";
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  ASSERT_EQ(GCU(event_record)(event_, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_wait_event)(other_, event_), GCU_OK);
  EXPECT_EQ(Add(1, 2, other_), GCU_OK) << Error();
  EXPECT_EQ(Add(2, 0, other_), GCU_OK) << Error();
  // The event stands for what was there when it was recorded.
  ASSERT_EQ(Add(3, 3, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_wait_event)(other_, event_), GCU_OK);
  EXPECT_EQ(Add(3, 2, other_), GCU_RACE);
}

TEST_F(GcuStreamsTest, OrdersFollowOneAnother) {
  gcu_stream_t third = nullptr;
  ASSERT_EQ(GCU(stream_create)(context_, &third), GCU_OK);
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  ASSERT_EQ(GCU(event_record)(event_, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_wait_event)(other_, event_), GCU_OK);
  ASSERT_EQ(GCU(event_record)(event_, other_), GCU_OK);
  ASSERT_EQ(GCU(stream_wait_event)(third, event_), GCU_OK);
  EXPECT_EQ(Add(1, 2, third), GCU_OK) << Error();
}

TEST_F(GcuStreamsTest, WhatTheHostHasSeenComesFirst) {
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_synchronize)(stream_), GCU_OK);
  EXPECT_EQ(Add(1, 2, other_), GCU_OK) << Error();
  ASSERT_EQ(GCU(event_record)(event_, other_), GCU_OK);
  ASSERT_EQ(GCU(event_synchronize)(event_), GCU_OK);
  EXPECT_EQ(Add(2, 1, stream_), GCU_OK) << Error();
  EXPECT_EQ(Add(3, 1, other_), GCU_RACE) << "that was after it";
  ASSERT_EQ(Copy(at_[1]), GCU_OK);  // waits for all streams
  EXPECT_EQ(Add(2, 1, other_), GCU_OK) << Error();
  ASSERT_EQ(GCU(stream_destroy)(other_), GCU_OK);
  EXPECT_EQ(Add(2, 1, stream_), GCU_OK) << Error();
}

TEST_F(GcuStreamsTest, AnEventHasTheReportOfTheLaunchBeforeIt) {
  gcu_launch_report report, last;
  EXPECT_EQ(GCU(event_get_report)(event_, &report), GCU_INVALID_ARGUMENT) << "not recorded";
  ASSERT_EQ(GCU(event_record)(event_, stream_), GCU_OK);
  EXPECT_EQ(GCU(event_get_report)(event_, &report), GCU_NOT_FOUND);
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_get_report)(stream_, &last), GCU_OK);
  ASSERT_EQ(GCU(event_record)(event_, stream_), GCU_OK);
  gcu_function_t refuse = nullptr;
  ASSERT_EQ(GCU(module_get_function)(module_, "refuse", &refuse), GCU_OK);
  ASSERT_EQ(Launch(refuse, {}), GCU_TRAP);
  ASSERT_EQ(GCU(event_get_report)(event_, &report), GCU_OK);
  EXPECT_EQ(report.time_ps, last.time_ps);
  EXPECT_EQ(report.l3_read_bytes, 256);
}

TEST_F(GcuStreamsTest, TheTimeOfALaunchPassesWhileAnotherStreamsProgramRuns) {
  gcu_launch_report report;
  ASSERT_EQ(GCU(event_record)(event_, stream_), GCU_OK);
  ASSERT_EQ(Add(0, 1, stream_), GCU_OK);
  ASSERT_EQ(GCU(stream_get_report)(stream_, &report), GCU_OK);
  ASSERT_EQ(Add(2, 3, other_), GCU_OK);
  ASSERT_EQ(GCU(event_record)(end_, other_), GCU_OK);
  const int64_t launch = 10'000'000, program = report.time_ps - launch;
  EXPECT_EQ(Elapsed(event_, end_), launch + 2 * program);
  ASSERT_EQ(GCU(stream_wait_event)(stream_, end_), GCU_OK);
  ASSERT_EQ(Add(2, 3, stream_), GCU_OK);
  ASSERT_EQ(GCU(event_record)(end_, stream_), GCU_OK);
  EXPECT_EQ(Elapsed(event_, end_), 2 * launch + 3 * program) << "an order takes its time";
}

TEST(GcuTimelineTest, WorkStandsStillWhileOthersHaveItsPart) {
  const std::vector<TimeRange> taken = {{10, 20}, {30, 35}};
  EXPECT_EQ(EndBeside(0, 10, taken), 10);
  EXPECT_EQ(EndBeside(0, 11, taken), 21);
  EXPECT_EQ(EndBeside(15, 5, taken), 25);
  EXPECT_EQ(EndBeside(5, 16, taken), 36);
  EXPECT_EQ(EndBeside(40, 3, taken), 43);
  EXPECT_EQ(EndBeside(12, 0, taken), 12) << "nothing waits for nothing";
}

TEST(GcuTimelineTest, ACopyHasWhatAnEarlierProgramLeavesOfL3) {
  constexpr int64_t kMicro = 1'000'000;
  Timeline timeline;
  ASSERT_EQ(timeline.ProgramBegin(0, 10 * kMicro), 10 * kMicro);
  timeline.AddProgram({10 * kMicro, 30 * kMicro}, 15 * kMicro);  // leaves a quarter
  // 1 us before L3, 4 us alone, then 5 us at a quarter.
  const TimeRange copy = timeline.AddCopy(5 * kMicro, 5 * kMicro + kMicro / 4);
  EXPECT_EQ(copy.begin_ps, 5 * kMicro);
  EXPECT_EQ(copy.end_ps, 15 * kMicro);
  // The next one follows it, has 3.5 us' worth beside the program, and the rest behind.
  EXPECT_EQ(timeline.AddCopy(0, 5 * kMicro).end_ps, 30 * kMicro + 3 * kMicro / 2);
  // A later program has L3 when copies have done.
  const std::vector<TimeRange> left = timeline.CopiesFrom(31 * kMicro);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].begin_ps, 31 * kMicro);
  EXPECT_EQ(left[0].end_ps, 31 * kMicro + kMicro / 2);
  EXPECT_EQ(timeline.ProgramBegin(0, 10 * kMicro), 30 * kMicro) << "one program at a time";
  timeline.HostWaits(40 * kMicro);
  EXPECT_EQ(timeline.ProgramBegin(0, 10 * kMicro), 50 * kMicro) << "nothing is issued earlier";
  EXPECT_TRUE(timeline.CopiesFrom(0).empty());
}

TEST(GcuTimelineTest, ACopyBesideAProgramThatHasAllOfL3WaitsForIt) {
  Timeline timeline;
  timeline.AddProgram({0, 5'000'000}, 5'000'000);
  EXPECT_EQ(timeline.AddCopy(0, 1'000'000).end_ps, 6'000'000);
}

// Against the definition: a graph of all work, in which an order is a path.
TEST(GcuOrderTest, RandomProgramsAreJudgedAsByTheirGraph) {
  int races = 0, orders = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    constexpr size_t kStreams = 3, kEvents = 3;
    Order order;
    struct Work {
      std::vector<bool> after;  // work that comes before it
      uint64_t begin = 0;
      bool writes = false;
    };
    std::vector<Work> works;
    std::vector<bool> host(100), stream_knows[kStreams], event_knows[kEvents];
    Order::Known events[kEvents];
    int64_t streams[kStreams];
    const auto merge = [](const std::vector<bool>& from, std::vector<bool>& into) {
      for (size_t i = 0; i < from.size(); ++i) into[i] = into[i] || from[i];
    };
    for (size_t s = 0; s < kStreams; ++s) {
      streams[s] = order.AddStream();
      stream_knows[s].assign(100, false);
    }
    for (auto& knows : event_knows) knows.assign(100, false);
    for (int step = 0; step < 60; ++step) {
      const size_t s = draw(kStreams), e = draw(kEvents);
      switch (draw(8)) {
        case 0:
          events[e] = order.After(streams[s]);
          event_knows[e] = stream_knows[s];
          merge(host, event_knows[e]);
          break;
        case 1:
          order.StreamWaits(streams[s], events[e]);
          merge(event_knows[e], stream_knows[s]);
          break;
        case 2:
          if (draw(4) > 0) break;
          order.HostWaits(events[e]);
          merge(event_knows[e], host);
          break;
        default: {
          merge(host, stream_knows[s]);
          Work work = {stream_knows[s], 10 * draw(6), draw(2) == 0};
          bool meets = false;
          for (size_t i = 0; i < works.size(); ++i) {
            meets = meets || (!work.after[i] && (work.writes || works[i].writes) &&
                              works[i].begin == work.begin);
          }
          Footprint footprint;
          (work.writes ? footprint.written : footprint.read).Add(work.begin, work.begin + 10);
          const auto fault = order.Add(streams[s], "work", std::move(footprint));
          ASSERT_EQ(fault.has_value(), meets) << "step " << step;
          ++(meets ? races : orders);
          if (meets) step = 60;  // a program with a fault is over
          stream_knows[s][works.size()] = true;
          works.push_back(std::move(work));
        }
      }
    }
  }
  EXPECT_GT(races, 50);
  EXPECT_GT(orders, 1000);
}

}  // namespace
}  // namespace kiln
