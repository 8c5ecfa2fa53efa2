// libkiln.so as programs have it that open it themselves, such as plugins.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <kiln/kiln.h>

namespace {

TEST(Library, MayBeClosedAndOpenedAgain) {
  for (int time = 0; time < 2; ++time) {
    void* library = dlopen(KILN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto create =
        reinterpret_cast<decltype(&kiln_client_create)>(dlsym(library, "kiln_client_create"));
    const auto destroy =
        reinterpret_cast<decltype(&kiln_client_destroy)>(dlsym(library, "kiln_client_destroy"));
    ASSERT_TRUE(create != nullptr && destroy != nullptr) << dlerror();
    kiln_client* client = nullptr;
    ASSERT_EQ(create(nullptr, &client), nullptr);
    destroy(client);
    EXPECT_EQ(dlclose(library), 0);
  }
}

}  // namespace
