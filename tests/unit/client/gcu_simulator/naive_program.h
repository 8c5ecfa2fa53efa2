// Whole programs of the GCU, in text, by the plainest reading of proto/gcu/README.md: a line at a
// time, one core after the other. It knows neither the assembler nor the simulator. Cores must not
// meet in memory, and copies must be waited for at once: then neither order nor time has an effect.
#pragma once

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/client/gcu_simulator/naive.h"

namespace kiln::gcu_naive {

class Program {
 public:
  explicit Program(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      for (char& c : line) c = c == ',' ? ' ' : c;
      std::istringstream words(line);
      std::vector<std::string> parts;
      for (std::string word; words >> word;) parts.push_back(word);
      if (parts.empty()) continue;
      if (parts[0].back() == ':') {
        labels_[parts[0].substr(0, parts[0].size() - 1)] = lines_.size();
      } else {
        lines_.push_back(parts);
      }
    }
  }

  struct Place {
    int core = 0, cores = 0;
    Index cell{};  // of the grid
  };

  // Runs the program of one core over global memory that begins at `l3_begin`. "" where it comes to
  // its end, else what stops it: "trap 7", "division by 0".
  std::string Run(const Place& place, const std::vector<uint64_t>& arguments, uint64_t l3_begin,
                  Image& l3, size_t l1_bytes) {
    l3_ = &l3;
    l3_begin_ = static_cast<int64_t>(l3_begin);
    l1_.assign(l1_bytes, 0);
    scalars_.fill(0);
    tiles_.clear();
    scalars_[0] = place.core;
    scalars_[1] = place.cores;
    for (int d = 0; d < 3; ++d) scalars_[2 + d] = place.cell[d];
    for (size_t at = 0; at < lines_.size();) {
      const std::vector<std::string>& line = lines_[at++];
      executed_.insert(line[0]);
      if (line[0] == "halt") return "";
      if (line[0] == "trap") return "trap " + line[1];
      if (line[0] == "jmp" || Jumps(line)) {
        at = labels_.at(line.back());
      } else if (line[0] == "arg") {
        S(line[1]) = static_cast<int64_t>(arguments[std::stoul(line[2])]);
      } else if (const std::string fault = Execute(line); !fault.empty()) {
        return fault;
      }
    }
    return "the program has no end";
  }

  // Mnemonics that were reached.
  const std::set<std::string>& executed() const { return executed_; }

 private:
  struct PlacedTile {
    std::string space;
    NaiveTile tile;
  };

  int64_t& S(const std::string& name) { return scalars_[std::stoul(name.substr(1))]; }
  PlacedTile& T(const std::string& name) { return tiles_[name]; }

  bool Jumps(const std::vector<std::string>& line) {
    if (line[0] == "jeq") return S(line[1]) == S(line[2]);
    if (line[0] == "jne") return S(line[1]) != S(line[2]);
    if (line[0] == "jlt") return S(line[1]) < S(line[2]);
    if (line[0] == "jge") return S(line[1]) >= S(line[2]);
    return false;
  }

  std::string Execute(const std::vector<std::string>& line) {
    const std::string& op = line[0];
    if (op[0] == 'j' || op == "wait" || op == "waitall" || op == "barrier") return "";
    if (op == "tile") {
      std::istringstream type(line[2]);
      PlacedTile placed;
      std::string rank;
      std::getline(type, placed.space, '.');
      std::getline(type, placed.tile.type, '.');
      std::getline(type, rank);
      placed.tile.rank = std::stoi(rank);
      placed.tile.address = S(line[3]);
      T(line[1]) = placed;
    } else if (op == "dim" || op == "dimi") {
      NaiveTile& tile = T(line[1]).tile;
      const size_t axis = std::stoul(line[2]);
      tile.extents[axis] = S(line[3]);
      tile.strides[axis] = op == "dim" ? S(line[4]) : std::stoll(line[4]);
    } else if (op == "at") {
      T(line[1]).tile.address = S(line[2]);
    } else if (op == "dma") {
      Copy(T(line[1]), T(line[2]));
    } else if (op.find('.') != std::string::npos) {
      OnTiles(line);
    } else {
      return OnScalars(line);
    }
    return "";
  }

  // In 128 bits, of which the low 64 are kept.
  std::string OnScalars(const std::vector<std::string>& line) {
    const std::string& op = line[0];
    if (op == "li") {
      S(line[1]) = std::stoll(line[2]);
      return "";
    }
    const auto a = static_cast<__int128>(S(line[2]));
    if (op == "mov") {
      S(line[1]) = S(line[2]);
      return "";
    }
    const auto b =
        static_cast<__int128>(op == "addi" || op == "muli" ? std::stoll(line[3]) : S(line[3]));
    __int128 result = 0;
    if (op == "add" || op == "addi") result = a + b;
    if (op == "sub") result = a - b;
    if (op == "mul" || op == "muli") result = a * b;
    if (op == "min") result = a < b ? a : b;
    if (op == "max") result = a < b ? b : a;
    if (op == "div" || op == "mod") {
      if (b == 0) return "division by 0";
      __int128 quotient = a / b;
      if (quotient * b != a && (a < 0) != (b < 0)) --quotient;
      result = op == "div" ? quotient : a - quotient * b;
    }
    S(line[1]) = static_cast<int64_t>(static_cast<uint64_t>(result));
    return "";
  }

  void Copy(const PlacedTile& to, const PlacedTile& from) {
    NaiveTile out = to.tile, in = from.tile;
    if (to.space == "l3") out.address -= l3_begin_;
    if (from.space == "l3") in.address -= l3_begin_;
    Image& target = to.space == "l3" ? *l3_ : l1_;
    const Image& source = from.space == "l3" ? *l3_ : l1_;
    out.ForEach([&](const Index& index) {
      std::memcpy(target.data() + out.At(index), source.data() + in.At(index), out.Bytes());
    });
  }

  void OnTiles(const std::vector<std::string>& line) {
    const std::string& op = line[0];
    const NaiveTile& out = T(line[1]).tile;
    if (op == "v.fill") {
      const int64_t value = S(line[2]);
      out.ForEach([&](const Index& index) {
        std::memcpy(l1_.data() + out.At(index), &value, out.Bytes());
      });
      return;
    }
    if (op[0] == 'm') {
      return Multiply(l1_, op == "m.acc", out, T(line[2]).tile, T(line[3]).tile);
    }
    if (op == "v.rsum" || op == "v.rmax" || op == "v.rmin" || op == "v.rprod") {
      return Reduce(l1_, op, out, T(line[2]).tile);
    }
    std::vector<NaiveTile> in;
    for (size_t i = 2; i < line.size(); ++i) in.push_back(T(line[i]).tile);
    Elementwise(l1_, op, out, in);
  }

  std::vector<std::vector<std::string>> lines_;
  std::map<std::string, size_t> labels_;
  std::set<std::string> executed_;
  Image* l3_ = nullptr;
  int64_t l3_begin_ = 0;
  Image l1_;
  std::array<int64_t, 64> scalars_{};
  std::map<std::string, PlacedTile> tiles_;
};

}  // namespace kiln::gcu_naive
