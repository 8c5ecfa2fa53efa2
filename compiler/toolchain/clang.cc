#include "compiler/toolchain/clang.h"
