// Messages and ends of calls, between gRPC's form and ours.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace kiln::server {

// Takes what `bytes` hold. INVALID_ARGUMENT where they are no T.
template <typename T>
absl::Status ParseMessage(grpc::ByteBuffer& bytes, T& message) {
  if (grpc::SerializationTraits<T>::Deserialize(&bytes, &message).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("not a ", T::descriptor()->name()));
}

template <typename T>
grpc::ByteBuffer SerializeMessage(const T& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Its code and message.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace kiln::server
