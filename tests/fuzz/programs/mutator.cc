#include "tests/fuzz/programs/mutator.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln::fuzz {
namespace {

constexpr int kMaxDepth = 24;

}  // namespace

std::string Mutator::Change(Message& message) {
  offered_ = 0;
  chosen_ = nullptr;
  Visit(message, "", 0);
  return chosen_ == nullptr ? "nothing to change" : chosen_(*this);
}

void Mutator::Offer(Deed deed) {
  if (random_() % ++offered_ == 0) chosen_ = std::move(deed);
}

void Mutator::Visit(Message& message, const std::string& path, int depth) {
  if (depth > kMaxDepth) return;
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const Field& field = *type.field(i);
    if (left_out_(field)) continue;
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field.name());
    if (field.is_repeated()) {
      VisitRepeated(message, field, name, depth);
    } else {
      VisitSingle(message, field, name, depth);
    }
  }
}

void Mutator::VisitSingle(Message& message, const Field& field, const std::string& path,
                          int depth) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() != Field::CPPTYPE_MESSAGE) {
    Offer([&message, &field, path](Mutator& self) {
      self.SetScalar(message, field, -1);
      return absl::StrCat(path, ": set");
    });
    return;
  }
  if (!reflection.HasField(message, &field)) {
    Offer([&message, &field, path](Mutator&) {
      message.GetReflection()->MutableMessage(&message, &field);
      return absl::StrCat(path, ": appear");
    });
    return;
  }
  Offer([&message, &field, path](Mutator&) {
    message.GetReflection()->ClearField(&message, &field);
    return absl::StrCat(path, ": go");
  });
  Visit(*reflection.MutableMessage(&message, &field), path, depth + 1);
}

void Mutator::VisitRepeated(Message& message, const Field& field, const std::string& path,
                            int depth) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, &field);
  Offer([&message, &field, path](Mutator& self) {
    self.Add(message, field);
    return absl::StrCat(path, ": add");
  });
  if (size > 0) {
    Offer([&message, &field, path, size](Mutator& self) {
      const int victim = static_cast<int>(self.random_() % static_cast<uint64_t>(size));
      for (int i = victim; i + 1 < size; ++i) {
        message.GetReflection()->SwapElements(&message, &field, i, i + 1);
      }
      message.GetReflection()->RemoveLast(&message, &field);
      return absl::StrCat(path, ": remove");
    });
  }
  if (size > 1) {
    Offer([&message, &field, path, size](Mutator& self) {
      const int a = static_cast<int>(self.random_() % static_cast<uint64_t>(size));
      const int b = static_cast<int>(self.random_() % static_cast<uint64_t>(size));
      message.GetReflection()->SwapElements(&message, &field, a, b);
      return absl::StrCat(path, ": swap");
    });
  }
  for (int i = 0; i < size; ++i) {
    if (field.cpp_type() == Field::CPPTYPE_MESSAGE) {
      Visit(*reflection.MutableRepeatedMessage(&message, &field, i), path, depth + 1);
    } else {
      Offer([&message, &field, path, i](Mutator& self) {
        self.SetScalar(message, field, i);
        return absl::StrCat(path, ": set");
      });
    }
  }
}

int64_t Mutator::OtherNumber(int64_t old) {
  constexpr int64_t kEdges[] = {0,         1,         2,         4,         8,         64,
                                -1,        -8,        INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN,
                                1LL << 32, 1LL << 40, 1LL << 46, 1LL << 50, 1LL << 62};
  const auto wrapped = static_cast<uint64_t>(old);
  switch (random_() % 8) {
    case 0:
      return static_cast<int64_t>(wrapped + 1);
    case 1:
      return static_cast<int64_t>(wrapped - 1);
    case 2:
      return static_cast<int64_t>(wrapped * 2);
    case 3:
      return old / 2;
    case 4:
      return static_cast<int64_t>(wrapped + (random_() % 2 == 0 ? 64 : -64));
    case 5:
      return static_cast<int64_t>(random_() % 16);
    case 6:
      return static_cast<int64_t>(random_());
    default:
      return kEdges[random_() % std::size(kEdges)];
  }
}

std::string Mutator::OtherString(const std::string& old) {
  std::string out = old;
  switch (random_() % 5) {
    case 0:
      return "";
    case 1:
      return out + "x";
    case 2:
      return out.substr(0, out.size() / 2);
    case 3:
      if (!out.empty()) out[random_() % out.size()] ^= static_cast<char>(1 << random_() % 7);
      return out;
    default:
      return words_.empty() ? out : words_[random_() % words_.size()];
  }
}

void Mutator::SetScalar(Message& message, const Field& field, int index) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  const auto set = [&](auto get_one, auto get_at, auto set_one, auto set_at, auto change) {
    if (index < 0) {
      (r.*set_one)(&message, &field, change((r.*get_one)(message, &field)));
    } else {
      (r.*set_at)(&message, &field, index, change((r.*get_at)(message, &field, index)));
    }
  };
  using R = google::protobuf::Reflection;
  const auto number = [&](auto old) {
    return static_cast<decltype(old)>(OtherNumber(static_cast<int64_t>(old)));
  };
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      return set(&R::GetInt32, &R::GetRepeatedInt32, &R::SetInt32, &R::SetRepeatedInt32, number);
    case Field::CPPTYPE_INT64:
      return set(&R::GetInt64, &R::GetRepeatedInt64, &R::SetInt64, &R::SetRepeatedInt64, number);
    case Field::CPPTYPE_UINT32:
      return set(&R::GetUInt32, &R::GetRepeatedUInt32, &R::SetUInt32, &R::SetRepeatedUInt32,
                 number);
    case Field::CPPTYPE_UINT64:
      return set(&R::GetUInt64, &R::GetRepeatedUInt64, &R::SetUInt64, &R::SetRepeatedUInt64,
                 number);
    case Field::CPPTYPE_DOUBLE:
      return set(&R::GetDouble, &R::GetRepeatedDouble, &R::SetDouble, &R::SetRepeatedDouble,
                 [&](double old) { return random_() % 2 == 0 ? -old + 1 : 0.0 / old; });
    case Field::CPPTYPE_FLOAT:
      return set(&R::GetFloat, &R::GetRepeatedFloat, &R::SetFloat, &R::SetRepeatedFloat,
                 [](float old) { return -old + 1; });
    case Field::CPPTYPE_BOOL:
      return set(&R::GetBool, &R::GetRepeatedBool, &R::SetBool, &R::SetRepeatedBool,
                 [](bool old) { return !old; });
    case Field::CPPTYPE_ENUM: {
      const int value = random_() % 8 == 0
                            ? static_cast<int>(random_() % 1000)
                            : static_cast<int>(random_() % static_cast<uint64_t>(
                                                               field.enum_type()->value_count()));
      if (index < 0) {
        r.SetEnumValue(&message, &field, value);
      } else {
        r.SetRepeatedEnumValue(&message, &field, index, value);
      }
      return;
    }
    case Field::CPPTYPE_STRING:
      if (index < 0) {
        r.SetString(&message, &field, OtherString(r.GetString(message, &field)));
      } else {
        r.SetRepeatedString(&message, &field, index,
                            OtherString(r.GetRepeatedString(message, &field, index)));
      }
      return;
    case Field::CPPTYPE_MESSAGE:
      return;
  }
}

void Mutator::Add(Message& message, const Field& field) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  const int size = r.FieldSize(message, &field);
  if (field.cpp_type() == Field::CPPTYPE_MESSAGE) {
    Message& added = *r.AddMessage(&message, &field);
    if (size == 0 || random_() % 4 == 0) return;
    const int like = static_cast<int>(random_() % static_cast<uint64_t>(size));
    added.CopyFrom(r.GetRepeatedMessage(message, &field, like));
    return;
  }
  switch (field.cpp_type()) {
    case Field::CPPTYPE_UINT32:
      r.AddUInt32(&message, &field, static_cast<uint32_t>(random_() % 6));
      return;
    case Field::CPPTYPE_STRING:
      r.AddString(&message, &field, OtherString("x"));
      return;
    default:
      return;  // the artifact has no lists of other scalars
  }
}

}  // namespace kiln::fuzz
