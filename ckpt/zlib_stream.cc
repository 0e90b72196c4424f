// The encoder knows one thing: byte planes. A plane of exponents shrinks by its Huffman code alone, one of
// low mantissa bits not at all, and a search for matches finds short accidental ones that cost more than
// they save; only runs are worth it. So each block is measured, and stored, Huffman coded, or that with runs.
#include "ckpt/zlib_stream.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>

#include "ckpt/error.h"
#include "ckpt/huffman_code.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kHeaderBytes = 2, kAdlerBytes = 4;
constexpr std::byte kDeflateWindow32K{0x78};
constexpr std::size_t kBlockBytes = 128u << 10;
constexpr std::size_t kSmallestPlane = 1u << 10;  // smaller ones share a block: each has a table of its own
constexpr std::size_t kMostStored = 65535;        // in one stored block
constexpr std::size_t kEndOfBlock = 256;
constexpr unsigned kLiteralLimit = 12;  // four codes and the rest of a byte fit 64 bits
constexpr std::size_t kShortestRun = 4, kLongestRun = 258;

/// What a run's length is written as (RFC 1951, 3.2.5).
struct RunLength {
  std::uint16_t symbol = 0;
  std::uint8_t extra_bits = 0;
  std::uint8_t extra = 0;
};

constexpr std::array<RunLength, kLongestRun + 1> run_lengths() {
  std::array<RunLength, kLongestRun + 1> table{};
  unsigned symbol = 257, length = 3;
  for (; symbol < 285; ++symbol) {
    const unsigned bits = symbol < 265 ? 0 : (symbol - 261) / 4;
    for (unsigned i = 0; i < 1u << bits; ++i, ++length)
      if (length <= kLongestRun)
        table[length] = {static_cast<std::uint16_t>(symbol), static_cast<std::uint8_t>(bits),
                         static_cast<std::uint8_t>(i)};
  }
  table[kLongestRun] = {285, 0, 0};
  return table;
}
constexpr std::array<RunLength, kLongestRun + 1> kRunLengths = run_lengths();

/// Bits from the lowest of each byte on. The memory must reach 8 bytes beyond what is written.
class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}
  /// Up to 56 bits between two calls of flush().
  void put(std::uint64_t bits, unsigned count) {
    bits_ |= bits << count_;
    count_ += count;
  }
  void flush() {
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(to_, &bits_, sizeof(bits_));
    } else {
      for (unsigned i = 0; i < 8; ++i) to_[i] = static_cast<std::byte>(bits_ >> 8 * i & 0xff);
    }
    to_ += count_ / 8;
    bits_ >>= count_ & ~7u;
    count_ &= 7;
  }
  void align() {
    count_ = (count_ + 7) & ~7u;
    flush();
  }
  /// At a byte's boundary only.
  void bytes(std::span<const std::byte> data) {
    std::memcpy(to_, data.data(), data.size());
    to_ += data.size();
  }
  std::byte* at() const { return to_; }

 private:
  std::byte* to_;
  std::uint64_t bits_ = 0;
  unsigned count_ = 0;
};

using Counts = std::array<std::uint32_t, kMaxHuffmanSymbols>;

/// Bytes by value. Four tables, because the same byte again would wait for its count to be written.
Counts count_bytes(std::span<const std::byte> data) {
  std::array<std::array<std::uint32_t, 256>, 4> of{};
  std::size_t i = 0;
  for (; i + 4 <= data.size(); i += 4)
    for (std::size_t k = 0; k < 4; ++k) ++of[k][std::to_integer<std::size_t>(data[i + k])];
  for (; i < data.size(); ++i) ++of[0][std::to_integer<std::size_t>(data[i])];
  Counts counts{};
  for (std::size_t b = 0; b < 256; ++b) counts[b] = of[0][b] + of[1][b] + of[2][b] + of[3][b];
  return counts;
}

/// Calls literal(byte) and run(length): so many times again the byte before.
template <typename Literal, typename Run>
void each_token(std::span<const std::byte> data, const Literal& literal, const Run& run) {
  for (std::size_t i = 0; i < data.size();) {
    const std::byte value = data[i++];
    literal(value);
    std::size_t end = i;
    while (end < data.size() && data[end] == value) ++end;
    for (std::size_t left = end - i; left >= kShortestRun; left = end - i) {
      const std::size_t length = std::min(left, kLongestRun);
      run(length);
      i += length;
    }
  }
}

/// The lengths of the codes, as a block's header has them: themselves coded, with repetitions.
class CodeLengths {
 public:
  /// Of the literals and lengths that are in use, then of the one distance.
  explicit CodeLengths(std::span<const HuffmanCode> codes) {
    literals_ = codes.size();
    while (literals_ > 257 && codes[literals_ - 1].length == 0) --literals_;
    std::array<std::uint8_t, kMaxHuffmanSymbols + 1> lengths;
    for (std::size_t i = 0; i < literals_; ++i) lengths[i] = codes[i].length;
    lengths[literals_] = 1;
    const std::size_t count = literals_ + 1;
    for (std::size_t i = 0; i < count;) {
      const std::uint8_t value = lengths[i];
      std::size_t end = i + 1;
      while (end < count && lengths[end] == value) ++end;
      if (value != 0) {
        add({value, 0, 0});
        ++i;
      }
      while (end - i >= 3) {
        const std::size_t n = std::min<std::size_t>(end - i, value != 0 ? 6 : 138);
        if (value != 0)
          add({16, 2, n - 3});
        else if (n <= 10)
          add({17, 3, n - 3});
        else
          add({18, 7, n - 11});
        i += n;
      }
      for (; i < end; ++i) add({value, 0, 0});
    }
    std::array<std::uint32_t, 19> counts{};
    for (std::size_t i = 0; i < used_; ++i) ++counts[items_[i].symbol];
    huffman_codes(counts, 7, codes_);
    while (transmitted_ > 4 && codes_[kOrder[transmitted_ - 1]].length == 0) --transmitted_;
    bits_ = 14 + 3 * transmitted_;
    for (std::size_t i = 0; i < used_; ++i) bits_ += codes_[items_[i].symbol].length + items_[i].extra_bits;
  }

  std::size_t bits() const { return bits_; }

  void write(BitWriter& out) const {
    out.put(literals_ - 257, 5);
    out.put(0, 5);  // one distance
    out.put(transmitted_ - 4, 4);
    for (std::size_t i = 0; i < transmitted_; ++i) {
      out.flush();
      out.put(codes_[kOrder[i]].length, 3);
    }
    for (std::size_t i = 0; i < used_; ++i) {
      out.flush();
      out.put(codes_[items_[i].symbol].bits, codes_[items_[i].symbol].length);
      out.put(items_[i].extra, items_[i].extra_bits);
    }
    out.flush();
  }

 private:
  struct Item {
    std::uint8_t symbol;
    std::uint8_t extra_bits;
    std::size_t extra;
  };
  static constexpr std::array<std::uint8_t, 19> kOrder = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                          11, 4,  12, 3, 13, 2, 14, 1, 15};
  void add(const Item& item) { items_[used_++] = item; }

  std::array<Item, kMaxHuffmanSymbols + 1> items_;
  std::array<HuffmanCode, 19> codes_;
  std::size_t literals_ = 0, used_ = 0, transmitted_ = 19, bits_ = 0;
};

void write_stored(std::span<const std::byte> data, bool last, BitWriter& out) {
  do {
    const std::span<const std::byte> piece = data.first(std::min(data.size(), kMostStored));
    data = data.subspan(piece.size());
    out.put(last && data.empty() ? 1 : 0, 3);
    out.align();
    out.put(piece.size(), 16);
    out.put(~piece.size() & 0xffff, 16);
    out.flush();
    if (!piece.empty()) out.bytes(piece);
  } while (!data.empty());
}

void write_literals(std::span<const std::byte> data, std::span<const HuffmanCode> codes, BitWriter& writer) {
  std::array<std::uint32_t, 256> table;  // length and bits of a code in one load
  for (std::size_t b = 0; b < table.size(); ++b)
    table[b] = static_cast<std::uint32_t>(codes[b].length) << 16 | codes[b].bits;
  BitWriter out = writer;  // in registers: bytes that are written may be anything, so its members too
  const auto put = [&](std::byte value) {
    const std::uint32_t code = table[std::to_integer<std::size_t>(value)];
    out.put(code & 0xffff, code >> 16);
  };
  std::size_t i = 0;
  for (; i + 4 <= data.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) put(data[i + k]);
    out.flush();
  }
  for (; i < data.size(); ++i) {
    put(data[i]);
    out.flush();
  }
  writer = out;
}

void write_tokens(std::span<const std::byte> data, std::span<const HuffmanCode> codes, BitWriter& out) {
  each_token(
      data,
      [&](std::byte value) {
        const HuffmanCode code = codes[std::to_integer<std::size_t>(value)];
        out.put(code.bits, code.length);
        out.flush();
      },
      [&](std::size_t length) {
        const RunLength run = kRunLengths[length];
        out.put(codes[run.symbol].bits, codes[run.symbol].length);
        out.put(run.extra, run.extra_bits);
        out.put(0, 1);  // the distance 1
        out.flush();
      });
}

void write_block(std::span<const std::byte> data, bool last, BitWriter& out) {
  Counts counts = count_bytes(data);
  const bool runs = *std::max_element(counts.begin(), counts.begin() + 256) > data.size() / 2;
  std::size_t bits = 3;
  if (runs) {
    counts = {};
    each_token(
        data, [&](std::byte value) { ++counts[std::to_integer<std::size_t>(value)]; },
        [&](std::size_t length) {
          ++counts[kRunLengths[length].symbol];
          bits += kRunLengths[length].extra_bits + 1u;
        });
  }
  counts[kEndOfBlock] = 1;
  std::array<HuffmanCode, kMaxHuffmanSymbols> codes;
  huffman_codes(counts, kLiteralLimit, codes);
  for (std::size_t s = 0; s < counts.size(); ++s) bits += std::size_t{counts[s]} * codes[s].length;
  // A gain of a percent is not worth the time of decoding it.
  const std::size_t raw_bits = data.size() * 8;
  if (bits + raw_bits / 64 >= raw_bits) return write_stored(data, last, out);
  const CodeLengths header(codes);
  if (bits + header.bits() + raw_bits / 64 >= raw_bits) return write_stored(data, last, out);
  out.put(last ? 5 : 4, 3);
  header.write(out);
  if (runs)
    write_tokens(data, codes, out);
  else
    write_literals(data, codes, out);
  out.put(codes[kEndOfBlock].bits, codes[kEndOfBlock].length);
  out.flush();
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::damaged, "chunk: " + what); }

void put_adler(std::span<const std::byte> data, std::byte* to) {
  const std::uint32_t sum = libdeflate_adler32(1, data.data(), data.size());
  for (unsigned i = 0; i < kAdlerBytes; ++i) to[i] = static_cast<std::byte>(sum >> (24 - 8 * i) & 0xff);
}

}  // namespace

void zlib_compress(std::span<const std::byte> planes, std::size_t plane_bytes,
                   std::vector<std::byte>& stream) {
  if (plane_bytes < kSmallestPlane || plane_bytes > planes.size()) plane_bytes = planes.size();
  // Each block may be stored: 5 bytes for each 65535 begun, and a bit of what was written before.
  const std::size_t blocks = 2 + (planes.size() / kBlockBytes) + planes.size() / kSmallestPlane;
  stream.resize(kHeaderBytes + planes.size() + 6 * blocks + 5 * (planes.size() / kMostStored + 1) +
                kAdlerBytes + 8);
  stream[0] = kDeflateWindow32K;
  stream[1] = std::byte{0x01};
  BitWriter out(stream.data() + kHeaderBytes);
  for (std::size_t plane = 0; plane < planes.size(); plane += plane_bytes) {
    const std::size_t end = std::min(plane + plane_bytes, planes.size());
    for (std::size_t at = plane; at < end; at += kBlockBytes) {
      const std::size_t size = std::min(kBlockBytes, end - at);
      write_block(planes.subspan(at, size), at + size == planes.size(), out);
    }
  }
  if (planes.empty()) write_stored(planes, true, out);
  out.align();
  std::size_t size = static_cast<std::size_t>(out.at() - stream.data());
  const std::size_t stored = kHeaderBytes + planes.size() + 5 * (planes.size() / kMostStored + 1);
  if (size > stored) {  // many small planes of which none shrinks: in as few stored blocks as there can be
    BitWriter plain(stream.data() + kHeaderBytes);
    write_stored(planes, true, plain);
    size = static_cast<std::size_t>(plain.at() - stream.data());
  }
  put_adler(planes, stream.data() + size);
  stream.resize(size + kAdlerBytes);
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
  std::byte sum[kAdlerBytes];
  put_adler(raw, sum);
  if (std::memcmp(sum, body.data() + taken, kAdlerBytes) != 0) refuse("zlib: its Adler-32 does not match");
}

}  // namespace shardwright::ckpt
