// Calls by clients that can speak, of graphs that are wrong, too large, or not waited for.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "tests/fuzz/programs/mutator.h"
#include "tests/integration/graphs.h"
#include "tests/soak/act.h"
#include "tests/soak/answers.h"
#include "tests/soak/programs.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

using integration::Answer;
using integration::Compile;

constexpr absl::Duration kLimit = absl::Seconds(20);

// One of the fuzzers' corpus, or a sound one.
v1::CompileRequest AnyRequest(Random& random) {
  static const auto* paths = [] {
    auto* found = new std::vector<std::string>();
    for (const auto& entry : std::filesystem::directory_iterator(KILN_GRAPH_CORPUS)) {
      found->push_back(entry.path());
    }
    return found;
  }();
  v1::CompileRequest request = MakeProgram(random() % 1000).request;
  if (Draw(random, 0, 1) == 0) return request;
  std::stringstream text;
  text << std::ifstream((*paths)[random() % paths->size()]).rdbuf();
  // What it holds before it breaks off is a graph as well.
  (void)request.mutable_graph()->ParseFromString(text.str());
  return request;
}

void Malformed(World& world, Random& random) {
  auto stub = world.open().NewStub();
  fuzz::Mutator mutator(random(), [](const fuzz::Mutator::Field&) { return false; });
  for (int i = 0; i < 20 && !world.ending(); ++i) {
    v1::CompileRequest request = AnyRequest(random);
    for (int changes = Draw(random, 1, 4); changes > 0; --changes) mutator.Change(request);
    TakeAnswer(world, "malformed graphs", Compile(*stub, request, nullptr, kLimit),
               /*leaves=*/true);
  }
}

void Oversized(World& world, Random& random) {
  v1::CompileRequest request = MakeProgram(random() % 1000).request;
  v1::Constant& constant = *request.mutable_graph()->add_constants();
  constant.set_name("large");
  constant.set_data(std::string(static_cast<size_t>(Draw(random, 1, 80)) << 20, 'x'));
  auto stub = world.open().NewStub();
  const Answer answer = Compile(*stub, request, nullptr, kLimit);
  TakeAnswer(world, "oversized graphs", answer, /*leaves=*/false);
  if (answer.ok()) world.ledger.Breach("a graph with a constant of a MiB was compiled");
}

void Deep(World& world, Random& random) {
  integration::GraphBuilder builder;
  uint32_t value = builder.Input({64});
  for (int i = Draw(random, 1000, 20000); i > 0; --i) {
    value = builder.Node("n", "aten.neg.default", {value}, {64});
  }
  builder.Output(value);
  auto stub = world.open().NewStub();
  TakeAnswer(world, "long graphs", Compile(*stub, builder.Request(), nullptr, absl::Seconds(2)),
             /*leaves=*/true);
}

// Leaves by a cancel in the middle, or by a deadline that is too short.
void Leaves(World& world, Random& random) {
  auto stub = world.open().NewStub();
  const v1::CompileRequest request =
      integration::SlowRequest(Draw(random, 2, 6), Draw(random, 1, 40));
  if (Draw(random, 0, 1) == 0) {
    TakeAnswer(world, "clients with a short deadline",
               Compile(*stub, request, nullptr, absl::Milliseconds(Draw(random, 1, 300))),
               /*leaves=*/true);
    return;
  }
  int left = Draw(random, 0, 3);
  const Answer answer = Compile(
      *stub, request,
      [&](const v1::Progress&, grpc::ClientContext& context) {
        if (left-- == 0) context.TryCancel();
      },
      kLimit);
  TakeAnswer(world, "clients that cancel", answer, /*leaves=*/true);
}

void WithoutToken(World& world, Random& random) {
  auto stub = world.StubWithoutToken();
  const Answer answer = Compile(*stub, MakeProgram(random() % 10).request, nullptr, kLimit);
  if (answer.status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return world.ledger.Count("strangers without a token: UNAUTHENTICATED");
  }
  world.ledger.Breach("a stranger without a token got " + integration::Text(answer.status));
}

}  // namespace

Group OddRequests() {
  return {.acts = {{"malformed graphs", Malformed},
                   {"oversized graphs", Oversized},
                   {"long graphs", Deep},
                   {"clients that leave", Leaves},
                   {"clients without a token", WithoutToken}},
          .threads = 1,
          .longest_pause = absl::Milliseconds(500)};
}

}  // namespace kiln::soak
