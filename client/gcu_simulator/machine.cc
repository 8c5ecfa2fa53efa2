#include "client/gcu_simulator/machine.h"

#include <cstring>

#include "client/gcu_simulator/launch_run.h"
#include "client/gcu_simulator/memory.h"

namespace kiln::gcu_simulator {
namespace {

constexpr uint64_t kL2Begin = 1 << 20, kL3Begin = uint64_t{1} << 40;

}  // namespace

struct Machine::Impl {
  explicit Impl(const Profile& profile)
      : l3("L3", kL3Begin, profile.l3_bytes), l2("L2", kL2Begin, profile.l2_bytes) {}
  Memory& Of(Space space) { return space == Space::kL2 ? l2 : l3; }
  Memory l3, l2;
};

Machine::Machine(const Profile& profile)
    : profile_(profile), impl_(std::make_unique<Impl>(profile)) {}
Machine::~Machine() = default;

Space Machine::SpaceOf(uint64_t address) {
  return address < kL3Begin ? Space::kL2 : Space::kL3;
}

uint64_t Machine::Allocate(Space space, uint64_t bytes) {
  return impl_->Of(space).Allocate(bytes);
}

bool Machine::Free(Space space, uint64_t address) {
  return impl_->Of(space).Free(address);
}

std::optional<Fault> Machine::Write(Space space, uint64_t address, const void* data,
                                    uint64_t bytes) {
  if (bytes == 0) return std::nullopt;
  Memory::Place place;
  if (auto fault = impl_->Of(space).Find(address, bytes, place)) return fault;
  std::memcpy(place.data(), data, bytes);
  place.block->defined.Add(place.offset, bytes);
  return std::nullopt;
}

std::optional<Fault> Machine::Read(Space space, uint64_t address, void* data,
                                   uint64_t bytes) const {
  if (bytes == 0) return std::nullopt;
  Memory::Place place;
  if (auto fault = impl_->Of(space).Find(address, bytes, place)) return fault;
  std::memcpy(data, place.data(), bytes);  // what was never written is 0
  return std::nullopt;
}

std::optional<Fault> Machine::Move(Space to, uint64_t to_address, Space from, uint64_t from_address,
                                   uint64_t bytes) {
  if (bytes == 0) return std::nullopt;
  Memory::Place target, source;
  if (auto fault = impl_->Of(to).Find(to_address, bytes, target)) return fault;
  if (auto fault = impl_->Of(from).Find(from_address, bytes, source)) return fault;
  std::vector<uint8_t> defined(bytes);
  for (uint64_t i = 0; i < bytes; ++i)
    defined[i] = source.block->defined.Has(source.offset + i) ? 1 : 0;
  std::memmove(target.data(), source.data(), bytes);
  for (uint64_t i = 0; i < bytes; ++i) {
    defined[i] != 0 ? target.block->defined.Add(target.offset + i, 1)
                    : target.block->defined.Remove(target.offset + i, 1);
  }
  return std::nullopt;
}

uint64_t Machine::Used(Space space) const {
  return impl_->Of(space).used();
}

uint64_t Machine::Peak(Space space) const {
  return impl_->Of(space).peak();
}

void Machine::ResetPeak() {
  impl_->l3.ResetPeak();
  impl_->l2.ResetPeak();
}

std::optional<Fault> Machine::Run(const Launch& launch, bool with_spans, Report& report) {
  report = Report();
  return RunLaunch(profile_, {&impl_->l3, &impl_->l2}, launch, with_spans, report);
}

}  // namespace kiln::gcu_simulator
