#include "server/observe/grpc_log.h"

#include <grpc/support/log.h>

#include "proto/base/log.h"

namespace kiln::server {

void TakeGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    const bool error = args->severity == GPR_LOG_SEVERITY_ERROR;
    Log(error ? LogLevel::kInfo : LogLevel::kDebug, "grpc", {{"message", args->message}});
  });
}

}  // namespace kiln::server
