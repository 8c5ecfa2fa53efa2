#include "compiler/lowering/lower.h"
