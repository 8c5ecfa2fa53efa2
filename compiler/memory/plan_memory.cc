#include "compiler/memory/plan_memory.h"
