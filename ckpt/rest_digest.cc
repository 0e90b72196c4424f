#include "ckpt/rest_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/limits.h"

namespace shardwright::ckpt {
namespace {

static_assert(std::endian::native == std::endian::little, "the table is read and written as it is in memory");
static_assert(sizeof(ChunkRow) == 24);

/// Rows by address; chunks are written in order, so this sorts next to nothing. A row of no bytes, which
/// decoding refuses, comes before the one that begins where it lies.
std::vector<ChunkRow> by_address(std::span<const ChunkRow> rows) {
  std::vector<ChunkRow> sorted(rows.begin(), rows.end());
  std::ranges::sort(sorted, {}, [](const ChunkRow& row) { return std::pair(row.address, row.stored_bytes); });
  return sorted;
}

}  // namespace

std::vector<ChunkRow> parse_table(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                  const std::string& path) {
  if (bytes.size() % sizeof(ChunkRow) != 0)
    throw Error(ErrorCode::damaged, path + ": its chunk table has a partial row; rows of 24 bytes are right",
                path);
  std::vector<ChunkRow> rows(bytes.size() / sizeof(ChunkRow));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  std::uint64_t end = 0;
  for (const ChunkRow& row : by_address(rows)) {
    if (row.stored_bytes > kMaxStoredChunkBytes)
      throw Error(ErrorCode::damaged,
                  fmt::format("{}: its chunk table has a chunk of {} stored bytes; at most {} are right",
                              path, row.stored_bytes, kMaxStoredChunkBytes),
                  path);
    if (row.address < end || row.address > file_bytes || row.stored_bytes > file_bytes - row.address)
      throw Error(
          ErrorCode::damaged,
          fmt::format(
              "{}: its chunk table has {} bytes at {}; chunks inside the file, apart from each other, "
              "are right",
              path, row.stored_bytes, row.address),
          path);
    end = row.address + row.stored_bytes;
  }
  return rows;
}

std::vector<std::byte> table_bytes(std::span<const ChunkRow> rows) {
  std::vector<std::byte> bytes(rows.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), rows.data(), bytes.size());
  return bytes;
}

Digest128 rest_digest(std::span<const ChunkRow> rows, std::uint64_t file_bytes,
                      const std::function<void(std::uint64_t, std::span<std::byte>)>& read) {
  StreamDigest digest;
  std::vector<std::byte> buffer;
  const auto cover = [&](std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const std::uint64_t n = std::min<std::uint64_t>(end - begin, 1u << 20);
      buffer.resize(n);
      read(begin, buffer);
      digest.update(buffer);
      begin += n;
    }
  };
  std::uint64_t done = 0;
  for (const ChunkRow& row : by_address(rows)) {
    cover(done, row.address);
    done = row.address + row.stored_bytes;
  }
  cover(done, file_bytes);
  return digest.finish();
}

}  // namespace shardwright::ckpt
