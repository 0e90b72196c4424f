// The HDF5 filter that stock tools load: any bytes to decode, any parameters and sizes to encode. It keeps to
// libhdf5's rules for its buffer, and what it encodes it decodes to the same bytes.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ckpt/plugin/zstd_filter.h"
#include "tests/fuzz/input.h"

namespace {

using shardwright::fuzz::Input;
using shardwright::fuzz::require;

/// A buffer as libhdf5 hands it over: from malloc(), possibly with more room than bytes.
class Buffer {
 public:
  Buffer(std::span<const std::byte> bytes, std::size_t spare) : room_(bytes.size() + spare) {
    at_ = std::malloc(room_);
    if (!bytes.empty()) std::memcpy(at_, bytes.data(), bytes.size());
    size_ = bytes.size();
  }
  ~Buffer() { std::free(at_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// False for what the filter calls an error; then the buffer is untouched.
  bool apply(unsigned flags, const std::vector<unsigned>& parameters) {
    void* const before = at_;
    const std::size_t room_before = room_;
    const std::size_t n =
        shardwright_zstd_filter.filter(flags, parameters.size(), parameters.data(), size_, &room_, &at_);
    if (n == 0) {
      require(at_ == before && room_ == room_before, "an error leaves the buffer alone");
      return false;
    }
    require(at_ != nullptr && n <= room_, "the result fits the buffer");
    size_ = n;
    return true;
  }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(at_), size_}; }

 private:
  void* at_ = nullptr;
  std::size_t room_ = 0;
  std::size_t size_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::uint8_t mode = input.byte();
  const std::size_t spare = input.byte();
  std::vector<unsigned> parameters(mode & 7);
  for (unsigned& p : parameters) p = static_cast<unsigned>(input.number());
  const unsigned flags = mode & 0x40 ? H5Z_FLAG_OPTIONAL : 0;
  const auto rest = input.rest();
  const std::vector<std::byte> original(rest.begin(), rest.end());

  Buffer buffer(original, spare);
  if (mode & 0x80) {
    if (!buffer.apply(flags | H5Z_FLAG_REVERSE, parameters)) return 0;
    // What was decoded can be stored and read again.
    const std::vector<std::byte> decoded(buffer.bytes().begin(), buffer.bytes().end());
    if (decoded.size() > (1u << 16)) return 0;
    require(buffer.apply(flags, {1}) && buffer.apply(flags | H5Z_FLAG_REVERSE, {}) &&
                std::ranges::equal(buffer.bytes(), decoded),
            "decode(encode(decode(x))) is decode(x)");
    return 0;
  }
  const bool encoded = buffer.apply(flags, parameters);
  require(encoded, "any bytes can be encoded with any parameters");
  if (original.empty()) return 0;  // no chunk is empty
  require(buffer.apply(flags | H5Z_FLAG_REVERSE, parameters) && std::ranges::equal(buffer.bytes(), original),
          "decode(encode(x)) is x");
  return 0;
}
