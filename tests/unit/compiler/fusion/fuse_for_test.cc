#include "tests/unit/compiler/fusion/fuse_for_test.h"

#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "compiler/ir/interpret.h"
#include "compiler/ir/parse.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify.h"
#include "gtest/gtest.h"

namespace kiln::fusion {
namespace {

constexpr uint64_t kSeed = 20;

template <typename T>
void Put(T value, std::string& data) {
  data.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

HostTensor RandomTensor(const ir::Module& module, const ir::Buffer& buffer, const FuseCheck& check,
                        std::mt19937_64& random) {
  const auto value = [&](ir::IntExpr e) {
    return module.ints->Evaluate(e, [&](ir::IntExpr leaf) { return check.symbols[leaf.id()]; });
  };
  HostTensor tensor;
  tensor.dtype = buffer.dtype;
  int64_t last = 0;
  for (size_t i = 0; i < buffer.sizes.size(); ++i) {
    tensor.sizes.push_back(value(buffer.sizes[i]));
    tensor.strides.push_back(value(buffer.strides[i]));
    last += (tensor.sizes.back() - 1) * tensor.strides.back();
  }
  std::uniform_real_distribution<float> real(-1.5f, 1.5f);
  std::uniform_int_distribution<int64_t> whole(0, check.int_max - 1);
  for (int64_t i = 0; i <= last; ++i) {
    switch (buffer.dtype) {
      case DType::kF32:
        Put(real(random), tensor.data);
        break;
      case DType::kI64:
        Put(whole(random), tensor.data);
        break;
      case DType::kBool:
        Put(static_cast<uint8_t>(whole(random) & 1), tensor.data);
        break;
      default:
        ADD_FAILURE() << "no random values for " << std::string(DTypeName(buffer.dtype));
        return tensor;
    }
  }
  return tensor;
}

std::vector<HostTensor> RandomTensors(const ir::Module& module, const FuseCheck& check) {
  std::mt19937_64 random(kSeed);
  std::vector<HostTensor> inputs;
  for (const ir::Buffer& buffer : module.buffers) {
    if (buffer.kind != ir::BufferKind::kInput) continue;
    if (inputs.size() <= static_cast<size_t>(buffer.index)) inputs.resize(buffer.index + 1);
    inputs[buffer.index] = RandomTensor(module, buffer, check, random);
  }
  return inputs;
}

void ExpectEqual(const ir::ReferenceTensor& actual, const ir::ReferenceTensor& expected) {
  ASSERT_EQ(actual.sizes, expected.sizes);
  ASSERT_EQ(actual.ints, expected.ints);
  ASSERT_EQ(actual.floats.size(), expected.floats.size());
  for (size_t i = 0; i < expected.floats.size(); ++i) {
    const double a = actual.floats[i], e = expected.floats[i];
    if (std::isnan(a) && std::isnan(e)) continue;
    if (a == e) continue;
    ASSERT_LE(std::abs(a - e), 1e-5 * (1 + std::abs(e))) << "element " << i;
  }
}

void ExpectSameResults(const ir::Module& before, const ir::Module& after, const FuseCheck& check) {
  const std::vector<HostTensor> inputs = RandomTensors(before, check);
  const auto expected = ir::Interpret(before, inputs, check.symbols, {});
  const auto actual = ir::Interpret(after, inputs, check.symbols, {});
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status();
  ASSERT_EQ(actual->size(), expected->size());
  for (size_t i = 0; i < expected->size(); ++i) {
    SCOPED_TRACE(testing::Message() << "output " << i);
    ExpectEqual((*actual)[i], (*expected)[i]);
  }
}

}  // namespace

int FusedModule::NumKernels() const {
  int count = 0;
  for (const ir::Operation& operation : module.operations) {
    count += std::holds_alternative<ir::Kernel>(operation) ? 1 : 0;
  }
  return count;
}

std::string FusedModule::Text() const {
  return ir::Print(module);
}

FusedModule FuseAndCheck(const std::string& text, const FuseCheck& check) {
  FusedModule fused;
  auto before = ir::Parse(text);
  auto module = ir::Parse(text);
  if (!before.ok() || !module.ok()) {
    ADD_FAILURE() << before.status() << "\n" << text;
    return fused;
  }
  fused.module = *std::move(module);
  EXPECT_TRUE(ir::Verify(*before).ok()) << ir::Verify(*before) << "\n" << text;
  FuseOptions options = check.options;
  options.verify_passes = true;
  const absl::Status status = Fuse(fused.module, options, &fused.decisions);
  EXPECT_TRUE(status.ok()) << status;
  SCOPED_TRACE(text + "\nfused:\n" + fused.Text());
  const absl::Status verified = ir::Verify(fused.module);
  EXPECT_TRUE(verified.ok()) << verified;
  if (check.interpretable && verified.ok()) ExpectSameResults(*before, fused.module, check);
  return fused;
}

FusedModule FuseEveryWay(const std::string& text, const FuseCheck& check) {
  for (const char* pass :
       {"collapse", "inline", "repeats", "epilogue", "merge", "horizontal", "split", "layouts"}) {
    SCOPED_TRACE(testing::Message() << "without " << pass);
    FuseCheck without = check;
    without.options.disabled_passes = {pass};
    FuseAndCheck(text, without);
  }
  FuseCheck nothing = check;
  nothing.options.enabled = false;
  FuseAndCheck(text, nothing);
  return FuseAndCheck(text, check);
}

}  // namespace kiln::fusion
