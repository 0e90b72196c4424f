// The table of a shard's chunks, and the digest of the bytes beside them. Rows that are accepted lie inside
// the file, apart from each other, and are written back as they were.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/rest_digest.h"
#include "tests/fuzz/input.h"

using namespace shardwright;
using fuzz::require;

namespace {
constexpr std::uint64_t kCounted = 2048;  // bytes of a file that are looked at one by one
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint64_t file_bytes = input.number();
  const auto table = input.rest();
  std::vector<ckpt::ChunkRow> rows;
  try {
    rows = ckpt::parse_table(table, file_bytes, "shard");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged, "what is refused is called damaged");
    return 0;
  }
  require(std::ranges::equal(ckpt::table_bytes(rows), table), "a table is written back as it was read");

  // A row of no bytes, which no decoder takes, may lie where another one begins.
  const auto by_address = [](const ckpt::ChunkRow& a, const ckpt::ChunkRow& b) {
    return std::pair(a.address, a.stored_bytes) < std::pair(b.address, b.stored_bytes);
  };
  std::vector<ckpt::ChunkRow> sorted = rows;
  std::ranges::stable_sort(sorted, by_address);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::uint64_t end = i + 1 < sorted.size() ? sorted[i + 1].address : file_bytes;
    require(sorted[i].address <= end && sorted[i].stored_bytes <= end - sorted[i].address,
            "each row ends before the next begins, the last inside the file");
  }

  // Each byte beside the chunks is read once, in order, in pieces that fit memory.
  if (file_bytes > kCounted) return 0;
  std::vector<std::byte> contents(file_bytes), rest;
  for (std::size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<std::byte>(i * 131 >> 3 & 0xff);
  std::vector<bool> in_chunk(file_bytes);
  for (const ckpt::ChunkRow& row : rows)
    for (std::uint64_t i = 0; i < row.stored_bytes; ++i) in_chunk[row.address + i] = true;
  for (std::size_t i = 0; i < contents.size(); ++i)
    if (!in_chunk[i]) rest.push_back(contents[i]);
  const auto digest = ckpt::rest_digest(rows, file_bytes, [&](std::uint64_t at, std::span<std::byte> to) {
    require(at <= file_bytes && to.size() <= file_bytes - at, "nothing is read beyond the file");
    std::copy_n(contents.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
  });
  require(digest == ckpt::xxh3_128(rest), "the digest is that of the bytes beside the chunks");
  return 0;
}
