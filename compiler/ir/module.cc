#include "compiler/ir/module.h"
