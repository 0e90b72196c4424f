#include "ckpt/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

Digest128 from(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

}  // namespace

std::string to_hex(const Digest128& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

Digest128 parse_digest(std::string_view hex) {
  Digest128 digest;
  bool good = hex.size() == 32;
  for (std::size_t i = 0; good && i < 32; ++i) {
    const char c = hex[i];
    const bool is_digit = c >= '0' && c <= '9';
    good = is_digit || (c >= 'a' && c <= 'f');
    const auto nibble = static_cast<std::uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
    std::uint64_t& half = i < 16 ? digest.high : digest.low;
    half = half << 4 | nibble;
  }
  if (!good)
    throw Error(ErrorCode::damaged,
                fmt::format("digest '{}': malformed; 32 lower-case hex digits are right", hex));
  return digest;
}

std::uint64_t xxh3_64(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

Digest128 xxh3_128(std::span<const std::byte> data) { return from(XXH3_128bits(data.data(), data.size())); }

struct StreamDigest::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

StreamDigest::StreamDigest() : state_(std::make_unique<State>()) {}
StreamDigest::~StreamDigest() = default;

void StreamDigest::update(std::span<const std::byte> data) {
  XXH3_128bits_update(state_->xxh, data.data(), data.size());
}

Digest128 StreamDigest::finish() const { return from(XXH3_128bits_digest(state_->xxh)); }

std::string sign_record(const std::string& json_line) {
  return fmt::format("{}\n{:016x}\n", json_line, xxh3_64(std::as_bytes(std::span(json_line))));
}

std::string open_record(const std::string& contents, const std::string& path) {
  const std::size_t newline = contents.find('\n');
  if (newline == std::string::npos || contents.size() != newline + 1 + 16 + 1)
    throw Error(ErrorCode::damaged, path + ": torn; a line of JSON and a line of 16 hex digits are right",
                path);
  std::string json = contents.substr(0, newline);
  if (sign_record(json) != contents)
    throw Error(ErrorCode::damaged, path + ": its digest does not match; the file was changed or damaged",
                path);
  return json;
}

}  // namespace shardwright::ckpt
