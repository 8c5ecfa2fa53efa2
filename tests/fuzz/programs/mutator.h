// Changes of single fields of a message, by reflection.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace kiln::fuzz {

// Every scalar field can get another value, every repeated one can gain, lose or swap entries, and
// every message or member of a oneof can appear or go.
class Mutator {
 public:
  using Field = google::protobuf::FieldDescriptor;
  // `left_out` says which fields stay as they are, with all that is below them.
  Mutator(uint64_t seed, std::function<bool(const Field&)> left_out)
      : random_(seed), left_out_(std::move(left_out)) {}

  // Names that strings may become, such as those of other kernels.
  void AddWord(std::string word) { words_.push_back(std::move(word)); }

  // Changes one field, each with equal chance. Says which and how: "program.steps[1].launch: add".
  // A change may write the value that was there.
  std::string Change(google::protobuf::Message& message);

 private:
  using Message = google::protobuf::Message;
  using Deed = std::function<std::string(Mutator&)>;

  void Visit(Message& message, const std::string& path, int depth);
  void VisitRepeated(Message& message, const Field& field, const std::string& path, int depth);
  void VisitSingle(Message& message, const Field& field, const std::string& path, int depth);
  // One of those offered is kept, each with equal chance.
  void Offer(Deed deed);

  int64_t OtherNumber(int64_t old);
  std::string OtherString(const std::string& old);
  void SetScalar(Message& message, const Field& field, int index);  // index < 0: not repeated
  void Add(Message& message, const Field& field);

  std::mt19937_64 random_;
  std::function<bool(const Field&)> left_out_;
  std::vector<std::string> words_;
  uint64_t offered_ = 0;
  Deed chosen_;
};

}  // namespace kiln::fuzz
