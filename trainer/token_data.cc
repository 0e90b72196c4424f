#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "trainer/data.h"

namespace shardwright::trainer {
namespace {

static_assert(std::endian::native == std::endian::little, "u16 files are mapped as they are");

enum class Format { text, u16 };

Format format_of(const std::string& file, const std::string& format) {
  if (format == "text") return Format::text;
  if (format == "u16") return Format::u16;
  if (format == "auto") return file.ends_with(".bin") ? Format::u16 : Format::text;
  throw Error(ErrorCode::usage,
              fmt::format("[data] format: \"{}\" is unknown; use auto, text or u16", format));
}

class Mapping {
 public:
  explicit Mapping(const std::string& file) {
    // Not blocking: a FIFO of that name must be an error, not a hang.
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      if (errno == ENOENT || errno == ENOTDIR)
        throw Error(ErrorCode::missing,
                    fmt::format("{}: no such data file; [data] names the files to read", file), file);
      throw_errno(errno, "cannot open data file", file);
    }
    struct stat info {};
    const int stat_result = ::fstat(fd, &info);
    const int stat_error = errno;
    if (stat_result == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      bytes_ = static_cast<std::size_t>(info.st_size);
      data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    }
    const int map_error = errno;
    ::close(fd);
    if (stat_result != 0) throw_errno(stat_error, "cannot read data file", file);
    if (!S_ISREG(info.st_mode))
      throw Error(ErrorCode::usage,
                  fmt::format("{}: not a regular file; [data] names files of tokens or text", file), file);
    if (data_ == MAP_FAILED) throw_errno(map_error, "cannot map data file", file);
  }
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;  // null for an empty file
  std::size_t bytes_ = 0;
};

struct Segment {
  Mapping mapping;
  std::int64_t first = 0;  // number of its first token
  std::int64_t count = 0;
};

template <typename Token>
const Token* tokens_of(const Segment& segment) {
  return reinterpret_cast<const Token*>(segment.mapping.bytes().data());
}

/// Position of the first token at or above `vocab`. Looks block by block at the maximum, which vectorises,
/// and at single tokens only in a block that has one.
template <typename Token>
std::optional<std::int64_t> first_outside(const Segment& segment, std::int64_t vocab) {
  constexpr std::int64_t kBlock = 4096;
  const Token* tokens = tokens_of<Token>(segment);
  for (std::int64_t begin = 0; begin < segment.count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, segment.count);
    Token largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, tokens[i]);
    if (largest < vocab) continue;
    for (std::int64_t i = begin; i < end; ++i)
      if (tokens[i] >= vocab) return i;
  }
  return std::nullopt;
}

template <typename Token>
void check_range(const Segment& segment, const std::string& file, std::int64_t vocab) {
  if (const auto at = first_outside<Token>(segment, vocab))
    throw Error(
        ErrorCode::usage,
        fmt::format(
            "{}: token {} at position {} is outside the vocabulary of {}; [model] vocab must be larger "
            "than every token{}",
            file, tokens_of<Token>(segment)[*at], *at, vocab,
            sizeof(Token) == 1 ? " (256 holds every byte of text)" : ""),
        file);
}

/// Copies tokens [first, first + count) of a segment, counted from its start, widening them.
template <typename Token>
void widen(const Segment& segment, std::int64_t first, std::int64_t count, std::int32_t* out) {
  const Token* tokens = tokens_of<Token>(segment) + first;
  for (std::int64_t i = 0; i < count; ++i) out[i] = tokens[i];
}

}  // namespace

struct TokenData::State {
  Format format = Format::text;
  std::vector<Segment> segments;
  std::int64_t tokens = 0;

  void copy(std::int64_t first, std::int64_t count, std::int32_t* out) const {
    auto segment = std::upper_bound(segments.begin(), segments.end(), first,
                                    [](std::int64_t value, const Segment& s) { return value < s.first; });
    --segment;
    while (count > 0) {
      const std::int64_t at = first - segment->first;
      const std::int64_t here = std::min(count, segment->count - at);
      if (format == Format::text)
        widen<std::uint8_t>(*segment, at, here, out);
      else
        widen<std::uint16_t>(*segment, at, here, out);
      first += here;
      count -= here;
      out += here;
      ++segment;
    }
  }
};

TokenData TokenData::open(const std::vector<std::string>& files, const std::string& format,
                          std::int64_t vocab) {
  if (files.empty())
    throw Error(ErrorCode::usage,
                "[data] train: no file is named; give one or more paths of text or u16 tokens");
  auto state = std::make_unique<State>();
  state->format = format_of(files.front(), format);
  const std::int64_t token_bytes = state->format == Format::text ? 1 : 2;
  for (const std::string& file : files) {
    if (format_of(file, format) != state->format)
      throw Error(
          ErrorCode::usage,
          fmt::format(
              "{}: text and u16 files cannot be joined; name files of one format, or set [data] format",
              file),
          file);
    Segment segment{Mapping(file), state->tokens, 0};
    const auto bytes = static_cast<std::int64_t>(segment.mapping.bytes().size());
    if (bytes % token_bytes != 0)
      throw Error(
          ErrorCode::usage,
          fmt::format(
              "{}: {} bytes are not a whole number of 16-bit tokens; u16 files hold two bytes a token", file,
              bytes),
          file);
    segment.count = bytes / token_bytes;
    if (state->format == Format::text)
      check_range<std::uint8_t>(segment, file, vocab);
    else
      check_range<std::uint16_t>(segment, file, vocab);
    state->tokens += segment.count;
    state->segments.push_back(std::move(segment));
  }
  return TokenData(std::move(state));
}

TokenData::TokenData(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenData::~TokenData() = default;
TokenData::TokenData(TokenData&&) noexcept = default;

std::int64_t TokenData::tokens() const { return state_->tokens; }

std::int64_t TokenData::samples(std::int64_t positions) const {
  return state_->tokens == 0 ? 0 : (state_->tokens - 1) / positions;
}

void TokenData::read(std::int64_t index, std::int64_t positions, std::int32_t* inputs,
                     std::int32_t* targets) const {
  assert(index >= 0 && index < samples(positions));
  const std::int64_t first = index * positions;
  state_->copy(first, positions, inputs);
  std::copy(inputs + 1, inputs + positions, targets);
  state_->copy(first + positions, 1, targets + positions - 1);
}

std::string TokenData::digest() const {
  ckpt::StreamDigest digest;
  for (const Segment& segment : state_->segments) digest.update(segment.mapping.bytes());
  return fmt::format("{}:{}:{}", state_->format == Format::text ? "text" : "u16", state_->tokens,
                     ckpt::to_hex(digest.finish()));
}

}  // namespace shardwright::trainer
