#include <gtest/gtest.h>
#include <hdf5.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "ckpt/byte_shuffle.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/hdf5_types.h"
#include "ckpt/plugin/zstd_filter.h"

namespace shardwright::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes data(count);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

/// Gaussian floats of type f32 (4 bytes each) or their upper halves, as weights are.
Bytes weights(std::size_t count, std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Bytes data(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    std::memcpy(&data[i * size], reinterpret_cast<const std::byte*>(&value) + 4 - size, size);
  }
  return data;
}

/// A dataset of one chunk of bytes-or-elements in a file in memory, with the filters asked for.
class OneChunk {
 public:
  /// `compression` is the filter between shuffle and Fletcher32; without one, there is no shuffle either.
  OneChunk(DType type, std::size_t elements, std::optional<H5Z_filter_t> compression)
      : file_(create_file()),
        type_(hdf5_type(type)),
        dataset_(create_dataset(file_, type_, elements, compression)) {}

  bool write(const Bytes& raw) {
    return H5Dwrite(dataset_, type_, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()) >= 0;
  }
  bool read(Bytes& raw) { return H5Dread(dataset_, type_, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()) >= 0; }
  bool write_stored(const Bytes& stored) {
    const hsize_t at = 0;
    return H5Dwrite_chunk(dataset_, H5P_DEFAULT, 0, &at, stored.size(), stored.data()) >= 0;
  }
  Bytes stored() {
    H5Fflush(file_, H5F_SCOPE_GLOBAL);
    const hsize_t at = 0;
    hsize_t size = 0;
    EXPECT_GE(H5Dget_chunk_storage_size(dataset_, &at, &size), 0);
    Bytes data(size);
    std::uint32_t mask = 0;
    EXPECT_GE(H5Dread_chunk(dataset_, H5P_DEFAULT, &at, &mask, data.data()), 0);
    EXPECT_EQ(mask, 0u);
    return data;
  }

 private:
  static Hdf5Handle create_file() {
    prepare_hdf5();
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create a list", "test");
    H5Pset_fapl_core(access, 1 << 16, false);
    return {H5Fcreate("one_chunk", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose, "create a file", "test"};
  }
  static Hdf5Handle create_dataset(hid_t file, hid_t type, std::size_t elements,
                                   std::optional<H5Z_filter_t> compression) {
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "create a list", "test");
    const hsize_t shape = elements;
    H5Pset_chunk(creation, 1, &shape);
    if (compression) {
      const unsigned level = 1;
      H5Pset_shuffle(creation);
      H5Pset_filter(creation, *compression, H5Z_FLAG_MANDATORY, 1, &level);
    }
    H5Pset_fletcher32(creation);
    const Hdf5Handle space(H5Screate_simple(1, &shape, nullptr), H5Sclose, "create a space", "test");
    return {H5Dcreate2(file, "d", type, space, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose,
            "create a dataset", "test"};
  }

  Hdf5Handle file_, type_, dataset_;
};

TEST(Fletcher32, EqualsWhatLibhdf5Writes) {
  for (const std::size_t size : {1,   2,   3,   4,    5,    255,  256,  511,  512,   513,
                                 719, 720, 721, 1441, 4095, 4096, 4097, 8191, 65537, 1 << 20}) {
    for (const int fill : {-1, 0, 0xff}) {
      Bytes data = random_bytes(size, static_cast<unsigned>(size));
      if (fill >= 0) std::fill(data.begin(), data.end(), static_cast<std::byte>(fill));
      OneChunk chunk(DType::u8, size, std::nullopt);
      ASSERT_TRUE(chunk.write(data));
      const Bytes stored = chunk.stored();
      ASSERT_EQ(stored.size(), size + 4);
      std::uint32_t theirs = 0;
      std::memcpy(&theirs, stored.data() + size, 4);
      EXPECT_EQ(fletcher32(data), theirs) << size << " bytes of " << fill;
    }
  }
}

// By the definition, apart from both implementations.
TEST(Fletcher32, PinnedVectors) {
  const auto of = [](const std::string& text) { return fletcher32(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of("shardwright!"), 0xc7ba8745u);
  EXPECT_EQ(of("shardwright"), 0xc7998724u);
}

TEST(Shuffle, EqualsTheDefinition) {
  for (const std::size_t size : {1, 2, 4, 8})
    for (const std::size_t bytes : {0, 1, 3, 7, 8, 64, 65, 128, 129, 1000, 4096 + 5}) {
      const Bytes from = random_bytes(bytes, 3);
      const std::size_t count = bytes / size;
      Bytes expected(from), got(bytes), back(bytes);
      if (size > 1)
        for (std::size_t i = 0; i < count; ++i)
          for (std::size_t k = 0; k < size; ++k) expected[k * count + i] = from[i * size + k];
      byte_shuffle(from, size, got.data());
      EXPECT_EQ(got, expected) << size << " " << bytes;
      byte_unshuffle(got, size, back.data());
      EXPECT_EQ(back, from) << size << " " << bytes;
    }
}

constexpr Codec kCodecs[] = {Codec::fast, Codec::small, Codec::none, Codec::deflate};

H5Z_filter_t filter_of(Codec codec) {
  return form_of(codec) == ChunkForm::zlib ? H5Z_FILTER_DEFLATE : SHARDWRIGHT_ZSTD_FILTER_ID;
}

TEST(Codec, EverySizeComesBack) {
  ChunkDecoder decoder;
  for (const Codec codec : kCodecs) {
    ChunkEncoder encoder(codec);
    for (const std::size_t size : {1, 2, 4, 8})
      for (const std::size_t count :
           {1, 2, 3, 5, 7, 31, 64, 127, 255, 256, 257, 4099, 65536 + 1, 131072 - 3, 131072, 150000}) {
        if (count * size > kMaxChunkBytes) continue;
        for (const Bytes& raw :
             {random_bytes(count * size, 5), Bytes(count * size),
              size == 2 || size == 4 ? weights(count, size, 6) : random_bytes(count * size, 7)}) {
          Bytes stored, back(raw.size());
          encoder.encode(raw, size, stored);
          decoder.decode(stored, size, back);
          ASSERT_EQ(back, raw) << name(codec) << " " << size << " " << count;
          ASSERT_EQ(form_of(stored), form_of(codec));
          if (codec == Codec::deflate) {
            ASSERT_LE(stored.size(), raw.size() + 4 + 6 + 5 * (raw.size() / 65535 + 1));
            continue;
          }
          // One frame that says what it holds, and never much larger than the data.
          ASSERT_EQ(ZSTD_getFrameContentSize(stored.data(), stored.size()), raw.size());
          ASSERT_EQ(ZSTD_findFrameCompressedSize(stored.data(), stored.size()), stored.size() - 4);
          ASSERT_LE(stored.size(), raw.size() + 4 + 9 + 3 * (raw.size() / 131072 + 1));
        }
      }
  }
}

TEST(Codec, WhatDoesNotShrinkIsRawBlocks) {
  const Bytes raw = random_bytes(300001, 8);
  Bytes fast, none;
  ChunkEncoder(Codec::fast).encode(raw, 1, fast);
  ChunkEncoder(Codec::none).encode(raw, 1, none);
  EXPECT_EQ(fast, none);
}

// Small chunks must not lose what byte planes gain: a Huffman table per plane, not one for all.
TEST(Codec, SmallChunksCompressAsWellAsLargeOnes) {
  ChunkEncoder encoder(Codec::fast);
  for (const std::size_t size : {2, 4}) {
    Bytes stored;
    const Bytes large = weights(kMaxChunkBytes / size, size, 9);
    encoder.encode(large, size, stored);
    const double whole = static_cast<double>(stored.size()) / static_cast<double>(large.size());
    const Bytes small(large.begin(), large.begin() + (48 << 10));
    encoder.encode(small, size, stored);
    const double part = static_cast<double>(stored.size()) / static_cast<double>(small.size());
    EXPECT_LT(whole, size == 2 ? 0.70 : 0.86);
    EXPECT_LT(part, whole * 1.02);
  }
}

TEST(Codec, DeflateShrinksWeights) {
  for (const std::size_t size : {2, 4}) {
    const Bytes raw = weights(kMaxChunkBytes / size, size, 9);
    Bytes stored;
    ChunkEncoder(Codec::deflate).encode(raw, size, stored);
    EXPECT_LT(static_cast<double>(stored.size()) / static_cast<double>(raw.size()), size == 2 ? 0.72 : 0.88);
  }
}

TEST(Codec, Libhdf5ReadsOursAndWeReadIts) {
  for (const DType type : {DType::u8, DType::u16, DType::f32, DType::f64})
    for (const std::size_t count : {1, 7, 1000, 70001}) {
      const std::size_t size = size_of(type);
      const Bytes raw = size == 4 ? weights(count, 4, 10) : random_bytes(count * size, 11);
      for (const Codec codec : kCodecs) {
        Bytes stored, back(raw.size());
        ChunkEncoder(codec).encode(raw, size, stored);
        OneChunk ours(type, count, filter_of(codec));
        ASSERT_TRUE(ours.write_stored(stored));
        ASSERT_TRUE(ours.read(back));
        EXPECT_EQ(back, raw);
      }
      for (const H5Z_filter_t filter : {SHARDWRIGHT_ZSTD_FILTER_ID, H5Z_FILTER_DEFLATE}) {
        OneChunk theirs(type, count, filter);
        ASSERT_TRUE(theirs.write(raw));
        Bytes back(raw.size());
        ChunkDecoder().decode(theirs.stored(), size, back);
        EXPECT_EQ(back, raw);
      }
    }
}

TEST(Codec, EveryFlippedBitIsDetected) {
  ChunkDecoder decoder;
  for (const Codec codec : kCodecs) {
    const Bytes raw = weights(101, 4, 12);
    Bytes stored, back(raw.size());
    ChunkEncoder(codec).encode(raw, 4, stored);
    for (std::size_t bit = 0; bit < stored.size() * 8; ++bit) {
      stored[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      try {
        decoder.decode(stored, 4, back);
        ADD_FAILURE() << "bit " << bit;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::damaged);
      }
      stored[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    decoder.decode(stored, 4, back);
    EXPECT_EQ(back, raw);
  }
}

// Damage behind a right checksum, and requests of another size, are errors too; none crashes (run under
// ASan).
class DamageBehindTheChecksum : public testing::TestWithParam<Codec> {};

TEST_P(DamageBehindTheChecksum, IsDetected) {
  const Bytes raw = weights(1001, 4, 13);
  Bytes stored, back(raw.size());
  ChunkEncoder(GetParam()).encode(raw, 4, stored);
  ChunkDecoder decoder;
  const auto seal = [](Bytes frame) {
    const std::uint32_t sum = fletcher32(frame);
    frame.resize(frame.size() + 4);
    std::memcpy(frame.data() + frame.size() - 4, &sum, 4);
    return frame;
  };
  const Bytes frame(stored.begin(), stored.end() - 4);
  int silent = 0;
  for (std::size_t i = 0; i < frame.size(); ++i) {
    Bytes bad = frame;
    bad[i] ^= std::byte{0x10};
    try {
      decoder.decode(seal(bad), 4, back);
      ++silent;  // other values in a well-formed frame: what the table's XXH3 is for
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::damaged);
    }
  }
  EXPECT_LT(silent, static_cast<int>(frame.size()));
  for (std::size_t n = 0; n < frame.size(); n += 7) {
    Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_THROW(decoder.decode(seal(cut), 4, back), Error);
  }
  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  EXPECT_THROW(decoder.decode(seal(twice), 4, back), Error);
  for (const std::size_t other : {std::size_t{0}, raw.size() - 4, raw.size() + 4, raw.size() * 2}) {
    Bytes wrong(other);
    EXPECT_THROW(decoder.decode(stored, 4, wrong), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Codec, DamageBehindTheChecksum, testing::Values(Codec::fast, Codec::deflate),
                         [](const auto& of) { return std::string(name(of.param)); });

// Stock readers with our plugin must fail loudly where the registered plugin of the time returned garbage.
TEST(Filter, DamagedFrameIsAnErrorInLibhdf5) {
  const Bytes raw = weights(1001, 4, 14);
  Bytes stored, back(raw.size());
  ChunkEncoder(Codec::fast).encode(raw, 4, stored);
  for (std::size_t i = 0; i < stored.size(); i += 3) {
    Bytes bad = stored;
    bad[i] ^= std::byte{1};
    OneChunk chunk(DType::f32, 1001, SHARDWRIGHT_ZSTD_FILTER_ID);
    ASSERT_TRUE(chunk.write_stored(bad));
    EXPECT_FALSE(chunk.read(back)) << i;
  }
}

TEST(Codec, Names) {
  EXPECT_EQ(parse_codec("auto"), Codec::fast);
  for (const Codec codec : kCodecs) EXPECT_EQ(parse_codec(name(codec)), codec);
  EXPECT_THROW(parse_codec("lz4"), Error);
}

}  // namespace
}  // namespace shardwright::ckpt
