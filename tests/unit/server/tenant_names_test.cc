#include "server/security/tenant_names.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(TenantNamesTest, ManyNamesOfOneOwnerAreOneTenantBeyondAFew) {
  TenantNames names(3);
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("name", i);
    EXPECT_EQ(names.TenantOf("1.2.3.4", name, kStart), i < 3 ? name : kOtherTenants);
  }
  EXPECT_EQ(names.TenantOf("1.2.3.4", "name1", kStart), "name1") << "it is known";
  EXPECT_EQ(names.TenantOf("1.2.3.5", "name50", kStart), "name50") << "another owner";
}

TEST(TenantNamesTest, OneNameOfManyOwnersIsOneTenant) {
  TenantNames names(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(names.TenantOf(absl::StrCat(i), "research", kStart), "research");
  }
}

TEST(TenantNamesTest, ANameThatIsNotUsedForAWhileMakesRoom) {
  TenantNames names(2);
  EXPECT_EQ(names.TenantOf("o", "a", kStart), "a");
  EXPECT_EQ(names.TenantOf("o", "b", kStart), "b");
  const absl::Time later = kStart + kTenantNameKept;
  EXPECT_EQ(names.TenantOf("o", "b", later), "b");
  EXPECT_EQ(names.TenantOf("o", "c", later), kOtherTenants);
  EXPECT_EQ(names.TenantOf("o", "c", later + absl::Seconds(1)), "c");
  EXPECT_EQ(names.TenantOf("o", "a", later + absl::Seconds(2)), kOtherTenants);
}

TEST(TenantNamesTest, OwnersAreForgottenBeforeThereAreTooMany) {
  TenantNames names(1);
  for (int i = 0; i < 70000; ++i) {
    const std::string tenant = names.TenantOf(absl::StrCat(i), "a", kStart);
    EXPECT_EQ(tenant, i < 65536 ? "a" : kOtherTenants) << i;
  }
  const absl::Time later = kStart + 2 * kTenantNameKept;
  EXPECT_EQ(names.TenantOf("new", "a", later), "a");
}

TEST(TenantNamesTest, AddressesHaveNoPortAndAreTheHoldersOwn) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
  EXPECT_EQ(AddressOfPeer("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711"), "ipv6:2001:db8:1:2::");
  EXPECT_EQ(AddressOfPeer("ipv6:%5B2001:db8:1:2::9%5D:1"),
            AddressOfPeer("ipv6:%5B2001:db8:1:2:3::1%5D:2"));
  EXPECT_EQ(AddressOfPeer("unix:"), "unix");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bnone%5D:1"), "ipv6:%5Bnone%5D");
}

}  // namespace
}  // namespace kiln::server
