// What a stream capture has recorded must stay for as long as a graph may replay it.
#pragma once

#include <memory>

#include "client/runtime/cuda/driver.h"

namespace kiln::cuda {

// The graph that the stream's work is being recorded into; null where it is executed.
Graph CapturedInto(const Driver& driver, Stream stream);

// Keeps `what` until the graph and all that was made of it (instances, copies) have gone: then it
// is among what EndReleased ends. For the life of the process where the driver cannot tell when.
void KeepFor(const Driver& driver, Graph graph, std::shared_ptr<const void> what);

// Gives up what was kept for graphs that have gone. The driver allows no call of its own where it
// says that one has, thus this is for whoever loads or unloads next. Thread-safe.
void EndReleased();

}  // namespace kiln::cuda
