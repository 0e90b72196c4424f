#include "ckpt/zlib_stream.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kHeaderBytes = 2, kAdlerBytes = 4;
constexpr std::byte kDeflateWindow32K{0x78};
// The fastest; what levels above it save of weights and moments is little.
constexpr int kLevel = 1;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::damaged, "chunk: " + what); }

}  // namespace

struct ZlibEncoder::State {
  libdeflate_compressor* compressor;

  State() : compressor(libdeflate_alloc_compressor(kLevel)) {
    if (compressor == nullptr) throw std::bad_alloc();
  }
  ~State() { libdeflate_free_compressor(compressor); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

ZlibEncoder::ZlibEncoder() : state_(std::make_unique<State>()) {}
ZlibEncoder::~ZlibEncoder() = default;

void ZlibEncoder::encode(std::span<const std::byte> planes, std::vector<std::byte>& stream) {
  stream.resize(libdeflate_zlib_compress_bound(state_->compressor, planes.size()));
  const std::size_t size = libdeflate_zlib_compress(state_->compressor, planes.data(), planes.size(),
                                                    stream.data(), stream.size());
  if (size == 0) throw Error(ErrorCode::io, "libdeflate: output larger than its bound");
  stream.resize(size);
}

bool begins_as_zlib(std::span<const std::byte> frame) {
  return !frame.empty() && frame[0] == kDeflateWindow32K;
}

struct ZlibDecoder::State {
  libdeflate_decompressor* decompressor;

  State() : decompressor(libdeflate_alloc_decompressor()) {
    if (decompressor == nullptr) throw std::bad_alloc();
  }
  ~State() { libdeflate_free_decompressor(decompressor); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

ZlibDecoder::ZlibDecoder() : state_(std::make_unique<State>()) {}
ZlibDecoder::~ZlibDecoder() = default;

void ZlibDecoder::decode(std::span<const std::byte> stream, std::span<std::byte> raw) {
  if (stream.size() < kHeaderBytes + kAdlerBytes) refuse("zlib: too short for a stream");
  const unsigned flags = std::to_integer<unsigned>(stream[1]);
  const unsigned header = std::to_integer<unsigned>(stream[0]) << 8 | flags;
  if (!begins_as_zlib(stream) || header % 31 != 0 || (flags & 0x20) != 0)
    refuse(fmt::format("zlib: the header {:04x}; deflate, a window of 32 KiB and no dictionary are right",
                       header));
  const std::span<const std::byte> body = stream.subspan(kHeaderBytes);
  std::size_t taken = 0, filled = 0;
  const libdeflate_result result = libdeflate_deflate_decompress_ex(
      state_->decompressor, body.data(), body.size(), raw.data(), raw.size(), &taken, &filled);
  if (result == LIBDEFLATE_INSUFFICIENT_SPACE)
    refuse(fmt::format("zlib: it holds more than {} bytes", raw.size()));
  if (result != LIBDEFLATE_SUCCESS) refuse("zlib: the stream is damaged");
  if (filled != raw.size()) refuse(fmt::format("zlib: it holds {} bytes; {} are right", filled, raw.size()));
  if (taken + kAdlerBytes != body.size()) refuse("not exactly one zlib stream");
  const std::uint32_t adler = libdeflate_adler32(1, raw.data(), raw.size());
  std::byte sum[kAdlerBytes];
  for (unsigned i = 0; i < kAdlerBytes; ++i) sum[i] = static_cast<std::byte>(adler >> (24 - 8 * i) & 0xff);
  if (std::memcmp(sum, body.data() + taken, kAdlerBytes) != 0) refuse("zlib: its Adler-32 does not match");
}

}  // namespace shardwright::ckpt
