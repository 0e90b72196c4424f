// The HDF5 side of a shard that is being written: datasets, chunks as they are, the table. Internal to the
// shard writer.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ckpt/hdf5_file_driver.h"
#include "ckpt/hdf5_handle.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {

/// All of it is called from one thread. Every call throws Error(io | no_space) naming the file.
class ShardFile {
 public:
  /// `form` is that of all chunks; `path` is for messages.
  ShardFile(WritableFile& file, const std::string& path, ChunkForm form);

  /// A chunked dataset with the filters of the format, or, for a box of no elements, one without storage.
  Hdf5Handle create_dataset(const BoxRecord& box);
  /// Writes chunk `index` of the dataset's grid as it is; returns its address in the file.
  std::uint64_t write_chunk(hid_t dataset, const BoxRecord& box, std::uint64_t index,
                            std::span<const std::byte> stored);
  /// Compares libhdf5's own index with what was written for the box's last chunk. (It searches from the first
  /// chunk on, so asking for all of them would take quadratic time.)
  void check_last_chunk(hid_t dataset, const BoxRecord& box, const ChunkRow& row) const;
  /// The contiguous dataset /chunks; returns its address, 0 if it has no rows.
  std::uint64_t write_table(std::span<const ChunkRow> rows);
  void close() { output_.close(); }

 private:
  void must(herr_t status, const std::string& what) const;
  Hdf5Handle properties(hid_t kind) const;
  Hdf5Handle dataspace(const std::vector<hsize_t>& shape) const;
  void create_group(const std::string& group);

  std::string path_;
  ChunkForm form_;
  Hdf5Output output_;
  Hdf5Handle links_;
  std::set<std::string> groups_;
};

}  // namespace shardwright::ckpt
