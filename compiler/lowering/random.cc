// Random numbers. Each random node of a graph is a stream of Philox numbers: element i of its
// result depends on the seed, the node's number among them, and i alone, so neither fusion nor
// threads change it. The seed is an argument that the client gives for each run, from torch's
// default generator: torch.manual_seed repeats a run. The numbers are not those that eager makes of
// the same seed.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

// The numbers of one node.
class Stream {
 public:
  static absl::StatusOr<Stream> Next(NodeContext& n) {
    KILN_ASSIGN_OR_RETURN(const auto seed, n.OptionalTensor(SIZE_MAX, kSeedKeyword));
    if (!seed) return n.Decline("without a seed: its numbers are the client's own");
    const bool is_one = seed->sizes.size() == 1 && seed->sizes[0].is_const(1);
    if (seed->dtype != DType::kI64 || !is_one) return n.BadGraph("a seed's type", "one i64");
    return Stream(n, *seed, n.NextRandomStream());
  }

  // That of `number` with a seed of its own.
  static absl::StatusOr<Stream> Of(NodeContext& n, View seed, int64_t number) {
    const bool is_one = seed.sizes.size() == 1 && seed.sizes[0].is_const(1);
    if (seed.dtype != DType::kI64 || !is_one) return n.BadGraph("a seed's type", "one i64");
    return Stream(n, std::move(seed), number);
  }

  // 64 bits at a place of the result; `part` numbers several of one place.
  Scalar Bits(KernelBuilder& b, const Ints& at, int64_t part = 0) const {
    IntExpr place = b.ints().Const(0);
    for (size_t d = 0; d < at.size(); ++d) {
      place = b.ints().Add(b.ints().Mul(place, sizes_[d]), at[d]);
    }
    const Scalar stream = b.ConstInt(DType::kI64, number_ + (part << 32));
    return b.Op(kPhilox, b.Load(seed_, {b.ints().Const(0)}), stream, b.Index(place));
  }

  // Uniform in [0, 1), in the arithmetic of `dtype` and with as many bits as it has.
  Scalar Uniform(KernelBuilder& b, const Ints& at, DType dtype) const {
    const int digits = dtype == DType::kF64    ? 53
                       : dtype == DType::kF32  ? 24
                       : dtype == DType::kBF16 ? 8
                                               : 11;
    return Fraction(b, Bits(b, at), digits, ComputeType(dtype));
  }

  // Uniform in (0, 1]: what a logarithm takes.
  Scalar Positive(KernelBuilder& b, Scalar bits, DType compute) const {
    const int digits = compute == DType::kF64 ? 53 : 31;
    return b.Op(kAdd, Fraction(b, bits, digits, compute), std::ldexp(1, -digits - 1));
  }

  // Box and Muller, "A note on the generation of random normal deviates", 1958.
  Scalar Normal(KernelBuilder& b, const Ints& at, DType dtype) const {
    const DType compute = ComputeType(dtype);
    const Scalar bits = Bits(b, at);
    const Scalar radius = b.Op(kSqrt, b.Op(kMul, b.Op(kLog, Positive(b, bits, compute)), -2.0));
    // Half of a turn either way.
    Scalar turn;
    if (compute == DType::kF64) {
      turn = b.Op(kSub, b.Op(kMul, Fraction(b, Bits(b, at, 1), 53, compute), 2.0), 1.0);
    } else {
      const Scalar high = b.Cast(b.Op(kShr, bits, b.ConstInt(DType::kI64, 32)), DType::kI32);
      turn = b.Op(kMul, b.Cast(high, compute), 0x1p-31);
    }
    return b.Op(kMul, radius, b.Op(kCos, b.Op(kMul, turn, std::numbers::pi)));
  }

 private:
  Stream(NodeContext& n, View seed, int64_t number)
      : sizes_(n.Result(0).sizes), seed_(std::move(seed)), number_(number) {}

  // The low `digits` bits as a fraction of 2^digits.
  static Scalar Fraction(KernelBuilder& b, Scalar bits, int digits, DType compute) {
    const int64_t mask = (int64_t{1} << digits) - 1;
    Scalar low = b.Op(kAnd, bits, b.ConstInt(DType::kI64, mask));
    if (digits < 32) low = b.Cast(low, DType::kI32);  // converts in more lanes
    return b.Op(kMul, b.Cast(low, compute), std::ldexp(1, -digits));
  }

  Ints sizes_;
  View seed_;
  int64_t number_;
};

// Result 0 is `element` of a new stream at each place.
using Element = std::function<Scalar(KernelBuilder&, const Ints&, const Stream&)>;
absl::Status Draw(NodeContext& n, const Element& element) {
  KILN_ASSIGN_OR_RETURN(const Stream stream, Stream::Next(n));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) { return element(b, at, stream); });
  return absl::OkStatus();
}

absl::Status CheckFloat(NodeContext& n) {
  return IsFloat(n.Result(0).dtype) ? absl::OkStatus() : n.Decline("of no floats");
}

absl::Status LowerRand(NodeContext& n) {
  KILN_RETURN_IF_ERROR(CheckFloat(n));
  return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
    return s.Uniform(b, at, n.Result(0).dtype);
  });
}

absl::Status LowerRandn(NodeContext& n) {
  KILN_RETURN_IF_ERROR(CheckFloat(n));
  return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
    return s.Normal(b, at, n.Result(0).dtype);
  });
}

// uniform(self, from, to)
absl::Status LowerUniform(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const double from, n.Float(1, "from", 0));
  KILN_ASSIGN_OR_RETURN(const double to, n.Float(2, "to", 1));
  KILN_RETURN_IF_ERROR(CheckFloat(n));
  if (!(from <= to)) return n.Decline("with an empty range");
  return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
    const Scalar u = s.Uniform(b, at, n.Result(0).dtype);
    return b.Op(kAdd, b.Op(kMul, u, to - from), from);
  });
}

// normal(mean, std, ...): tensors or numbers, at the given positions of the schema.
Lowering NormalFrom(size_t mean_position, size_t std_position) {
  return [=](NodeContext& n) -> absl::Status {
    KILN_RETURN_IF_ERROR(CheckFloat(n));
    const auto read = [&](size_t position, const char* name,
                          double otherwise) -> absl::StatusOr<Operand> {
      if (n.Find(position, name) == nullptr) return Operand(Number(otherwise));
      return n.TensorOrNumber(position, name);
    };
    KILN_ASSIGN_OR_RETURN(const Operand mean, read(mean_position, "mean", 0));
    KILN_ASSIGN_OR_RETURN(const Operand deviation, read(std_position, "std", 1));
    KILN_RETURN_IF_ERROR(CheckOperands(n, {mean, deviation}));
    const auto* number = std::get_if<Number>(&deviation);
    const double* fixed = number == nullptr ? nullptr : std::get_if<double>(number);
    if (fixed != nullptr && !(*fixed >= 0)) return n.Decline("with a negative deviation");
    return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
      const Scalar z = s.Normal(b, at, n.Result(0).dtype);
      const Scalar scaled = b.Op(kMul, z, LoadOperand(b, deviation, at, z.dtype));
      return b.Op(kAdd, scaled, LoadOperand(b, mean, at, z.dtype));
    });
  };
}

// exponential(self, lambd); never 0, as torch's.
absl::Status LowerExponential(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const double rate, n.Float(1, "lambd", 1));
  KILN_RETURN_IF_ERROR(CheckFloat(n));
  if (!(rate > 0)) return n.Decline("with a rate that is not positive");
  return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
    const DType compute = ComputeType(n.Result(0).dtype);
    const Scalar log = b.Op(kLog, s.Positive(b, s.Bits(b, at), compute));
    const double least = compute == DType::kF64 ? std::numeric_limits<double>::epsilon() / 2
                                                : std::numeric_limits<float>::epsilon() / 2;
    return b.Op(kMul, b.Op(kMax, b.Op(kNeg, log), b.Const(compute, least)), 1 / rate);
  });
}

// randint(low, high, ...) at the given positions of the schema; SIZE_MAX: from 0.
Lowering RandintFrom(size_t low_position, size_t high_position) {
  return [=](NodeContext& n) -> absl::Status {
    int64_t low = 0, range = 0;
    if (low_position != SIZE_MAX) {
      KILN_ASSIGN_OR_RETURN(low, n.ConstInt(low_position, "low", 0));
    }
    KILN_ASSIGN_OR_RETURN(const int64_t high, n.ConstInt(high_position, "high", 0));
    if (__builtin_sub_overflow(high, low, &range) || range < 1) {
      return n.Decline("of an empty or a very large range");
    }
    return Draw(n, [&](KernelBuilder& b, const Ints& at, const Stream& s) {
      const auto number = [&](int64_t value) { return b.ConstInt(DType::kI64, value); };
      const Scalar bits = s.Bits(b, at);
      // Lemire, "Fast random integer generation in an interval", 2019, where a word is enough.
      const Scalar drawn =
          range <= INT32_MAX
              ? b.Op(kShr, b.Op(kMul, b.Op(kAnd, bits, number(0xffffffff)), number(range)),
                     number(32))
              : b.Op(kMod, b.Op(kAnd, bits, number(INT64_MAX)), number(range));
      return b.Op(kAdd, drawn, number(low));
    });
  };
}

// randperm(n): the numbers below n in the order of random bits above them.
absl::Status LowerRandperm(NodeContext& n) {
  const Ints& sizes = n.Result(0).sizes;
  if (sizes.size() != 1) return n.BadGraph("the result's rank", "1");
  if (!IsIntegral(n.Result(0).dtype)) return n.Decline("of no integers");
  KILN_ASSIGN_OR_RETURN(const Stream stream, Stream::Next(n));
  int digits = 32;  // enough for a symbolic size
  if (sizes[0].is_const()) digits = std::bit_width(static_cast<uint64_t>(sizes[0].value()));
  if (digits > 32) return n.Decline("of very many numbers");
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.StartPhase(sizes);
  const Scalar number = b.ConstInt(DType::kI64, (int64_t{1} << digits) - 1);
  const Scalar high = b.And(stream.Bits(b, at), b.Op(kNot, number));
  const Scalar key = b.Op(kOr, high, b.Index(at[0]));
  const bool is_one = sizes[0].is_const(1);
  b.Store(out, at, b.And(is_one ? key : b.Sort(key), number));
  b.Finish(is_one ? ir::Schedule::kLoops : ir::Schedule::kSorting);
  n.SetResult(0, out);
  return absl::OkStatus();
}

// Whether it happens, with probability `p`.
Scalar Happens(KernelBuilder& b, const Ints& at, const Stream& s, const Operand& p) {
  const auto* view = std::get_if<View>(&p);
  const DType type = view != nullptr && view->dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  return b.Op(kLt, s.Uniform(b, at, type), LoadOperand(b, p, at, type));
}

// bernoulli, with the probability at `position` of the schema.
Lowering BernoulliFrom(size_t position, const char* name) {
  return [=](NodeContext& n) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(const Operand p, n.TensorOrNumber(position, name));
    KILN_RETURN_IF_ERROR(CheckOperands(n, {p}));
    const auto* number = std::get_if<Number>(&p);
    const double* fixed = number == nullptr ? nullptr : std::get_if<double>(number);
    if (fixed != nullptr && !(*fixed >= 0 && *fixed <= 1)) {
      return n.Decline("with a probability outside of 0 to 1");
    }
    return Draw(
        n, [&](KernelBuilder& b, const Ints& at, const Stream& s) { return Happens(b, at, s, p); });
  };
}

// native_dropout(input, p, train) -> the scaled elements that stay, which those are
absl::Status LowerDropout(NodeContext& n) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(const View x, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const double p, n.Float(1, "p", 0.5));
  KILN_ASSIGN_OR_RETURN(const bool train, n.Bool(2, "train", true));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, x.sizes, "the result"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(1).sizes, x.sizes, "the mask"));
  KILN_RETURN_IF_ERROR(CheckFloat(n));
  if (!(p >= 0 && p <= 1)) return n.Decline("with a probability outside of 0 to 1");
  std::optional<Stream> stream;
  if (train) {
    KILN_ASSIGN_OR_RETURN(stream, Stream::Next(n));
  }
  const View mask = n.NewResult(1);
  if (train) {
    n.Pointwise(mask, [&](KernelBuilder& b, const Ints& at) {
      return Happens(b, at, *stream, Number(1 - p));
    });
  } else {
    n.Pointwise(mask, [](KernelBuilder& b, const Ints&) { return b.ConstInt(DType::kBool, 1); });
  }
  n.SetResult(1, mask);
  const double scale = !train ? 1 : p == 1 ? 0 : 1 / (1 - p);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar value = b.Widen(b.Load(x, at));
    const Scalar stays = b.Cast(b.Load(mask, at), value.dtype);
    return b.Op(kMul, b.Op(kMul, value, stays), scale);
  });
  return absl::OkStatus();
}

// kiln.keep(like, seed, stream, p) -> which elements a dropout of `p` keeps of `like`: the same
// wherever it is computed. client/python/kiln_torch/recompute.py makes such calls.
absl::Status LowerKeep(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View like, n.Tensor(0, "like"));
  KILN_ASSIGN_OR_RETURN(const View seed, n.Tensor(1, "seed"));
  KILN_ASSIGN_OR_RETURN(const int64_t number, n.ConstInt(2, "stream", 0));
  KILN_ASSIGN_OR_RETURN(const double p, n.Float(3, "p", 0));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, like.sizes, "the result"));
  if (n.Result(0).dtype != DType::kBool) return n.BadGraph("its result's type", "bool");
  if (!(p >= 0 && p <= 1)) return n.Decline("with a probability outside of 0 to 1");
  KILN_ASSIGN_OR_RETURN(const Stream stream, Stream::Of(n, seed, number));
  n.PointwiseResult(
      0, [&](KernelBuilder& b, const Ints& at) { return Happens(b, at, stream, Number(1 - p)); });
  return absl::OkStatus();
}

}  // namespace

void RegisterRandom(Registry& registry) {
  registry["rand.default"] = registry["rand_like.default"] = LowerRand;
  registry["randn.default"] = registry["randn_like.default"] = LowerRandn;
  registry["randint.default"] = RandintFrom(SIZE_MAX, 0);
  registry["randint.low"] = RandintFrom(0, 1);
  registry["randint_like.default"] = RandintFrom(SIZE_MAX, 1);
  registry["randint_like.low_dtype"] = RandintFrom(1, 2);
  registry["randperm.default"] = LowerRandperm;
  registry["uniform.default"] = LowerUniform;
  registry["normal_functional.default"] = NormalFrom(1, 2);
  for (const char* op : {"normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor",
                         "normal.float_float"}) {
    registry[op] = NormalFrom(0, 1);
  }
  registry["exponential.default"] = LowerExponential;
  registry["bernoulli.default"] = BernoulliFrom(0, "self");
  registry["bernoulli.p"] = registry["bernoulli.Tensor"] = BernoulliFrom(1, "p");
  registry["native_dropout.default"] = LowerDropout;
  registry["kiln.keep.default"] = LowerKeep;
}

}  // namespace kiln::lowering
