#include "client/cli/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "absl/strings/str_cat.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

std::string Npy(const std::string& descr, bool fortran, const std::string& shape,
                const std::string& data) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False",
                   ", 'shape': ", shape, ", }");
  header.resize((header.size() + 10 + 63) / 64 * 64 - 10, ' ');
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00", 8), Little(header.size(), 2), header,
                      data);
}

std::string Deflate(const std::string& data) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(compressBound(data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zip(const std::vector<std::pair<std::string, std::string>>& files, bool deflated) {
  std::string local, central;
  for (const auto& [name, data] : files) {
    std::string packed = deflated ? Deflate(data) : data;
    uint64_t crc =
        crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
    std::string common = absl::StrCat(Little(20, 2), Little(0, 2), Little(deflated ? 8 : 0, 2),
                                      Little(0, 4), Little(crc, 4), Little(packed.size(), 4),
                                      Little(data.size(), 4), Little(name.size(), 2));
    absl::StrAppend(&central, "PK\x01\x02", Little(20, 2), common, Little(0, 2), Little(0, 2),
                    Little(0, 2), Little(0, 2), Little(0, 4), Little(local.size(), 4), name);
    // An extra field in the local header only, as NumPy writes for Zip64.
    absl::StrAppend(&local, "PK\x03\x04", common, Little(4, 2), name, "XXXX", packed);
  }
  return absl::StrCat(local, central, "PK\x05\x06", Little(0, 4), Little(files.size(), 2),
                      Little(files.size(), 2), Little(central.size(), 4), Little(local.size(), 4),
                      Little(0, 2));
}

std::string SixFloats() {
  float values[6] = {0, 1, 2, 3, 4, 5};
  return std::string(reinterpret_cast<char*>(values), sizeof(values));
}

TEST(Npz, ReadsStoredAndDeflatedArrays) {
  for (bool deflated : {false, true}) {
    auto arrays = ParseNpz(Zip({{"x.npy", Npy("<f4", false, "(2, 3)", SixFloats())},
                                {"n.npy", Npy("<i8", false, "()", Little(42, 8))},
                                {"v.npy", Npy("|b1", false, "(1,)", Little(1, 1))}},
                               deflated));
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    ASSERT_EQ(arrays->size(), 3u);
    EXPECT_EQ((*arrays)[0].name, "x");
    EXPECT_EQ((*arrays)[0].tensor.dtype, DType::kF32);
    EXPECT_EQ((*arrays)[0].tensor.sizes, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ((*arrays)[0].tensor.strides, (std::vector<int64_t>{3, 1}));
    EXPECT_EQ((*arrays)[0].tensor.data, SixFloats());
    EXPECT_TRUE((*arrays)[1].tensor.sizes.empty());
    EXPECT_EQ((*arrays)[2].tensor.dtype, DType::kBool);
  }
}

TEST(Npz, ReadsFortransOrder) {
  auto tensor = ParseNpy(Npy("<f4", true, "(2, 3)", SixFloats()));
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->strides, (std::vector<int64_t>{1, 2}));
}

TEST(Npz, TwoRawBytesAreBfloat16) {
  auto tensor = ParseNpy(Npy("|V2", false, "(2,)", Little(0x40003f80, 4)));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->dtype, DType::kBF16);
  EXPECT_FALSE(ParseNpy(Npy("|V3", false, "(1,)", Little(0, 3))).ok());
}

TEST(Npz, RefusesWhatItCannotRead) {
  EXPECT_THAT(ParseNpz("PK nothing").status().message(), HasSubstr("no zip archive"));
  EXPECT_THAT(ParseNpz("").status().message(), HasSubstr("no zip archive"));
  std::string big_endian = Zip({{"x.npy", Npy(">f4", false, "(2, 3)", SixFloats())}}, false);
  EXPECT_THAT(ParseNpz(big_endian).status().message(), HasSubstr("'x': the array's type '>f4'"));
  std::string short_data = Zip({{"x.npy", Npy("<f4", false, "(2, 4)", SixFloats())}}, false);
  EXPECT_THAT(ParseNpz(short_data).status().message(), HasSubstr("fewer or more values"));
  EXPECT_FALSE(ParseNpy(Npy("<f4", false, "(-2, 3)", SixFloats())).ok());
  EXPECT_FALSE(ParseNpy(Npy("<f4", false, "(4294967296, 4294967296)", "")).ok());
}

TEST(Npz, SurvivesEveryTruncationAndFlip) {
  for (bool deflated : {false, true}) {
    std::string whole = Zip({{"x.npy", Npy("<f4", false, "(2, 3)", SixFloats())}}, deflated);
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(ParseNpz(whole.substr(0, size)).ok()) << size;
    }
    for (size_t at = 0; at < whole.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string flipped = whole;
        flipped[at] ^= static_cast<char>(1 << bit);
        auto arrays = ParseNpz(flipped);
        if (!arrays.ok()) continue;
        // The flip hit bytes without meaning for us (dates, names): the values are intact.
        for (const NpzArray& array : *arrays) EXPECT_EQ(array.tensor.data, SixFloats()) << at;
      }
    }
  }
}

}  // namespace
}  // namespace kiln::cli
