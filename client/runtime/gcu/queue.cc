#include "client/runtime/gcu/queue.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::gcu {
namespace {

constexpr size_t kCopies = 0;       // the stream of all copies
constexpr size_t kMostStreams = 4;  // with that one

}  // namespace

void Dependences::Cut(uint64_t begin, uint64_t end) {
  for (const uint64_t at : {begin, end}) {
    auto next = parts_.upper_bound(at);
    if (next == parts_.begin()) continue;
    auto& [first, part] = *std::prev(next);
    if (first == at || part.end <= at) continue;
    Part rest = part;
    part.end = at;
    parts_.emplace_hint(next, at, std::move(rest));
  }
  uint64_t at = begin;
  while (at < end) {
    const auto next = parts_.lower_bound(at);
    if (next != parts_.end() && next->first == at) {
      at = next->second.end;
      continue;
    }
    const uint64_t gap_end = next == parts_.end() ? end : std::min(end, next->first);
    parts_.emplace_hint(next, at, Part{.end = gap_end});
    at = gap_end;
  }
}

void Dependences::Add(int work, const Access& access, std::vector<int>& before) {
  if (access.bytes == 0) return;
  const uint64_t end = access.begin + access.bytes;
  Cut(access.begin, end);
  for (auto it = parts_.lower_bound(access.begin); it != parts_.end() && it->first < end; ++it) {
    Part& part = it->second;
    if (part.writer >= 0 && part.writer != work) before.push_back(part.writer);
    if (!access.writes) {
      if (part.readers.empty() || part.readers.back() != work) part.readers.push_back(work);
      continue;
    }
    for (const int reader : part.readers) {
      if (reader != work) before.push_back(reader);
    }
    part.readers.clear();
    part.writer = work;
  }
}

Queue::~Queue() {
  for (const Stream& stream : streams_) runtime_.stream_destroy(stream.stream);
  for (const gcu_event_t event : events_) runtime_.event_destroy(event);
}

absl::Status Queue::AddStream() {
  gcu_stream_t stream = nullptr;
  KILN_RETURN_IF_ERROR(
      runtime_.Check(runtime_.stream_create(runtime_.context, &stream), "cannot make a stream"));
  streams_.push_back({.stream = stream, .known = std::vector<int>(kMostStreams, -1)});
  return absl::OkStatus();
}

absl::Status Queue::Record(Work& work) {
  if (work.event != nullptr) return absl::OkStatus();
  gcu_event_t event = nullptr;
  KILN_RETURN_IF_ERROR(
      runtime_.Check(runtime_.event_create(runtime_.context, &event), "cannot make an event"));
  events_.push_back(event);
  KILN_RETURN_IF_ERROR(runtime_.Check(runtime_.event_record(event, streams_[work.stream].stream),
                                      "cannot record an event"));
  work.event = event;
  return absl::OkStatus();
}

absl::StatusOr<size_t> Queue::ChooseStream(const std::vector<int>& before) {
  if (streams_.empty()) KILN_RETURN_IF_ERROR(AddStream());
  // Behind the latest of what it waits for, where nothing else has been put there since.
  int latest = -1;
  for (const int work : before) {
    const size_t stream = works_[static_cast<size_t>(work)].stream;
    if (stream != kCopies && streams_[stream].last == work) latest = std::max(latest, work);
  }
  if (latest >= 0) return works_[static_cast<size_t>(latest)].stream;
  if (streams_.size() < kMostStreams) {
    KILN_RETURN_IF_ERROR(AddStream());
    return streams_.size() - 1;
  }
  // That which has had nothing for the longest time.
  size_t oldest = kCopies + 1;
  for (size_t i = oldest; i < streams_.size(); ++i) {
    if (streams_[i].last < streams_[oldest].last) oldest = i;
  }
  return oldest;
}

absl::Status Queue::Begin(size_t stream, std::vector<int> before) {
  Stream& on = streams_[stream];
  // The latest first: what was issued on its stream before comes with it.
  std::sort(before.begin(), before.end(), std::greater<>());
  for (const int number : before) {
    Work& work = works_[static_cast<size_t>(number)];
    if (work.stream == stream || on.known[work.stream] >= number) continue;
    KILN_RETURN_IF_ERROR(Record(work));
    KILN_RETURN_IF_ERROR(runtime_.Check(runtime_.stream_wait_event(on.stream, work.event),
                                        "cannot have a stream wait"));
    on.known[work.stream] = number;
  }
  on.last = static_cast<int>(works_.size());
  works_.push_back({.stream = stream});
  return absl::OkStatus();
}

absl::Status Queue::Launch(const std::string& name, gcu_function_t function, uint64_t l2_bytes,
                           absl::Span<void*> arguments, absl::Span<const Access> accesses) {
  const auto number = static_cast<int>(works_.size());
  std::vector<int> before;
  for (const Access& access : accesses) dependences_.Add(number, access, before);
  KILN_ASSIGN_OR_RETURN(const size_t stream, ChooseStream(before));
  KILN_RETURN_IF_ERROR(Begin(stream, std::move(before)));
  KILN_RETURN_IF_ERROR(
      runtime_.Check(runtime_.launch_kernel(function, 1, 1, 1, 0, 0, 0, arguments.data(), l2_bytes,
                                            streams_[stream].stream),
                     absl::StrCat("kernel ", name)));
  launches_.emplace_back(name, number);
  return Record(works_.back());  // now, so that it has this launch's report
}

absl::Status Queue::ToDevice(gcu_address_t to, const void* from, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (streams_.empty()) KILN_RETURN_IF_ERROR(AddStream());
  std::vector<int> before;
  dependences_.Add(static_cast<int>(works_.size()), {to, bytes, true}, before);
  KILN_RETURN_IF_ERROR(Begin(kCopies, std::move(before)));
  uploads_ = true;
  return runtime_.Check(
      runtime_.memcpy_async(streams_[kCopies].stream, to, reinterpret_cast<uintptr_t>(from), bytes,
                            GCU_HOST_TO_DEVICE),
      "cannot copy a tensor to the GCU");
}

absl::Status Queue::WaitForUploads() {
  if (!uploads_) return absl::OkStatus();
  uploads_ = false;
  return runtime_.Check(runtime_.stream_synchronize(streams_[kCopies].stream),
                        "cannot copy a tensor to the GCU");
}

absl::Status Queue::ToHost(void* to, gcu_address_t from, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (streams_.empty()) KILN_RETURN_IF_ERROR(AddStream());
  std::vector<int> before;
  dependences_.Add(static_cast<int>(works_.size()), {from, bytes, false}, before);
  KILN_RETURN_IF_ERROR(Begin(kCopies, std::move(before)));
  constexpr absl::string_view kWhat = "cannot copy a tensor from the GCU";
  KILN_RETURN_IF_ERROR(runtime_.Check(
      runtime_.memcpy_async(streams_[kCopies].stream, reinterpret_cast<uintptr_t>(to), from, bytes,
                            GCU_DEVICE_TO_HOST),
      kWhat));
  uploads_ = false;
  return runtime_.Check(runtime_.stream_synchronize(streams_[kCopies].stream), kWhat);
}

absl::Status Queue::Finish() {
  for (const Stream& stream : streams_) {
    KILN_RETURN_IF_ERROR(runtime_.Check(runtime_.stream_synchronize(stream.stream),
                                        "what runs on the GCU does not come to its end"));
  }
  uploads_ = false;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Queue::Launched>> Queue::Reports() const {
  std::vector<Launched> reports;
  for (const auto& [name, work] : launches_) {
    Launched& launched = reports.emplace_back(Launched{.name = name, .report = {}});
    KILN_RETURN_IF_ERROR(runtime_.Check(
        runtime_.event_get_report(works_[static_cast<size_t>(work)].event, &launched.report),
        "cannot read what a launch did"));
  }
  return reports;
}

}  // namespace kiln::gcu
