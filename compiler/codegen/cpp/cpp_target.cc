#include "compiler/codegen/cpp/cpp_target.h"
