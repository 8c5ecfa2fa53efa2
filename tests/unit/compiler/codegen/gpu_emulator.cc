#include "tests/unit/compiler/codegen/gpu_emulator.h"

#include <dlfcn.h>
#include <setjmp.h>
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
constexpr size_t kMostArguments = 128;

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
    forward_ = block % 2 == 0;  // what comes after the last barrier, too
    std::fill(shared_.begin(), shared_.end(), kPoisonByte);
    std::fill_n(Shared() + shared_bytes_, kGuardBytes, kGuardByte);
    for (Fiber& fiber : fibers_) {
      fiber.state = State::kReady;
      fiber.has_begun = false;
    }
    current_emulator_ = this;
    while (RunReady()) ReleaseBlock();
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
  static constexpr size_t kAlignment = 128, kWarp = 32;
  enum class State : uint8_t { kReady, kAtBlock, kAtWarp, kDone };
  struct Fiber {
    jmp_buf place;  // once it has begun
    bool has_begun = false;
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
    _longjmp(all.scheduler_, 1);
  }

  void Wait(State state, unsigned mask) {
    Fiber& fiber = fibers_[current_];
    fiber.state = state;
    fiber.mask = mask;
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }

  // Until the thread waits or has returned. What comes after its beginning takes no system call.
  void GoOn(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (std::exchange(fiber.has_begun, true)) _longjmp(fiber.place, 1);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &RunThread, 0);
    setcontext(&context);
  }

  // Runs the threads of a warp as far as they go without other warps; false where none may go on.
  bool RunWarp(size_t first) {
    const size_t end = std::min(first + kWarp, fibers_.size());
    for (bool any = false;; any = true) {
      bool again = false;
      for (size_t i = first; i < end; ++i) {
        if (fibers_[i].state != State::kReady) continue;
        again = true;
        current_ = static_cast<int>(i);
        GoOn(fibers_[i]);
      }
      if (!again) return any;
      ReleaseWarp(first, end);
    }
  }

  // Warp after warp, in turn from the first and from the last one: what a warp does that should
  // wait for another shows.
  bool RunReady() {
    bool any = false;
    const size_t warps = (fibers_.size() + kWarp - 1) / kWarp;
    for (size_t i = 0; i < warps; ++i) any |= RunWarp((forward_ ? i : warps - 1 - i) * kWarp);
    forward_ = !forward_;
    return any;
  }

  void ReleaseWarp(size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      if (fibers_[i].state != State::kAtWarp) continue;
      const unsigned mask = fibers_[i].mask;
      bool complete = true;
      for (size_t lane = 0; lane < kWarp; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        complete &= first + lane < end && fibers_[first + lane].state == State::kAtWarp &&
                    fibers_[first + lane].mask == mask;
      }
      for (size_t lane = 0; complete && lane < kWarp; ++lane) {
        if (mask >> lane & 1) fibers_[first + lane].state = State::kReady;
      }
    }
  }

  // What waits for the block. Threads that have returned are not waited for.
  void ReleaseBlock() {
    const auto is_there = [](const Fiber& fiber) {
      return fiber.state == State::kAtBlock || fiber.state == State::kDone;
    };
    if (!std::all_of(fibers_.begin(), fibers_.end(), is_there)) return;
    for (Fiber& fiber : fibers_) {
      if (fiber.state == State::kAtBlock) fiber.state = State::kReady;
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
  bool forward_ = true;
  jmp_buf scheduler_;
};

thread_local Emulator* Emulator::current_emulator_ = nullptr;

constexpr absl::string_view kPrimitives = R"(
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
// As far off as an approximation may be.
static float KNeighbour(float y) {
  const float next = __builtin_bit_cast(float, __builtin_bit_cast(int, y) + 1);
  return y - y == 0 && y != 0 && next - next == 0 ? next : y;
}
static float KMachineInverse(float x) {
  const float y = 1 / x;
  return y < 0x1p-126f && y > -0x1p-126f ? y * 0.0f : KNeighbour(y);
}
static float KMachineReciprocal(float x) { return KNeighbour(1 / x); }
static float KMachineRsqrt(float x) { return KNeighbour(1 / __builtin_sqrtf(x)); }
static float KMachineMax(float a, float b) { return a != a || a > b ? a : b; }
static float KMachineMin(float a, float b) { return a != a || a < b ? a : b; }
static float KMachineShare(float a, float b, float c) {
  const float x = __builtin_fmaf(a, b, c);
  return x > 0 ? x < 1 ? x : 1 : 0;
}
static float KMachineQuotient(float a, float b) { return a / b; }
static float KMachineLog2(float x) { return __builtin_log2f(x); }
)";

// The functions of prelude_tensor.inc.h as the PTX ISA has ldmatrix, mma.m16n8k16 and cp.async.
// What is copied arrives at once in every other warp, and in the others when they wait for it.
constexpr absl::string_view kTensorPrimitives = R"(
using KOctet = unsigned __attribute__((ext_vector_type(4)));
static unsigned KSharedBase() { return 0; }
static void KMeetWarp() { KWarpSync(0xffffffffu); }
static int KOfFirstLane(int x) {
  const int lane = KThread() & 31;
  return KShuffle(0xffffffffu, x, lane);
}
template <class T>
static T KiLoad(unsigned from) {
  if (from % sizeof(T) != 0) __builtin_trap();
  T x;
  __builtin_memcpy(&x, KShared() + from, sizeof(T));
  return x;
}
template <class T>
static void KiStore(unsigned to, T x) {
  if (to % sizeof(T) != 0) __builtin_trap();
  __builtin_memcpy(KShared() + to, &x, sizeof(T));
}
static KOctet KLoadOctet(unsigned from) { return KiLoad<KOctet>(from); }
static unsigned short KLoadShort(unsigned from) { return KiLoad<unsigned short>(from); }
static unsigned KLoadWord(unsigned from) { return KiLoad<unsigned>(from); }
static void KStoreWord(unsigned to, unsigned x) { KiStore(to, x); }
static void KStoreFloats(unsigned to, float x, float y) {
  if (to % 8 != 0) __builtin_trap();
  KiStore(to, x);
  KiStore(to + 4, y);
}

// What the lanes of a warp show each other.
static unsigned kiln_words[1024][8];
static const unsigned (*KiShow(const unsigned* words, int count))[8] {
  for (int i = 0; i < count; ++i) kiln_words[KThread()][i] = words[i];
  KMeetWarp();
  return kiln_words + (KThread() & ~31);
}
static void KStoreBlocks(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  const unsigned words[4] = {a, b, c, d};
  const int lane = KThread() & 31;
  const auto all = KiShow(&to, 1);
  for (int i = 0; i < 4; ++i) KiStore(all[8 * i + lane / 4][0] + lane % 4 * 4, words[i]);
  KMeetWarp();
}
extern "C" __attribute__((weak, visibility("default"))) int kiln_conflicts;
int kiln_conflicts;
template <bool kTurned>
static KOctet KLoadMatrices(unsigned from) {
  const int lane = KThread() & 31;
  const auto all = KiShow(&from, 1);
  KOctet x;
  for (int i = 0; i < 4; ++i) {
    unsigned banks = 0;
    for (int row = 0; row < 8; ++row) {
      if (all[8 * i + row][0] % 16 != 0) __builtin_trap();
      banks |= 1u << all[8 * i + row][0] / 16 % 8;
    }
    if (banks != 0xff) kiln_conflicts = 1;
    if (kTurned) {
      unsigned pair = 0;
      for (int e = 0; e < 2; ++e) {
        const unsigned row = all[8 * i + lane % 4 * 2 + e][0];
        pair |= (unsigned)KiLoad<unsigned short>(row + lane / 4 * 2) << 16 * e;
      }
      x[i] = pair;
    } else {
      x[i] = KiLoad<unsigned>(all[8 * i + lane / 4][0] + lane % 4 * 4);
    }
  }
  KMeetWarp();
  return x;
}
template <bool kHalf>
static float KiWiden(unsigned pair, int element) {
  const unsigned bits = element == 0 ? pair & 0xffff : pair >> 16;
  if (!kHalf) return __builtin_bit_cast(float, bits << 16);
  // Its exponent and mantissa as a float's are 2^112 too small.
  const float size = __builtin_bit_cast(float, (bits & 0x7fff) << 13) * 0x1p112f;
  return bits & 0x8000 ? -size : size;
}
template <bool kHalf>
static unsigned KiNarrow(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16 & 0x8000;
  if (x != x) return 0x7fff;
  if (!kHalf) return bits + 0x7fff + (bits >> 16 & 1) >> 16;
  const float size = __builtin_fabsf(x);
  if (size >= 65520.0f) return sign | 0x7c00;
  // Subnormal numbers: a sum whose last bit is 2^-24.
  if (size < 0x1p-14f) return sign | __builtin_bit_cast(unsigned, size + 0.5f) - 0x3f000000u;
  const unsigned of_size = bits & 0x7fffffff;
  return sign | (of_size + 0xfff + (of_size >> 13 & 1) >> 13) - (112 << 10);
}
template <bool kHalf>
static unsigned KNarrowPair(float low, float high) {
  return KiNarrow<kHalf>(low) | KiNarrow<kHalf>(high) << 16;
}
template <bool kHalf>
static void KMultiplyPairs(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const int lane = KThread() & 31, row = lane / 4, column = lane % 4 * 2;
  const auto all = KiShow(words, 6);
  for (int e = 0; e < 4; ++e) {
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2, far = k / 8;
      const unsigned x = all[4 * row + pair][2 * far + e / 2];
      const unsigned y = all[4 * (column + e % 2) + pair][4 + far];
      sums[e] += KiWiden<kHalf>(x, k % 2) * KiWiden<kHalf>(y, k % 2);
    }
  }
  KMeetWarp();
}

static void KKeepPlace(float&) {}
static int KBlockAgain() { return (int)KBlock(); }
template <class T>
static T KAgain(T x) {
  return x;
}

struct KiCopy {
  unsigned to;
  const char* from;
  int bytes;
};
static void KiArrive(const KiCopy& copy) {
  char piece[16] = {};
  __builtin_memcpy(piece, copy.from, copy.bytes);
  __builtin_memcpy(KShared() + copy.to, piece, 16);
}
struct KiCopies {
  KiCopy copies[1024];
  int count, groups[16], num_groups;  // where each group ends
};
static KiCopies kiln_copies[1024];
static unsigned long KGlobalAddress(const void* p) { return (unsigned long)p; }
static void KStoreGlobal(unsigned long to, KOctet x) {
  if (to % 16 != 0) __builtin_trap();
  __builtin_memcpy((void*)to, &x, 16);
}
static void KCopyAsync(unsigned to, unsigned long from, int bytes) {
  KiCopies& mine = kiln_copies[KThread()];
  if (to % 16 != 0 || from % 16 != 0 || mine.count == 1024) __builtin_trap();
  mine.copies[mine.count++] = {to, (const char*)from, bytes};
  if (KThread() / 32 % 2 == 1) KiArrive(mine.copies[mine.count - 1]);
}
static void KCopyCommit() {
  KiCopies& mine = kiln_copies[KThread()];
  if (mine.num_groups == 16) __builtin_trap();
  mine.groups[mine.num_groups++] = mine.count;
}
template <int kGroups>
static void KCopyWait() {
  KiCopies& mine = kiln_copies[KThread()];
  const int done = mine.num_groups - kGroups;
  if (done <= 0) return;
  const int end = mine.groups[done - 1];
  for (int i = 0; i < end; ++i) {
    if (KThread() / 32 % 2 == 0) KiArrive(mine.copies[i]);
  }
  for (int i = end; i < mine.count; ++i) mine.copies[i - end] = mine.copies[i];
  mine.count -= end;
  for (int i = done; i < mine.num_groups; ++i) mine.groups[i - done] = mine.groups[i] - end;
  mine.num_groups -= done;
}
)";

}  // namespace

std::string EmulatedPrelude() {
  return absl::StrCat(kPrimitives, kTensorPrimitives);
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
  if (*static_cast<const int*>(dlsym(library, "kiln_conflicts")) != 0) {
    return absl::InternalError("lines of a matrix meet in a bank of shared memory");
  }
  return absl::OkStatus();
}

}  // namespace kiln::codegen
