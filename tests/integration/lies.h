// What a worker that a client's graph has taken over could try in order to get its own code into
// other clients' programs, or a server that lies. A graph named "lie:WHAT", or with such a string
// among its arguments, has it try; misbehaving_compiler.cc calls these
// for every request, the honest ones too, since a lie may lie in wait.
//
//   name      the plan gives another source the name, and the key, that an honest kernel has
//   plan      planning leaves a process behind in which every later compile and link is false
//   compile   so does compiling one of its kernels
//   link      so does linking its objects
//   no_output, more_outputs, output_none, output_number, output_input, smaller_output,
//   fewer_buffers, other_step, terabytes, uncountable
//             the program is changed so, before the server makes it an artifact and signs that
//   answers   the plan's process sends more answers than one, false objects for whoever reads them
#pragma once

#include "absl/status/statusor.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class CompileKernelResponse;
class LinkRequest;
class LinkResponse;
class PlanRequest;
class PlanResponse;
}  // namespace v1

namespace server {

absl::StatusOr<v1::PlanResponse> LyingPlan(const v1::PlanRequest& request);
absl::StatusOr<v1::CompileKernelResponse> LyingCompile(const v1::CompileKernelRequest& request);
absl::StatusOr<v1::LinkResponse> LyingLink(const v1::LinkRequest& request);

}  // namespace server
}  // namespace kiln
