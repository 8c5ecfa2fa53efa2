// What the compiler asks of a target: a schedule for a kernel, source text for that, an object for
// the source, and what a client loads for objects. targets.h is the list of targets,
// null/README.md says how to add one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/tree.h"
#include "proto/base/digest.h"

namespace kiln::codegen {

// A launch over blocks of threads.
struct EmittedGrid {
  std::vector<ir::IntExpr> blocks;   // 1 to 3 of them: x, y, z
  std::vector<ir::IntExpr> threads;  // of a block; 1 to 3 of them
  ir::IntExpr shared_bytes;          // of dynamic shared memory, for each block
};

// A function that kernels call and that depends on few choices of theirs: an object of its own,
// which other kernels and models share.
struct Routine {
  std::string name;    // for people; of equal sources equal
  std::string source;  // after the kernel's prelude
};

// A matrix that a kernel reads by boxes, as kiln.v1.KernelInterface.TensorMap: what is contiguous
// first. Its buffer is one of EmittedKernel::buffers.
struct EmittedTensorMap {
  ir::BufferId buffer = -1;
  ir::IntExpr offset;
  std::vector<ir::IntExpr> sizes, strides;
  std::vector<int> box;
};

struct EmittedKernel {
  // What the target puts before the source when it compiles it, and before those of its routines:
  // for people to read. It lives as long as the process.
  absl::string_view prelude;
  // The source apart from the symbol's name: it contains kSymbolPlaceholder wherever the kernel's
  // own name stands, so that equal kernels have equal text.
  std::string source;
  std::vector<Routine> routines;      // to be linked with the kernel
  std::vector<ir::BufferId> buffers;  // arguments, in order
  std::vector<int> symbols;           // ids of the IntContext's symbols passed after them, in order
  // What symbols stand for that only this kernel has: its text is that for graphs of other sizes,
  // too.
  ir::IntContext::VarMap stands_for;
  // What the interface states of buffers where that is not their size in the module.
  absl::flat_hash_map<ir::BufferId, ir::IntExpr> buffer_bytes;
  ir::IntExpr scratch_bytes;                  // for the launch
  ir::IntExpr thread_scratch_bytes;           // for each thread
  EmittedGrid grid;                           // no blocks: called once
  std::vector<EmittedTensorMap> tensor_maps;  // its last parameters
  bool waits = false;                         // as in kiln.v1.KernelInterface
  std::vector<ir::BufferId> read_early;       // the same
  std::vector<ir::BufferId> zeroed;           // the same
  int binary = 0;                             // Binary::number of what Link makes of it
};
inline constexpr absl::string_view kSymbolPlaceholder = "KILN_KERNEL_SYMBOL";

// Of buffers of one kernel, which those of an equal one are.
using BufferMap = absl::flat_hash_map<ir::BufferId, ir::BufferId>;

// A kernel to compile.
struct KernelJob {
  absl::string_view source;    // what was emitted and the statement of its interface
  bool has_prelude = true;     // the target's own comes before the source
  int optimization_level = 3;  // 1 to 3
  bool fast_math = false;
  bool want_assembly = false;
};

struct CompiledKernel {
  std::string object;
  std::string assembly;  // text; empty where none is wanted, or the target has none
};

// As kiln.v1.Binary. Number 0 is the artifact's shared object.
struct Binary {
  int number = 0;
  BinaryKind kind = BinaryKind::kSharedObject;
  std::string data;
};

// A target for one device. Thread-compatible.
class Target {
 public:
  virtual ~Target() = default;
  virtual absl::string_view name() const = 0;
  // Gives kernels of the verified module another form where they run better in it there: puts them
  // into repeats, to run tile by tile, or cuts reductions into parts.
  virtual void Tile(ir::Module&) const {}
  // Whether a launch costs as much as a small kernel.
  virtual bool HasCostlyLaunches() const { return false; }
  // Whether kernels of windows run best where what they read and write lies by channels, not by
  // places: fusion::FuseOptions::lanes_beside_windows.
  virtual bool HasLanesBesideWindows() const { return false; }
  // Whether contractions read their operands as they lie in memory, and nothing that is computed.
  virtual bool TakesPlainOperands() const { return false; }
  // lowering::LoweringOptions::contracts_few_rows.
  virtual bool ContractsFewRows() const { return false; }
  // lowering::LoweringOptions::checks_divisors.
  virtual bool ChecksDivisors() const { return false; }
  // Of a contraction there that widens what it reads: whether it runs as it is.
  virtual bool TakesOperands(ir::Module&, const ir::Kernel&) const { return false; }
  // Whether a kernel that one operator became is better left to a library that the client calls.
  // `goes_on`: what reads the operator's result computes with its elements one by one, and might
  // become one kernel with it.
  virtual bool LeavesToLibraries(ir::Module&, const ir::Kernel&, bool /*goes_on*/) const {
    return false;
  }
  // Whether all kernels that one operator became run there as one launch, and faster so than by a
  // library where one could run the operator, `by_libraries`: Schedule takes a repeat of them,
  // without steps.
  virtual bool TakesTogether(ir::Module&, const std::vector<const ir::Kernel*>&,
                             bool /*by_libraries*/) const {
    return false;
  }
  // Whether a copy of what a scatter stores to is left to a library, the scatter with it.
  virtual bool LeavesCopiesToLibraries() const { return false; }
  // Whether an attention that it does not take together is.
  virtual bool LeavesAttentionToLibraries() const { return false; }
  // How a kernel of the verified module runs there, or a repeat that Tile made. UNIMPLEMENTED for a
  // type that the target lacks.
  absl::StatusOr<schedule::Tree> Schedule(ir::Module& module, const ir::Operation& operation) const;
  // For a kernel that reads something fixed (compiler/ir/fixed_values.h) and would lay it out anew
  // in every run: a kernel that does so once. It stores the module's new last buffer, a prepared
  // one of at most `most_bytes`, and of at most `spare_bytes` more than what it lays out; `kernel`
  // reads that instead. Nothing where there is no such thing.
  virtual absl::StatusOr<std::optional<ir::Kernel>> PackOperand(ir::Module& module,
                                                                ir::Kernel& kernel,
                                                                int64_t most_bytes,
                                                                int64_t spare_bytes) const = 0;
  // REQUIRES: a verified tree of this target.
  virtual absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                              const schedule::Tree& tree) const = 0;
  // How many buffers a launch of several equal kernels may have in all; 0: there are no such
  // launches.
  virtual int MostBuffersTogether() const { return 0; }
  // One kernel that does what that of `tree` does with its own buffers, for each of `copies` with
  // the buffers that stand there for those, in any order and at once: its buffers are those of the
  // first copy, then those of the next. Nothing where the target has no such kernel.
  virtual absl::StatusOr<std::optional<EmittedKernel>> PrintTogether(
      ir::Module&, const schedule::Tree&, absl::Span<const BufferMap> /*copies*/) const {
    return std::nullopt;
  }
  // Schedule, then Print.
  absl::StatusOr<EmittedKernel> Emit(ir::Module& module, const ir::Operation& operation) const;
  // An SVG document of what the device's memories hold while the module runs; empty for targets
  // without one.
  virtual std::string Picture(ir::Module&) const { return ""; }
  // Whether a kernel has to name all sizes that it is passed: where it finds what comes behind them
  // follows from their number.
  virtual bool NamesAllSizes() const { return false; }
  // Text to append to a kernel's source that states `interface`, one line of
  // kiln.v1.KernelInterface, where a client finds it in what was linked: in EmittedKernel::binary.
  virtual std::string InterfaceText(absl::string_view interface, int binary) const = 0;

  // The key of Compile(job)'s answer: of all that the answer depends on and, so that other clients
  // and models find it, of nothing else. Compiles nothing, and takes hostile sources: the server
  // itself calls it.
  virtual Digest KeyOf(const KernelJob& job) const = 0;
  // INTERNAL with the reason for source that does not compile (it is our own).
  virtual absl::StatusOr<CompiledKernel> Compile(const KernelJob& job) const = 0;
  // Does beforehand what every Compile begins with that has the options of `like`, for this process
  // and ones forked from it. Reads no source, and of the device only architecture and features.
  virtual absl::Status PrepareToCompile(const KernelJob& like) const = 0;
  // A small kernel, for a process to compile before its first one.
  virtual absl::string_view SampleSource() const = 0;
  // Numbers are from 0 on; at least one has each number that EmittedKernel::binary had.
  virtual absl::StatusOr<std::vector<Binary>> Link(absl::Span<const std::string> objects) const = 0;

  // The same of machine code that an assembler made of the objects, one for each; nothing for
  // targets without one.
  virtual absl::StatusOr<std::vector<Binary>> LinkAssembled(absl::Span<const std::string>,
                                                            absl::Span<const std::string>) const {
    return std::vector<Binary>();
  }

 private:
  virtual absl::StatusOr<schedule::Tree> ScheduleKernel(ir::Module& module,
                                                        const ir::Kernel& kernel) const = 0;
  // For targets that tile.
  virtual absl::StatusOr<schedule::Tree> ScheduleRepeat(ir::Module& module,
                                                        const ir::Repeat& repeat) const;
};

// What of a target no device changes.
struct TargetKind {
  absl::string_view name;  // as proto/base/target_name.h has it
  // Of its own sources and its toolchain's versions. With the hash of the sources that all targets
  // share it is in the key of every artifact for the target, and of no other.
  std::string build;
  std::string toolchain;  // for people; empty where there is none
  // INVALID_ARGUMENT for a device that is none of the target's.
  absl::StatusOr<std::unique_ptr<Target>> (*make)(DeviceInfo device);
  // Called in a process that was just forked and goes on to compile. REQUIRES: one thread.
  void (*after_fork)();
  // A small kernel's source, which needs no prelude, and a device to compile it for: workers try it
  // at their start.
  DeviceInfo sample_device;
  absl::string_view sample_source;
};

}  // namespace kiln::codegen
