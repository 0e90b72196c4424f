#include <fmt/format.h>

#include "ckpt/error.h"
#include "ckpt/rest_digest.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {

ShardReader::ShardReader(OpenFiles& files, const std::string& directory, FileRecord record)
    : path_(directory + "/" + record.name), record_(std::move(record)), files_(files) {
  const auto file = files_.get(path_);
  const std::uint64_t size = file->size();
  if (size != record_.bytes)
    throw Error(ErrorCode::damaged, fmt::format("{}: has {} bytes; {} are right", path_, size, record_.bytes),
                path_);
  if (record_.table_address > size || record_.table_bytes > size - record_.table_address)
    throw Error(ErrorCode::damaged, path_ + ": its record places the chunk table outside the file", path_);
  std::vector<std::byte> bytes(record_.table_bytes);
  file->read(record_.table_address, bytes);
  if (xxh3_128(bytes) != record_.table)
    throw Error(ErrorCode::damaged, path_ + ": the digest of its chunk table does not match", path_);
  table_ = parse_table(bytes, size, path_);
}

void ShardReader::read_stored(std::uint64_t chunk, std::vector<std::byte>& stored) const {
  if (chunk >= table_.size())
    throw Error(ErrorCode::damaged,
                fmt::format("{}: chunk {} asked for; it has {}", path_, chunk, table_.size()), path_);
  const ChunkRow& row = table_[chunk];
  stored.resize(row.stored_bytes);
  files_.get(path_)->read(row.address, stored);
  if (xxh3_64(stored) != row.xxh3_64)
    throw Error(ErrorCode::damaged, fmt::format("{}: the digest of chunk {} does not match", path_, chunk),
                path_);
}

void ShardReader::will_need(std::uint64_t chunk) const {
  if (chunk < table_.size()) files_.get(path_)->will_need(table_[chunk].address, table_[chunk].stored_bytes);
}

Digest128 ShardReader::read_rest() const {
  const auto file = files_.get(path_);
  return rest_digest(table_, record_.bytes,
                     [&](std::uint64_t offset, std::span<std::byte> data) { file->read(offset, data); });
}

}  // namespace shardwright::ckpt
