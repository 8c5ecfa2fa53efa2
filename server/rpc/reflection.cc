#include "server/rpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr absl::string_view kReflectionServices[] = {
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
};

void AddFile(const FileDescriptor& file, absl::flat_hash_set<const FileDescriptor*>& added,
             ServerReflectionResponse& response) {
  if (!added.insert(&file).second) return;
  FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), added, response);
  }
}

void Fail(std::string message, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message(std::move(message));
}

void AnswerFile(const FileDescriptor* file, absl::string_view wanted,
                ServerReflectionResponse& response) {
  if (file == nullptr) return Fail(absl::StrCat("no descriptor of ", wanted), response);
  absl::flat_hash_set<const FileDescriptor*> added;
  AddFile(*file, added, response);
}

ServerReflectionResponse Answer(const std::vector<std::string>& services,
                                const ServerReflectionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(),
                 response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                 request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& wanted = request.file_containing_extension();
      const Descriptor* type = pool.FindMessageTypeByName(wanted.containing_type());
      const FieldDescriptor* extension =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, wanted.extension_number());
      AnswerFile(
          extension == nullptr ? nullptr : extension->file(),
          absl::StrCat("extension ", wanted.extension_number(), " of ", wanted.containing_type()),
          response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* type = pool.FindMessageTypeByName(name);
      if (type == nullptr) {
        Fail(absl::StrCat("no descriptor of ", name), response);
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(name);
      for (const FieldDescriptor* extension : extensions) {
        numbers.add_extension_number(extension->number());
      }
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("the request asks for nothing");
      break;
  }
  return response;
}

// One question at a time: the next is read once the answer is out.
class ReflectionCall final : public Reactor {
 public:
  explicit ReflectionCall(const std::vector<std::string>& services) : services_(services) {}

  void Start() override { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    ServerReflectionRequest request;
    if (absl::Status parsed = ParseMessage(message_, request); !parsed.ok()) {
      return Finish(ToGrpc(parsed));
    }
    StartWrite(SerializeMessage(Answer(services_, request)));
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  grpc::ByteBuffer message_;
};

}  // namespace

void AddReflection(std::vector<std::string> services, Methods& methods) {
  for (absl::string_view service : kReflectionServices) services.emplace_back(service);
  auto listed = std::make_shared<const std::vector<std::string>>(std::move(services));
  for (absl::string_view service : kReflectionServices) {
    Method& method = methods[absl::StrCat("/", service, "/ServerReflectionInfo")];
    method.reads_stream = true;
    method.make = [listed](grpc::ServerContextBase&, grpc::ByteBuffer&) {
      return new ReflectionCall(*listed);
    };
  }
}

}  // namespace kiln::server
