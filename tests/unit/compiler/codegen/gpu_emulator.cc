#include "tests/unit/compiler/codegen/gpu_emulator.h"

#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln::codegen {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kGuardBytes = 256;
constexpr char kGuardByte = 0x5a, kPoisonByte = 0x7f;
constexpr size_t kMostArguments = 64;

// As EmulatedPrelude() declares it.
struct Primitives {
  int (*thread)();
  long (*block)();
  char* (*shared)();
  void (*block_sync)();
  void (*warp_sync)(unsigned mask);
  int (*shuffle)(unsigned mask, int x, int other);
};

// One block at a time.
class Emulator {
 public:
  Emulator(void* entry, const std::vector<int64_t>& arguments, int64_t threads, int64_t shared)
      : entry_(entry), fibers_(threads), shared_bytes_(shared) {
    std::copy(arguments.begin(), arguments.end(), arguments_.begin());
    shared_.resize(shared_bytes_ + kGuardBytes + kAlignment);
    for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<char[]>(kStackBytes);
  }

  absl::Status RunBlock(int64_t block) {
    block_ = block;
    std::fill(shared_.begin(), shared_.end(), kPoisonByte);
    std::fill_n(Shared() + shared_bytes_, kGuardBytes, kGuardByte);
    for (Fiber& fiber : fibers_) {
      fiber.state = State::kReady;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &RunThread, 0);
    }
    current_emulator_ = this;
    while (RunReady()) Release();
    const auto is_done = [](const Fiber& fiber) { return fiber.state == State::kDone; };
    if (!std::all_of(fibers_.begin(), fibers_.end(), is_done)) {
      return absl::InternalError("threads of a block wait for others that never come");
    }
    const char* const after = Shared() + shared_bytes_;
    if (!std::all_of(after, after + kGuardBytes, [](char c) { return c == kGuardByte; })) {
      return absl::InternalError("a kernel wrote past its shared memory");
    }
    return absl::OkStatus();
  }

  static Primitives Functions() {
    return {
        .thread = [] { return current_emulator_->current_; },
        .block = [] { return static_cast<long>(current_emulator_->block_); },
        .shared = [] { return current_emulator_->Shared(); },
        .block_sync = [] { current_emulator_->Wait(State::kAtBlock, 0); },
        .warp_sync = [](unsigned mask) { current_emulator_->Wait(State::kAtWarp, mask); },
        .shuffle =
            [](unsigned mask, int x, int other) {
              Emulator& all = *current_emulator_;
              Fiber& mine = all.fibers_[all.current_];
              mine.value = x;
              const int from = all.current_ ^ other;
              all.Wait(State::kAtWarp, mask);
              const int value = all.fibers_[from].value;
              all.Wait(State::kAtWarp, mask);  // nobody has a new value before all have read
              return value;
            },
    };
  }

 private:
  static constexpr size_t kAlignment = 128;
  enum class State : uint8_t { kReady, kAtBlock, kAtWarp, kDone };
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state = State::kDone;
    unsigned mask = 0;  // at kAtWarp
    int value = 0;
  };

  char* Shared() {
    const auto address = reinterpret_cast<uintptr_t>(shared_.data());
    return shared_.data() + (kAlignment - address % kAlignment) % kAlignment;
  }

  static void RunThread() {
    Emulator& all = *current_emulator_;
    const std::array<int64_t, kMostArguments>& a = all.arguments_;
    // More than the kernel takes: the others lie where it does not look.
    const auto call = [&]<size_t... kI>(std::index_sequence<kI...>) {
      using Entry = void (*)(decltype(static_cast<int64_t>(kI))...);
      reinterpret_cast<Entry>(all.entry_)(a[kI]...);
    };
    call(std::make_index_sequence<kMostArguments>());
    all.fibers_[all.current_].state = State::kDone;
  }

  void Wait(State state, unsigned mask) {
    Fiber& fiber = fibers_[current_];
    fiber.state = state;
    fiber.mask = mask;
    swapcontext(&fiber.context, &scheduler_);
  }

  // Runs each thread that may go on as far as it goes; false where there was none.
  bool RunReady() {
    bool any = false;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].state != State::kReady) continue;
      any = true;
      current_ = static_cast<int>(i);
      swapcontext(&scheduler_, &fibers_[i].context);
    }
    return any;
  }

  void Release() {
    const auto waits = [&](size_t i, State state, unsigned mask) {
      return fibers_[i].state == state && fibers_[i].mask == mask;
    };
    // Threads that have returned are not waited for.
    const bool all_at_block = std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& fiber) {
      return fiber.state == State::kAtBlock || fiber.state == State::kDone;
    });
    for (size_t i = 0; i < fibers_.size(); ++i) {
      if (all_at_block && fibers_[i].state == State::kAtBlock) fibers_[i].state = State::kReady;
      if (fibers_[i].state != State::kAtWarp) continue;
      const unsigned mask = fibers_[i].mask;
      const size_t warp = i / 32 * 32;
      bool complete = true;
      for (size_t lane = 0; lane < 32; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        complete &= warp + lane < fibers_.size() && waits(warp + lane, State::kAtWarp, mask);
      }
      for (size_t lane = 0; complete && lane < 32; ++lane) {
        if (mask >> lane & 1) fibers_[warp + lane].state = State::kReady;
      }
    }
  }

  static thread_local Emulator* current_emulator_;

  void* const entry_;
  std::array<int64_t, kMostArguments> arguments_{};
  std::vector<Fiber> fibers_;
  const int64_t shared_bytes_;
  std::vector<char> shared_;
  int64_t block_ = 0;
  int current_ = 0;
  ucontext_t scheduler_;
};

thread_local Emulator* Emulator::current_emulator_ = nullptr;

}  // namespace

std::string EmulatedPrelude() {
  return R"(
struct KPrimitives {
  int (*thread)();
  long (*block)();
  char* (*shared)();
  void (*block_sync)();
  void (*warp_sync)(unsigned mask);
  int (*shuffle)(unsigned mask, int x, int other);
};
extern "C" __attribute__((weak, visibility("default"))) KPrimitives kiln_emulated;
KPrimitives kiln_emulated;
#define KILN_KERNEL __attribute__((visibility("default")))
static int KThread() { return kiln_emulated.thread(); }
static long KBlock() { return kiln_emulated.block(); }
static char* KShared() { return kiln_emulated.shared(); }
static void KLetNextBegin() {}
static void KWaitForPrevious() {}
static void KBlockSync() { kiln_emulated.block_sync(); }
static void KWarpSync(unsigned mask) { kiln_emulated.warp_sync(mask); }
static int KShuffle(unsigned mask, int x, int other) { return kiln_emulated.shuffle(mask, x, other); }
static float KMachineExp2(float x) {
  const float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
static float KMachineInverse(float x) {
  const float y = 1 / x;
  return y < 0x1p-126f && y > -0x1p-126f ? 0.0f : y;
}
)";
}

absl::Status LaunchEmulated(void* library, void* entry, const std::vector<int64_t>& arguments,
                            int64_t blocks, int64_t threads, int64_t shared_bytes) {
  auto* const primitives = static_cast<Primitives*>(dlsym(library, "kiln_emulated"));
  if (primitives == nullptr) return absl::InternalError("the kernel was not made to be emulated");
  if (arguments.size() > kMostArguments) return absl::UnimplementedError("too many arguments");
  *primitives = Emulator::Functions();
  Emulator emulator(entry, arguments, threads, shared_bytes);
  for (int64_t block = 0; block < blocks; ++block) {
    if (absl::Status status = emulator.RunBlock(block); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kiln::codegen
