#include "proto/base/key.h"
#include "proto/base/key_description.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/key_description.pb.h"

namespace kiln {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;

// Fields that must not count, by full name.
const std::set<std::string> kIgnored = {
    "kiln.v1.Graph.name",        "kiln.v1.Node.name",           "kiln.v1.Node.location",
    "kiln.v1.Input.name",        "kiln.v1.Input.module_names",  "kiln.v1.Symbol.name",
    "kiln.v1.Constant.name",     "kiln.v1.Device.index",        "kiln.v1.Device.model_name",
    "kiln.v1.Device.processors", "kiln.v1.Device.memory_bytes", "kiln.v1.Device.driver_version",
};

// Every field of every message stands here at least once: EveryFieldIsSet checks it.
constexpr char kGraph[] = R"pb(
  format_version: 1
  name: "g"
  deterministic: true
  symbols { name: "s0" min: 2 max: 100 hint: 7 }
  inputs {
    name: "x"
    module_names: "encoder.weight"
    role: ROLE_USER
    type {
      tensor {
        dtype: DTYPE_FLOAT32
        sizes {
          expr {
            kind: KIND_MUL
            operands { kind: KIND_SYMBOL symbol: 0 }
            operands { kind: KIND_CONSTANT constant: 3 }
          }
        }
        strides { value: 1 }
        storage_offset { value: 4 }
      }
    }
  }
  inputs {
    name: "n"
    role: ROLE_SYMBOL
    type { sym_int { expr { kind: KIND_SYMBOL symbol: 0 } } }
  }
  constants {
    name: "c"
    type { tensor_placeholder: 0 }
    data: "abcd"
  }
  nodes {
    name: "add"
    op: "aten.add.Tensor"
    location: "model.py:3 in forward"
    args { value: 1 }
    args { int: 5 }
    args { float: 0.5 }
    args { bool: true }
    args { string: "tanh" }
    args { dtype: DTYPE_FLOAT32 }
    args { sym_int { value: 6 } }
    args { list { items { int: 1 } } }
    args { none {} }
    args { complex { real: 1 imag: -2 } }
    kwargs {
      name: "alpha"
      value { int: 2 }
    }
    kwargs {
      name: "beta"
      value { int: 3 }
    }
    results {
      tensor {
        dtype: DTYPE_INT64
        sizes { value: 2 }
        strides { value: 1 }
      }
    }
  }
  outputs { value: 3 }
  outputs { sym_int { value: 9 } }
  outputs { none {} }
  mutations { input: 1 value: 3 }
)pb";

v1::Graph SampleGraph() {
  std::string text = kGraph;
  const std::string placeholder = "type { tensor_placeholder: 0 }";
  text.replace(text.find(placeholder), placeholder.size(),
               "type { dtype: DTYPE_UINT8 sizes { value: 4 } strides { value: 1 } }");
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph));
  return graph;
}

v1::Device SampleDevice() {
  v1::Device device;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(target: TARGET_CPP
           arch: "znver4"
           features: "avx2"
           features: "avx512f"
           l1_bytes: 1
           l2_bytes: 2
           l3_bytes: 3
           memory_bytes: 4
           processors: 5
           libraries: "torch"
           libraries: "other"
           index: 6
           model_name: "CPU"
           memory_spaces { kind: KIND_SHARED bytes: 7 bytes_per_second: 8 }
           memory_spaces { kind: KIND_L1 bytes: 9 bytes_per_second: 10 }
           compute_units: 11
           registers: 12
           vector_bits: 13
           clock_mhz: 14
           binary_formats { kind: BINARY_KIND_PTX version: 84 }
           binary_formats { kind: BINARY_KIND_CUBIN version: 90 }
           driver_version: "550.54")pb",
      &device));
  return device;
}

v1::CompileOptions SampleOptions() {
  v1::CompileOptions options;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(optimization_level: 2
           disable_fusion: true
           fast_math: true
           prepare_memory: 4096
           autotune: true
           disabled_passes: "inline"
           disabled_passes: "merge"
           debug: true)pb",
      &options));
  return options;
}

Digest Key(const v1::Graph& graph, const v1::Device& device, const v1::CompileOptions& options) {
  return ArtifactKey(graph, device, options, "build 1");
}

// Changes one scalar in place; `index` is -1 for a singular field.
void Flip(Message& message, const FieldDescriptor* field, int index) {
  const Reflection& r = *message.GetReflection();
  auto apply = [&](auto get, auto get_repeated, auto set, auto set_repeated, auto change) {
    if (index < 0) {
      (r.*set)(&message, field, change((r.*get)(message, field)));
    } else {
      (r.*set_repeated)(&message, field, index, change((r.*get_repeated)(message, field, index)));
    }
  };
  auto add_one = [](auto v) { return static_cast<decltype(v)>(v + 1); };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      apply(&Reflection::GetInt32, &Reflection::GetRepeatedInt32, &Reflection::SetInt32,
            &Reflection::SetRepeatedInt32, add_one);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      apply(&Reflection::GetInt64, &Reflection::GetRepeatedInt64, &Reflection::SetInt64,
            &Reflection::SetRepeatedInt64, add_one);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      apply(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32, &Reflection::SetUInt32,
            &Reflection::SetRepeatedUInt32, add_one);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      apply(&Reflection::GetDouble, &Reflection::GetRepeatedDouble, &Reflection::SetDouble,
            &Reflection::SetRepeatedDouble, add_one);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      apply(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue, &Reflection::SetEnumValue,
            &Reflection::SetRepeatedEnumValue, add_one);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      apply(&Reflection::GetBool, &Reflection::GetRepeatedBool, &Reflection::SetBool,
            &Reflection::SetRepeatedBool, [](bool v) { return !v; });
      break;
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string old =
          index < 0 ? r.GetString(message, field) : r.GetRepeatedString(message, field, index);
      if (index < 0) {
        r.SetString(&message, field, old + "x");
      } else {
        r.SetRepeatedString(&message, field, index, old + "x");
      }
      break;
    }
    default:
      FAIL() << "no rule to change " << field->full_name();
  }
}

// Calls `visit(field, flip)` for each scalar below `message`; `flip()` changes it.
void ForEachScalar(
    Message& message,
    const std::function<void(const FieldDescriptor*, const std::function<void()>&)>& visit) {
  const Reflection& r = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? r.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ForEachScalar(field->is_repeated() ? *r.MutableRepeatedMessage(&message, field, i)
                                           : *r.MutableMessage(&message, field),
                      visit);
      } else {
        const int index = field->is_repeated() ? i : -1;
        visit(field, [&message, field, index] { Flip(message, field, index); });
      }
    }
  }
}

// Flips each scalar of `original`, one at a time, and compares the keys that `key` gives.
template <typename M>
void ExpectEveryFieldCounts(const M& original, const std::function<Digest(const M&)>& key) {
  int scalars = 0;
  M counting = original;
  ForEachScalar(counting, [&](const FieldDescriptor*, const auto&) { ++scalars; });
  ASSERT_GT(scalars, 0);
  for (int target = 0; target < scalars; ++target) {
    M changed = original;
    int at = 0;
    const FieldDescriptor* flipped = nullptr;
    ForEachScalar(changed, [&](const FieldDescriptor* field, const std::function<void()>& flip) {
      if (at++ == target) {
        flip();
        flipped = field;
      }
    });
    ASSERT_NE(flipped, nullptr);
    if (kIgnored.count(flipped->full_name()) > 0) {
      EXPECT_EQ(key(changed), key(original)) << flipped->full_name() << " counts";
    } else {
      EXPECT_NE(key(changed), key(original)) << flipped->full_name() << " does not count";
    }
  }
}

void CollectMessageTypes(const google::protobuf::Descriptor* type,
                         std::set<const google::protobuf::Descriptor*>& out) {
  if (!out.insert(type).second) return;
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->message_type() != nullptr) {
      CollectMessageTypes(type->field(i)->message_type(), out);
    }
  }
}

void CollectSetFields(const Message& message, std::set<std::string>& out) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    out.insert(field->full_name());
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const Reflection& r = *message.GetReflection();
    const int count = field->is_repeated() ? r.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      CollectSetFields(field->is_repeated() ? r.GetRepeatedMessage(message, field, i)
                                            : r.GetMessage(message, field),
                       out);
    }
  }
}

// A field that the samples lack would not be tested: a new field has to be added to them.
void ExpectEveryFieldIsSet(const Message& sample) {
  std::set<const google::protobuf::Descriptor*> types;
  CollectMessageTypes(sample.GetDescriptor(), types);
  std::set<std::string> set_fields;
  CollectSetFields(sample, set_fields);
  for (const auto* type : types) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      // A presence of an empty message inside a oneof counts as the oneof's case.
      if (field->full_name() == "kiln.v1.SymExpr.symbol") continue;  // 0 is the sample's value
      EXPECT_EQ(set_fields.count(field->full_name()), 1u) << field->full_name();
    }
  }
}

TEST(KeyTest, TheSamplesSetEveryField) {
  ExpectEveryFieldIsSet(SampleGraph());
  ExpectEveryFieldIsSet(SampleDevice());
  ExpectEveryFieldIsSet(SampleOptions());
}

TEST(KeyTest, EveryFieldOfTheGraphCountsButNamesAndLocations) {
  ExpectEveryFieldCounts<v1::Graph>(SampleGraph(), [](const v1::Graph& graph) {
    return Key(graph, SampleDevice(), SampleOptions());
  });
}

TEST(KeyTest, EveryFieldOfTheDeviceCountsButWhatNoCompileReads) {
  ExpectEveryFieldCounts<v1::Device>(SampleDevice(), [](const v1::Device& device) {
    return Key(SampleGraph(), device, SampleOptions());
  });
}

// What a key was before devices had the fields behind model_name: entries of then are still found.
TEST(KeyTest, ADeviceWithoutWhatOthersSayHasItsKeyOfBefore) {
  v1::Device device;
  device.set_target(v1::TARGET_CPP);
  device.set_arch("znver4");
  device.add_features("avx2");
  device.set_l1_bytes(32 << 10);
  device.add_libraries("torch");
  Hasher h;
  h.Str("kiln device").Int(2).Int(v1::TARGET_CPP).Str("znver4").Int(1).Str("avx2");
  h.Int(32 << 10).Int(0).Int(0).Int(1).Str("torch");
  EXPECT_EQ(DeviceFingerprint(device), h.Finish());
}

TEST(KeyTest, TheGlobalMemorysSpeedCountsAndItsSizeDoesNot) {
  auto key = [](int64_t bytes, int64_t bytes_per_second) {
    v1::Device device = SampleDevice();
    v1::MemorySpace& space = *device.add_memory_spaces();
    space.set_kind(v1::MemorySpace::KIND_GLOBAL);
    space.set_bytes(bytes);
    space.set_bytes_per_second(bytes_per_second);
    return DeviceFingerprint(device);
  };
  EXPECT_EQ(key(80, 3), key(79, 3));
  EXPECT_NE(key(80, 3), key(80, 4));
}

TEST(KeyTest, EveryOptionCounts) {
  ExpectEveryFieldCounts<v1::CompileOptions>(SampleOptions(), [](const auto& options) {
    return Key(SampleGraph(), SampleDevice(), options);
  });
}

TEST(KeyTest, DescriptionsDifferWhereKeysDo) {
  auto describe = [](const v1::Graph& graph, const v1::Device& device,
                     const v1::CompileOptions& options) {
    v1::KeyDescription description = DescribeKey(graph, device, options, "build 1");
    description.clear_graph_name();
    return Sha256(description.SerializeAsString());
  };
  ExpectEveryFieldCounts<v1::Graph>(SampleGraph(), [&](const v1::Graph& graph) {
    return describe(graph, SampleDevice(), SampleOptions());
  });
  ExpectEveryFieldCounts<v1::Device>(SampleDevice(), [&](const v1::Device& device) {
    return describe(SampleGraph(), device, SampleOptions());
  });
  ExpectEveryFieldCounts<v1::CompileOptions>(SampleOptions(), [&](const auto& options) {
    return describe(SampleGraph(), SampleDevice(), options);
  });
}

TEST(KeyTest, TheCompilerBuildCounts) {
  EXPECT_NE(ArtifactKey(SampleGraph(), SampleDevice(), SampleOptions(), "build 1"),
            ArtifactKey(SampleGraph(), SampleDevice(), SampleOptions(), "build 2"));
}

TEST(KeyTest, OrderOfSetsNamesAndUnusedSymbolsDoNotCount) {
  v1::Graph graph = SampleGraph();
  v1::Device device = SampleDevice();
  v1::CompileOptions options = SampleOptions();
  const Digest before = Key(graph, device, options);

  graph.set_name("another");
  graph.mutable_nodes(0)->set_name("another");
  graph.mutable_nodes(0)->set_location("elsewhere.py:9 in call");
  graph.mutable_inputs(0)->set_name("another");
  graph.mutable_constants(0)->set_name("another");
  graph.mutable_symbols(0)->set_name("s9");
  graph.mutable_nodes(0)->mutable_kwargs()->SwapElements(0, 1);
  v1::Symbol* unused = graph.add_symbols();
  unused->set_name("unused");
  unused->set_max(9);
  device.set_index(3);
  device.set_model_name("another");
  device.mutable_features()->SwapElements(0, 1);
  device.mutable_libraries()->SwapElements(0, 1);
  device.mutable_memory_spaces()->SwapElements(0, 1);
  device.mutable_binary_formats()->SwapElements(0, 1);
  options.mutable_disabled_passes()->SwapElements(0, 1);

  EXPECT_EQ(Key(graph, device, options), before);
}

TEST(KeyTest, SymbolsAreNumberedByFirstUse) {
  auto graph_with_symbol_at = [](int at) {
    v1::Graph graph = SampleGraph();
    const v1::Symbol symbol = graph.symbols(0);
    graph.clear_symbols();
    for (int i = 0; i < at; ++i) graph.add_symbols()->set_name("filler");
    *graph.add_symbols() = symbol;
    graph.mutable_inputs(0)
        ->mutable_type()
        ->mutable_tensor()
        ->mutable_sizes(0)
        ->mutable_expr()
        ->mutable_operands(0)
        ->set_symbol(at);
    graph.mutable_inputs(1)->mutable_type()->mutable_sym_int()->mutable_expr()->set_symbol(at);
    return graph;
  };
  EXPECT_EQ(GraphFingerprint(graph_with_symbol_at(0)), GraphFingerprint(graph_with_symbol_at(3)));
}

// What the server gives its workers: with it they cannot read what is in no key.
TEST(KeyTest, WhatDoesNotCountDoesNotReachTheCompiler) {
  auto text = [](const Message& message) { return Sha256(message.SerializeAsString()); };
  ExpectEveryFieldCounts<v1::Device>(
      SampleDevice(), [&](const v1::Device& device) { return text(KeyedDevice(device)); });
  ExpectEveryFieldCounts<v1::CompileOptions>(
      SampleOptions(), [&](const auto& options) { return text(KeyedOptions(options)); });
}

TEST(KeyTest, TheDefaultLevelIsOneKeyWithItsNumber) {
  auto key = [](int level) {
    v1::CompileOptions options = SampleOptions();
    options.set_optimization_level(level);
    return Key(SampleGraph(), SampleDevice(), options);
  };
  EXPECT_EQ(key(0), key(kDefaultOptimizationLevel));
  EXPECT_NE(key(0), key(3));
  EXPECT_NE(key(0), key(1));
}

TEST(KeyTest, KernelKeysFollowToolchainArgumentsAndSources) {
  const std::set<Digest> keys = {
      KernelKey("clang 1", {"-O3", "-w"}, {"prelude", "source"}),
      KernelKey("clang 2", {"-O3", "-w"}, {"prelude", "source"}),
      KernelKey("clang 1", {"-O2", "-w"}, {"prelude", "source"}),
      KernelKey("clang 1", {"-w", "-O3"}, {"prelude", "source"}),
      KernelKey("clang 1", {"-O3"}, {"prelude", "source"}),
      KernelKey("clang 1", {"-O3-w"}, {"prelude", "source"}),
      KernelKey("clang 1", {"-O3", "-w"}, {"prelude", "source2"}),
      KernelKey("clang 1", {"-O3", "-w"}, {"preludes", "ource"}),
      KernelKey("clang 1", {"-O3", "-w"}, {"preludesource"}),
      KernelKey("clang 1", {"-O3", "-w", "prelude"}, {"source"}),
  };
  EXPECT_EQ(keys.size(), 10u);
}

TEST(KeyTest, HostileNestingEndsAndStillHasAKey) {
  v1::Graph graph;
  v1::Argument* arg = graph.add_nodes()->add_args();
  for (int i = 0; i < 5000; ++i) arg = arg->mutable_list()->add_items();
  EXPECT_NE(GraphFingerprint(graph), GraphFingerprint(v1::Graph()));
}

}  // namespace
}  // namespace kiln
