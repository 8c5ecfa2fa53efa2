#include "tests/unit/compiler/codegen/window_chains.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kiln {
namespace {

using absl::StrCat;

struct Size {
  std::string text;
  int value;
};

struct Value {
  std::string name;
  Size channels;
  std::vector<Size> places;
};

struct Axis {
  int taps, stride, dilation, before, after;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  WindowChain Run() {
    const int dimensions = 1 + Pick(2);
    batch_ = {StrCat(1 + Pick(3)), 0};
    Value value{"x", Fixed(1 + Pick(5)), {}};
    for (int d = 0; d < dimensions; ++d) value.places.push_back(Fixed(9 + Pick(12)));
    if (Pick(3) == 0) {
      chain_.symbols = {value.places[0].value};
      declarations_ = StrCat("symbol s0 [8, 64] hint ", value.places[0].value, "\n");
      value.places[0].text = "s0";
    }
    Declare(value, "input(0)");
    const int kernels = 2 + Pick(4);
    for (int i = 0; i < kernels; ++i) {
      value = Pick(4) == 0 ? AddElementwise(value) : AddWindow(value);
      const bool is_output = i + 1 == kernels || Pick(6) == 0;
      Declare(value, is_output ? "output" : "temp");
      if (is_output) {
        StrAppend(&outputs_, "output @", value.name, " sizes[", SizesOf(value), "] strides[",
                  StridesOf(value), "] offset 0\n");
      }
    }
    chain_.text = StrCat("module {\n", declarations_, kernels_, outputs_, "}\n");
    return chain_;
  }

 private:
  template <typename... Parts>
  static void StrAppend(std::string* out, const Parts&... parts) {
    absl::StrAppend(out, parts...);
  }
  int Pick(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  static Size Fixed(int value) { return {StrCat(value), value}; }

  std::vector<std::string> AllSizes(const Value& value) const {
    std::vector<std::string> sizes = {batch_.text, value.channels.text};
    for (const Size& size : value.places) sizes.push_back(size.text);
    return sizes;
  }
  std::string SizesOf(const Value& value) const { return absl::StrJoin(AllSizes(value), ","); }
  std::string StridesOf(const Value& value) const {
    const std::vector<std::string> sizes = AllSizes(value);
    std::vector<std::string> strides(sizes.size(), "1");
    for (size_t i = sizes.size(); i-- > 1;)
      strides[i - 1] = StrCat(strides[i], "*(", sizes[i], ")");
    return absl::StrJoin(strides, ",");
  }
  void Declare(const Value& value, const std::string& kind) {
    StrAppend(&declarations_, "buffer @", value.name, " f32[", SizesOf(value), "] strides[",
              StridesOf(value), "] ", kind, "\n");
    values_.push_back(value);
  }

  std::string NewName() { return StrCat("v", values_.size()); }
  std::string Loops(const Value& value) const {
    std::vector<std::string> loops;
    for (const std::string& size : AllSizes(value))
      loops.push_back(StrCat("d", loops.size(), ": ", size));
    return absl::StrJoin(loops, ", ");
  }
  static std::string Point(const Value& value) {
    std::string point = "d0, d1";
    for (size_t i = 0; i < value.places.size(); ++i) StrAppend(&point, ", d", i + 2);
    return point;
  }

  // The greater of 0 and half of it, perhaps with another value of the same sizes.
  Value AddElementwise(const Value& in) {
    Value out = in;
    out.name = NewName();
    const Value* other = nullptr;
    for (const Value& value : values_) {
      if (SizesOf(value) == SizesOf(in) && value.name != in.name) other = &value;
    }
    StrAppend(&kernels_, "kernel @k", out.name, " (", Loops(out),
              ") {\n phase () {\n  %0 = load f32 @", in.name, "[", Point(in),
              "]\n  %1 = const f32 0.5\n  %2 = mul f32 %0, %1\n");
    if (other != nullptr) {
      StrAppend(&kernels_, "  %3 = load f32 @", other->name, "[", Point(in),
                "]\n  %4 = max f32 %2, %3\n");
    } else {
      StrAppend(&kernels_, "  %3 = const f32 0\n  %4 = max f32 %2, %3\n");
    }
    StrAppend(&kernels_, "  store f32 @", out.name, "[", Point(out), "], %4\n }\n}\n");
    return out;
  }

  Axis NewAxis(int size) {
    while (true) {
      const Axis axis{1 + Pick(4), 1 + Pick(3), 1 + Pick(2), Pick(3), Pick(3)};
      if (size + axis.before + axis.after > axis.dilation * (axis.taps - 1)) return axis;
    }
  }
  static Size SizeOf(const Axis& axis, const Size& in) {
    const int more = axis.before + axis.after - axis.dilation * (axis.taps - 1) - 1;
    const int value = (in.value + more) / axis.stride + 1;
    if (in.text == StrCat(in.value)) return Fixed(value);
    return {StrCat("floordiv(", in.text, " + (", more, "), ", axis.stride, ") + 1"), value};
  }

  // A convolution over all channels, one by channel, or a pooling.
  Value AddWindow(const Value& in) {
    const int kind = Pick(3);
    const bool is_pooling = kind == 2, all_channels = kind == 0;
    Value out{NewName(), all_channels ? Fixed(1 + Pick(5)) : in.channels, {}};
    std::string inner = all_channels ? StrCat("r0: ", in.channels.text) : "";
    std::string comparisons, point = all_channels ? "d0, r0" : "d0, d1", taps, sizes, mask;
    int values = 0;
    for (size_t i = 0; i < in.places.size(); ++i) {
      const Axis axis = NewAxis(in.places[i].value);
      out.places.push_back(SizeOf(axis, in.places[i]));
      const std::string tap = StrCat("r", i + (all_channels ? 1 : 0));
      StrAppend(&inner, inner.empty() ? "" : ", ", tap, ": ", axis.taps);
      const std::string at =
          StrCat(axis.stride, "*d", i + 2, " + ", axis.dilation, "*", tap, " - ", axis.before);
      StrAppend(&point, ", ", at);
      StrAppend(&taps, ", ", tap);
      StrAppend(&sizes, ",", axis.taps);
      const int v = values;
      StrAppend(&comparisons, "  %", v, " = index i64 ", at, "\n  %", v + 1, " = const i64 0\n  %",
                v + 2, " = ge bool %", v, ", %", v + 1, "\n  %", v + 3, " = index i64 ",
                in.places[i].text, "\n  %", v + 4, " = lt bool %", v, ", %", v + 3, "\n  %", v + 5,
                " = and bool %", v + 2, ", %", v + 4, "\n");
      mask = StrCat("%", v + 5);
      values += 6;
      if (i > 0) {
        StrAppend(&comparisons, "  %", values, " = and bool %", v - 1, ", %", v + 5, "\n");
        mask = StrCat("%", values++);
      }
    }
    const std::string load = StrCat("load f32 @", in.name, "[", point, "] if ", mask,
                                    is_pooling ? " else -inf" : " else 0");
    StrAppend(&kernels_, "kernel @k", out.name, all_channels ? " contraction" : "", " (",
              Loops(out), ") {\n phase (", inner, ") {\n", comparisons);
    if (is_pooling) {
      StrAppend(&kernels_, "  %40 = ", load, "\n  %50 = reduce.max f32 %40\n");
    } else {
      const std::string weight = StrCat("w", out.name.substr(1));
      const std::string channel = all_channels ? "d1, r0" : "d1, 0";
      const std::string depth = all_channels ? in.channels.text : "1";
      DeclareWeight(weight, StrCat(out.channels.text, ",", depth, sizes));
      StrAppend(&kernels_, "  %41 = load f32 @", weight, "[", channel, taps, "]\n  %42 = ", load,
                "\n  %43 = mul f32 %41, %42\n  %50 = reduce.sum f32 %43\n");
    }
    StrAppend(&kernels_, " }\n phase () {\n  store f32 @", out.name, "[", Point(out),
              "], %50\n }\n}\n");
    return out;
  }

  void DeclareWeight(const std::string& name, const std::string& sizes) {
    std::vector<int> all;
    for (const absl::string_view size : absl::StrSplit(sizes, ','))
      all.push_back(std::stoi(std::string(size)));
    std::vector<int> strides(all.size(), 1);
    for (size_t i = all.size(); i-- > 1;) strides[i - 1] = strides[i] * all[i];
    StrAppend(&declarations_, "buffer @", name, " f32[", sizes, "] strides[",
              absl::StrJoin(strides, ","), "] input(", ++inputs_, ")\n");
  }

  std::mt19937_64 random_;
  WindowChain chain_;
  Size batch_;
  std::vector<Value> values_;
  int inputs_ = 0;
  std::string declarations_, kernels_, outputs_;
};

}  // namespace

WindowChain MakeWindowChain(uint64_t seed) {
  return Generator(seed).Run();
}

}  // namespace kiln
