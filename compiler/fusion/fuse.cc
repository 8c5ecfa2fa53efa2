#include "compiler/fusion/fuse.h"
