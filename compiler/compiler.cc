#include "compiler/compiler.h"
