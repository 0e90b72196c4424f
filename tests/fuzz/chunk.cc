// A stored chunk: Fletcher32, one zstd frame or zlib stream, shuffled bytes. What is accepted is exactly as
// long as was promised, is what the filter for stock tools makes of the same bytes, and survives being stored
// again.
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "ckpt/byte_shuffle.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/plugin/zstd_filter.h"
#include "tests/fuzz/input.h"

namespace {

using namespace shardwright;
using ckpt::ChunkDecoder;
using ckpt::ChunkEncoder;
using ckpt::Codec;
using fuzz::require;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kMaxRaw = 1u << 16;  // less than a real chunk may hold, for speed
constexpr std::size_t kElementSizes[] = {1, 2, 4, 8};

/// HDF5's definition, word by word.
std::uint32_t plain_fletcher32(std::span<const std::byte> data) {
  std::uint64_t sum1 = 0, sum2 = 0;
  const auto fold = [](std::uint64_t sum) {
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
  };
  for (std::size_t i = 0; i < data.size(); i += 2) {
    const auto low = i + 1 < data.size() ? std::to_integer<std::uint64_t>(data[i + 1]) : 0;
    sum1 = fold(sum1 + (std::to_integer<std::uint64_t>(data[i]) << 8 | low));
    sum2 = fold(sum2 + sum1);
  }
  return static_cast<std::uint32_t>(sum2 << 16 | sum1);
}

void append_fletcher32(Bytes& stored) {
  const std::uint32_t sum = plain_fletcher32(stored);
  require(sum == ckpt::fletcher32(stored), "fletcher32() is HDF5's");
  for (unsigned i = 0; i < 4; ++i) stored.push_back(static_cast<std::byte>(sum >> (8 * i) & 0xff));
}

/// What libhdf5 would make of the frame, with the plugin or with zlib, then unshuffled as its shuffle filter
/// does. Nothing where zlib is stricter: it takes no code that counts symbols which cannot occur.
std::optional<Bytes> as_stock_tools(std::span<const std::byte> frame, std::size_t element_size,
                                    std::size_t raw_size) {
  Bytes shuffled(raw_size);
  if (ckpt::form_of(frame) == ckpt::ChunkForm::zlib) {
    uLongf n = raw_size;
    if (uncompress(reinterpret_cast<Bytef*>(shuffled.data()), &n,
                   reinterpret_cast<const Bytef*>(frame.data()), frame.size()) != Z_OK)
      return std::nullopt;
    shuffled.resize(n);
  } else {
    std::size_t room = frame.size();
    void* buffer = std::malloc(room);
    std::memcpy(buffer, frame.data(), room);
    const std::size_t n =
        shardwright_zstd_filter.filter(H5Z_FLAG_REVERSE, 0, nullptr, frame.size(), &room, &buffer);
    const auto* bytes = static_cast<const std::byte*>(buffer);
    shuffled.assign(bytes, bytes + n);
    std::free(buffer);
  }
  Bytes raw(shuffled.size());
  const std::size_t count = raw.size() / element_size;
  for (std::size_t i = 0; i < raw.size(); ++i)
    raw[i] = i < count * element_size ? shuffled[i % element_size * count + i / element_size] : shuffled[i];
  return raw;
}

void round_trip(std::span<const std::byte> raw, std::size_t element_size, Codec codec,
                ChunkDecoder& decoder) {
  static ChunkEncoder encoders[] = {ChunkEncoder(Codec::fast), ChunkEncoder(Codec::small),
                                    ChunkEncoder(Codec::none), ChunkEncoder(Codec::deflate)};
  Bytes stored, again(raw.size());
  encoders[static_cast<std::size_t>(codec)].encode(raw, element_size, stored);
  require(stored.size() <= raw.size() + 64, "a chunk that would not shrink is stored raw");
  require(ckpt::form_of(stored) == ckpt::form_of(codec), "a chunk shows what it is");
  decoder.decode(stored, element_size, again);
  require(std::equal(raw.begin(), raw.end(), again.begin()), "decode(encode(x)) is x");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ChunkDecoder decoder;
  fuzz::Input input(data, size);
  const std::uint8_t mode = input.byte();
  const std::size_t element_size = kElementSizes[mode & 3];
  const auto codec = static_cast<Codec>(mode >> 2 & 3);
  if (mode & 0x40) {
    const auto raw = input.rest();
    if (!raw.empty()) round_trip(raw, element_size, codec, decoder);
    return 0;
  }
  const std::size_t raw_size = 1 + input.number() % kMaxRaw;
  const auto rest = input.rest();
  Bytes stored(rest.begin(), rest.end()), raw(raw_size);
  if (mode & 0x80) append_fletcher32(stored);
  try {
    decoder.decode(stored, element_size, raw);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged, "what is refused is called damaged");
    return 0;
  }
  const auto theirs = as_stock_tools(std::span(stored).first(stored.size() - 4), element_size, raw_size);
  require(!theirs || *theirs == raw, "stock tools read the same");
  round_trip(raw, element_size, codec, decoder);
  return 0;
}
