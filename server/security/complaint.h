// What is wrong with files that are looked at again and again.
#pragma once

#include <string>
#include <utility>

namespace kiln::server {

// Says when to log it: once, and not before so many looks in a row found it. A certificate and its
// key are replaced one after the other, and a look may fall between.
class Complaint {
 public:
  // `found`: by this look; empty where all is well.
  bool IsDue(std::string found, int looks) {
    if (found != last_) {
      last_ = std::move(found);
      looks_ = 0;
      said_ = false;
    }
    ++looks_;
    if (last_.empty() || said_ || looks_ < looks) return false;
    said_ = true;
    return true;
  }

 private:
  std::string last_;
  int looks_ = 0;  // in a row that found it
  bool said_ = false;
};

}  // namespace kiln::server
