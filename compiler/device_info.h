// The device of a request as code generators read it.
#pragma once

#include "compiler/codegen/target.h"

namespace kiln {
namespace v1 {
class Device;
}

// Takes any message. Memory spaces and binary formats of a kind that this build does not know, from
// a newer client, are left out.
DeviceInfo ReadDevice(const v1::Device& device);

}  // namespace kiln
