// Messages of many parts, as graphs are: 20,000 nodes are half a million small blocks. On the heap,
// whatever is made while they live stays between the holes that they leave, and nothing there goes
// back to the system by itself.
#pragma once

#include <google/protobuf/arena.h>

#include <memory>
#include <utility>

namespace kiln {

// 4 KiB at first; the large blocks come from the system and go back to it when they are freed.
std::shared_ptr<google::protobuf::Arena> MakeMessageArena();

// A message whose parts, strings of more than 15 bytes aside, lie together and go together with its
// last owner.
template <typename T>
std::shared_ptr<T> MakeArenaMessage() {
  auto arena = MakeMessageArena();
  T* message = google::protobuf::Arena::CreateMessage<T>(arena.get());
  return {std::move(arena), message};
}

}  // namespace kiln
