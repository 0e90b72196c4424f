// XXH3 digests of stored bytes, and the two-line signed JSON records built on them (FORMAT.md, "Records").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/digest128.h"

namespace shardwright::ckpt {

/// Error(damaged) unless it is 32 lower-case hex digits.
Digest128 parse_digest(std::string_view hex);

std::uint64_t xxh3_64(std::span<const std::byte> data);
Digest128 xxh3_128(std::span<const std::byte> data);

/// XXH3-128 of bytes that arrive in pieces.
class StreamDigest {
 public:
  StreamDigest();
  ~StreamDigest();
  void update(std::span<const std::byte> data);
  Digest128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "<json>\n<16 hex digits of XXH3-64 of the first line without its newline>\n".
std::string sign_record(const std::string& json_line);
/// The JSON of a signed record; Error(damaged) naming `path` if it is torn or its digest is wrong.
std::string open_record(const std::string& contents, const std::string& path);

}  // namespace shardwright::ckpt
