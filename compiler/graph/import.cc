#include "compiler/graph/import.h"
