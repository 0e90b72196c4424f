// The digest of what is in a shard beside its chunks: headers, indexes and the table. Internal to shard writer and
// reader.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

/// Parses and checks a table: rows inside the file, not overlapping. Error(damaged) names `path`.
std::vector<ChunkRow> parse_table(std::span<const std::byte> bytes, std::uint64_t file_bytes, const std::string& path);
/// Inverse: 24 little-endian bytes a row.
std::vector<std::byte> table_bytes(std::span<const ChunkRow> rows);

/// XXH3-128 of all bytes of the file outside the rows, in file order. `read` fills its span from an offset.
Digest128 rest_digest(std::span<const ChunkRow> rows, std::uint64_t file_bytes,
                      const std::function<void(std::uint64_t, std::span<std::byte>)>& read);

}  // namespace shardwright::ckpt
