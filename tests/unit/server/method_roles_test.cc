#include "server/security/method_roles.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {
namespace {

const google::protobuf::ServiceDescriptor& Service() {
  return *v1::FetchRequest::descriptor()->file()->FindServiceByName("CompileService");
}

TEST(MethodRoles, EveryMethodOfTheServiceHasOneRowAndNoRowIsLeft) {
  std::set<std::string> rows;
  for (const MethodRole& row : MethodRoles()) {
    EXPECT_TRUE(rows.insert(std::string(row.method)).second) << row.method << " stands twice";
    EXPECT_GT(row.role, Role::kNone) << row.method << " is for everybody";
  }
  for (int i = 0; i < Service().method_count(); ++i) {
    const std::string& name = Service().method(i)->name();
    EXPECT_EQ(rows.erase(name), 1u) << name << " has no row in server/security/method_roles.cc";
  }
  EXPECT_TRUE(rows.empty()) << *rows.begin() << " is no method";
}

TEST(MethodRoles, WhatChangesTheServerTakesMoreThanWhatReadsIt) {
  EXPECT_EQ(RoleOf("Fetch"), Role::kRead);
  EXPECT_EQ(RoleOf("Compile"), Role::kCompile);
  EXPECT_EQ(RoleOf("ClearCache"), Role::kAdmin);
  EXPECT_EQ(RoleOf("ImportCache"), Role::kAdmin);
  EXPECT_EQ(RoleOf("NoSuchMethod"), std::nullopt);
}

}  // namespace
}  // namespace kiln::server
