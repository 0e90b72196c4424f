#define ZSTD_STATIC_LINKING_ONLY  // ZSTD_c_literalCompressionMode
#include "ckpt/chunk_codec.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <optional>

#include "ckpt/byte_shuffle.h"
#include "ckpt/error.h"
#include "ckpt/zlib_stream.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kChecksumBytes = 4;
constexpr std::size_t kBlockBytes = 128u << 10;  // a zstd block's limit

/// A failure here is a mistake of this program or want of memory, never of the data.
std::size_t checked(std::size_t result) {
  if (ZSTD_isError(result))
    throw Error(ErrorCode::io,
                fmt::format("zstd: {}; a supported libzstd is needed", ZSTD_getErrorName(result)));
  return result;
}

void put_little_endian(std::byte* to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

/// A frame of raw blocks (RFC 8878): magic, single-segment header with content size, blocks of up to 128 KiB.
void raw_frame(std::span<const std::byte> content, std::vector<std::byte>& frame) {
  const std::uint64_t size = content.size();
  const unsigned flag = size < 256 ? 0 : size < 65536 + 256 ? 1 : size <= 0xffffffffu ? 2 : 3;
  const std::size_t size_bytes = std::size_t{1} << flag;
  const std::size_t blocks = std::max<std::size_t>(1, (content.size() + kBlockBytes - 1) / kBlockBytes);
  frame.resize(4 + 1 + size_bytes + 3 * blocks + content.size());
  std::byte* to = frame.data();
  put_little_endian(to, ZSTD_MAGICNUMBER, 4);
  to[4] = static_cast<std::byte>(flag << 6 | 1u << 5);
  put_little_endian(to + 5, flag == 1 ? size - 256 : size, size_bytes);
  to += 5 + size_bytes;
  for (std::size_t block = 0, at = 0; block < blocks; ++block, at += kBlockBytes) {
    const std::size_t n = std::min(kBlockBytes, content.size() - at);
    put_little_endian(to, n << 3 | (block + 1 == blocks ? 1u : 0u), 3);
    if (n > 0) std::memcpy(to + 3, content.data() + at, n);
    to += 3 + n;
  }
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::damaged, "chunk: " + what); }

}  // namespace

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::fast:
      return "fast";
    case Codec::small:
      return "small";
    case Codec::none:
      return "none";
    case Codec::deflate:
      return "deflate";
  }
  return "unknown";
}

Codec parse_codec(std::string_view text) {
  if (text == "fast" || text == "auto") return Codec::fast;
  if (text == "small") return Codec::small;
  if (text == "none") return Codec::none;
  if (text == "deflate") return Codec::deflate;
  throw Error(ErrorCode::usage,
              fmt::format("codec '{}': unknown; auto, fast, small, none and deflate are known", text));
}

ChunkForm form_of(Codec codec) { return codec == Codec::deflate ? ChunkForm::zlib : ChunkForm::zstd; }

ChunkForm form_of(std::span<const std::byte> stored) {
  return begins_as_zlib(stored) ? ChunkForm::zlib : ChunkForm::zstd;
}

struct ChunkEncoder::State {
  Codec codec;
  ZSTD_CCtx* context;
  std::optional<ZlibEncoder> zlib;  // for deflate
  std::vector<std::byte> shuffled;

  explicit State(Codec c) : codec(c), context(ZSTD_createCCtx()) {
    if (context == nullptr) throw std::bad_alloc();
    if (codec == Codec::deflate) zlib.emplace();
    if (codec == Codec::fast) {
      // Matches in weights and moments cost more than Huffman coding alone saves, in bytes and in time.
      checked(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, -50));
      checked(ZSTD_CCtx_setParameter(context, ZSTD_c_minMatch, 7));
      checked(ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable));
    } else {
      checked(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 3));
    }
  }
  ~State() { ZSTD_freeCCtx(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// One frame of `planes`, which are byte planes of `plane_bytes` each (and what is left over).
  void compress(std::span<const std::byte> planes, std::size_t plane_bytes, std::vector<std::byte>& frame) {
    checked(ZSTD_CCtx_reset(context, ZSTD_reset_session_only));
    const bool aligned = plane_bytes == 0 || plane_bytes >= planes.size() || plane_bytes % kBlockBytes == 0;
    if (aligned) {
      frame.resize(ZSTD_compressBound(planes.size()));
      frame.resize(
          checked(ZSTD_compress2(context, frame.data(), frame.size(), planes.data(), planes.size())));
      return;
    }
    // A block, and so a Huffman table, must not straddle two planes: end a block at each boundary.
    checked(ZSTD_CCtx_setPledgedSrcSize(context, planes.size()));
    frame.resize(ZSTD_compressBound(planes.size()) + planes.size() / plane_bytes * 16 + 64);
    ZSTD_outBuffer out{frame.data(), frame.size(), 0};
    for (std::size_t at = 0; at < planes.size(); at += plane_bytes) {
      const std::size_t n = std::min(plane_bytes, planes.size() - at);
      const bool last = at + n == planes.size();
      ZSTD_inBuffer in{planes.data() + at, n, 0};
      const std::size_t left =
          checked(ZSTD_compressStream2(context, &out, &in, last ? ZSTD_e_end : ZSTD_e_flush));
      if (left != 0 || in.pos != n) throw Error(ErrorCode::io, "zstd: output larger than its bound");
    }
    frame.resize(out.pos);
  }
};

ChunkEncoder::ChunkEncoder(Codec codec) : state_(std::make_unique<State>(codec)) {}
ChunkEncoder::~ChunkEncoder() = default;
ChunkEncoder::ChunkEncoder(ChunkEncoder&&) noexcept = default;

void ChunkEncoder::encode(std::span<const std::byte> raw, std::size_t element_size,
                          std::vector<std::byte>& stored) {
  State& s = *state_;
  s.shuffled.resize(raw.size());
  byte_shuffle(raw, element_size, s.shuffled.data());
  if (s.zlib) {
    s.zlib->encode(s.shuffled, stored);
  } else {
    if (s.codec != Codec::none) s.compress(s.shuffled, raw.size() / element_size, stored);
    if (s.codec == Codec::none || stored.size() >= raw.size()) raw_frame(s.shuffled, stored);
  }
  const std::uint32_t sum = fletcher32(stored);
  stored.resize(stored.size() + kChecksumBytes);
  put_little_endian(stored.data() + stored.size() - kChecksumBytes, sum, kChecksumBytes);
}

struct ChunkDecoder::State {
  ZSTD_DCtx* context;
  ZlibDecoder zlib;
  std::vector<std::byte> shuffled;

  State() : context(ZSTD_createDCtx()) {
    if (context == nullptr) throw std::bad_alloc();
  }
  ~State() { ZSTD_freeDCtx(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void decode_zstd(std::span<const std::byte> frame, std::span<std::byte> planes) {
    if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != planes.size())
      refuse(fmt::format("its frame does not say that it holds {} bytes", planes.size()));
    if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
      refuse("not exactly one zstd frame");
    const std::size_t n =
        ZSTD_decompressDCtx(context, planes.data(), planes.size(), frame.data(), frame.size());
    if (ZSTD_isError(n)) refuse(fmt::format("zstd: {}", ZSTD_getErrorName(n)));
    if (n != planes.size()) refuse(fmt::format("it holds {} bytes; {} are right", n, planes.size()));
  }
};

ChunkDecoder::ChunkDecoder() : state_(std::make_unique<State>()) {}
ChunkDecoder::~ChunkDecoder() = default;
ChunkDecoder::ChunkDecoder(ChunkDecoder&&) noexcept = default;

std::size_t ChunkDecoder::scratch_bytes() const { return state_->shuffled.capacity(); }

void ChunkDecoder::decode(std::span<const std::byte> stored, std::size_t element_size,
                          std::span<std::byte> raw) {
  if (stored.size() <= kChecksumBytes) refuse("too short for a frame and its checksum");
  const std::span<const std::byte> frame = stored.first(stored.size() - kChecksumBytes);
  std::byte sum[kChecksumBytes];
  put_little_endian(sum, fletcher32(frame), kChecksumBytes);
  if (std::memcmp(sum, frame.data() + frame.size(), kChecksumBytes) != 0)
    refuse("its Fletcher32 does not match");

  State& s = *state_;
  std::span<std::byte> planes = raw;
  if (element_size > 1) {
    // Never made smaller: what it grows by again would be zeroed.
    if (s.shuffled.size() < raw.size()) s.shuffled.resize(raw.size());
    planes = std::span(s.shuffled).first(raw.size());
  }
  if (form_of(stored) == ChunkForm::zlib)
    s.zlib.decode(frame, planes);
  else
    s.decode_zstd(frame, planes);
  if (element_size > 1) byte_unshuffle(planes, element_size, raw.data());
}

}  // namespace shardwright::ckpt
