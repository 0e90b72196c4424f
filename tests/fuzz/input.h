// How a fuzz target takes its input apart, and how it says that a rule does not hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>

namespace shardwright::fuzz {

/// Ends the process as a crash does: the input that led here is a finding.
inline void require(bool holds, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", rule);
  std::abort();
}

/// What `action` returns; that it throws is a finding.
template <class Action>
auto must(const char* rule, Action action) {
  try {
    return action();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "thrown: %s\n", e.what());
    require(false, rule);
    throw;
  }
}

/// The bytes of an input, taken from the front. Past their end there are zeros and empty texts.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const std::uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  /// A number below kFirstLong is its own byte; kRight stands for `right`, the one that the rest of the input
  /// makes the right one; else 1 to 8 bytes follow, little-endian. So most numbers are short, and mutations
  /// leave inputs whole.
  std::uint64_t number(std::uint64_t right = 0) {
    const std::uint8_t first = byte();
    if (first < kFirstLong) return first;
    if (first == kRight) return right;
    std::uint64_t value = 0;
    for (unsigned i = 0; i <= unsigned{first} - kFirstLong; ++i) value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }
  /// A length, then so many bytes.
  std::string text() {
    const std::uint64_t asked = number();  // in its own statement: it takes bytes too
    const std::uint64_t length = std::min<std::uint64_t>(asked, left_.size());
    const std::string value(reinterpret_cast<const char*>(left_.data()), length);
    left_ = left_.subspan(length);
    return value;
  }
  /// Up to the separator or the end; the separator is taken too.
  std::string until(char separator) {
    const auto end = std::find(left_.begin(), left_.end(), static_cast<std::uint8_t>(separator));
    const std::string value(left_.begin(), end);
    left_ = left_.subspan(std::min(value.size() + 1, left_.size()));
    return value;
  }
  std::span<const std::byte> rest() {
    const auto all = std::as_bytes(left_);
    left_ = {};
    return all;
  }
  std::string rest_text() {
    const auto all = rest();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }

  static constexpr std::uint8_t kFirstLong = 0xf7;
  static constexpr std::uint8_t kRight = 0xff;

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace shardwright::fuzz
