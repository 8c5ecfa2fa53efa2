#include "client/gcu_simulator/order.h"

#include <algorithm>
#include <utility>

namespace kiln::gcu_simulator {
namespace {

int64_t NumberIn(const Order::Known& known, int64_t stream) {
  const auto found = known.find(stream);
  return found == known.end() ? 0 : found->second;
}

}  // namespace

void Order::Merge(const Known& known, Known& into) {
  for (const auto& [stream, number] : known) {
    int64_t& mine = into[stream];
    mine = std::max(mine, number);
  }
}

int64_t Order::AddStream() {
  const int64_t stream = ++streams_made_;
  known_[stream][stream] = 0;
  return stream;
}

void Order::RemoveStream(int64_t stream) {
  HostWaits(After(stream));
  known_.erase(stream);
  host_.erase(stream);
  for (auto& [other, known] : known_) known.erase(stream);
}

Order::Known Order::After(int64_t stream) const {
  Known known = known_.at(stream);
  Merge(host_, known);
  return known;
}

void Order::StreamWaits(int64_t stream, const Known& known) {
  Known& mine = known_.at(stream);
  for (const auto& [other, number] : known) {
    if (known_.contains(other)) mine[other] = std::max(mine[other], number);
  }
}

void Order::HostWaits(const Known& known) {
  for (const auto& [stream, number] : known) {
    if (known_.contains(stream)) host_[stream] = std::max(host_[stream], number);
  }
  std::erase_if(unordered_,
                [&](const Work& work) { return work.number <= NumberIn(host_, work.stream); });
}

void Order::HostWaitsForAll() {
  for (const auto& [stream, known] : known_) host_[stream] = NumberIn(known, stream);
  unordered_.clear();
}

std::optional<Fault> Order::Add(int64_t stream, std::string what, Footprint footprint) {
  Known& mine = known_.at(stream);
  Merge(host_, mine);
  Work work = {stream, ++mine[stream], std::move(what), std::move(footprint)};
  const auto conflict = [&](Work& other, bool reads, bool writes) -> std::optional<Fault> {
    const auto common =
        CommonPart((reads ? other.footprint.read : other.footprint.written).Sorted(),
                   (writes ? work.footprint.written : work.footprint.read).Sorted());
    if (!common) return std::nullopt;
    return Fault{FaultCode::kRace, work.what + (writes ? " writes [" : " reads [") +
                                       std::to_string(common->begin) + ", " +
                                       std::to_string(common->end) + "), which " + other.what +
                                       (reads ? " reads" : " writes") +
                                       " on another stream that it does not wait for"};
  };
  for (Work& other : unordered_) {
    if (other.number <= NumberIn(mine, other.stream)) continue;
    if (auto fault = conflict(other, false, true)) return fault;
    if (auto fault = conflict(other, false, false)) return fault;
    if (auto fault = conflict(other, true, true)) return fault;
  }
  unordered_.push_back(std::move(work));
  if (unordered_.size() > kMostWork) unordered_.pop_front();
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
