#include "ckpt/shard_file.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "ckpt/hdf5_attributes.h"
#include "ckpt/hdf5_types.h"
#include "ckpt/plugin/zstd_filter.h"

namespace shardwright::ckpt {
namespace {

/// Extents as libhdf5 takes them; a scalar is stored with shape [1], which every tool can chunk.
std::vector<hsize_t> extents(const Dims& dims) {
  if (dims.empty()) return {1};
  return {dims.begin(), dims.end()};
}

std::vector<hsize_t> chunk_start(const BoxRecord& box, std::uint64_t index) {
  const Box part = chunk_box(box.box, box.chunk, index);
  std::vector<hsize_t> at;
  for (std::size_t d = 0; d < part.offset.size(); ++d) at.push_back(part.offset[d] - box.box.offset[d]);
  if (at.empty()) at.push_back(0);
  return at;
}

}  // namespace

ShardFile::ShardFile(WritableFile& file, const std::string& path, ChunkForm form)
    : path_(path),
      form_(form),
      output_(file, path),
      links_(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "create a property list", path) {
  must(H5Pset_char_encoding(links_, H5T_CSET_UTF8), "set a character set");
}

Hdf5Handle ShardFile::create_dataset(const BoxRecord& box) {
  create_group("/" + box.kind);
  const Hdf5Handle creation = properties(H5P_DATASET_CREATE);
  const std::vector<hsize_t> shape = extents(box.box.shape);
  if (box.chunks > 0) {
    const std::vector<hsize_t> chunk = extents(box.chunk);
    must(H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), "set a chunk");
    must(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "set the fill time");
    must(H5Pset_shuffle(creation), "set filter 2");
    // Decoding ignores the level; a tool that writes the dataset again takes this one.
    const unsigned level = 1;
    const H5Z_filter_t filter = form_ == ChunkForm::zlib ? H5Z_FILTER_DEFLATE : SHARDWRIGHT_ZSTD_FILTER_ID;
    must(H5Pset_filter(creation, filter, H5Z_FLAG_MANDATORY, 1, &level),
         fmt::format("set filter {}", filter));
    must(H5Pset_fletcher32(creation), "set filter 3");
  }
  const Hdf5Handle space = dataspace(shape);
  Hdf5Handle dataset(H5Dcreate2(output_.id(), box.dataset.c_str(), hdf5_type(box.dtype), space, links_,
                                creation, H5P_DEFAULT),
                     H5Dclose, "create " + box.dataset, path_);
  write_text_attribute(dataset, "tensor", box.tensor, path_);
  write_text_attribute(dataset, "kind", box.kind, path_);
  write_text_attribute(dataset, "dtype", std::string(name(box.dtype)), path_);
  write_dims_attribute(dataset, "global_shape", box.global_shape, path_);
  write_dims_attribute(dataset, "offset", box.box.offset, path_);
  output_.check();
  return dataset;
}

std::uint64_t ShardFile::write_chunk(hid_t dataset, const BoxRecord& box, std::uint64_t index,
                                     std::span<const std::byte> stored) {
  const std::vector<hsize_t> at = chunk_start(box, index);
  output_.await_write(stored);
  must(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at.data(), stored.size(), stored.data()), "write a chunk");
  output_.check();
  return output_.awaited_address();
}

void ShardFile::check_last_chunk(hid_t dataset, const BoxRecord& box, const ChunkRow& row) const {
  const std::vector<hsize_t> at = chunk_start(box, box.chunks - 1);
  unsigned mask = 1;
  haddr_t address = HADDR_UNDEF;
  hsize_t bytes = 0;
  must(H5Dget_chunk_info_by_coord(dataset, at.data(), &mask, &address, &bytes), "find a chunk");
  if (mask != 0 || address != row.address || bytes != row.stored_bytes)
    throw Error(
        ErrorCode::io,
        fmt::format("{}: libhdf5 placed a chunk of {} elsewhere than it wrote it", path_, box.dataset),
        path_);
}

std::uint64_t ShardFile::write_table(std::span<const ChunkRow> rows) {
  const Hdf5Handle type(H5Tcreate(H5T_COMPOUND, sizeof(ChunkRow)), H5Tclose, "create a type", path_);
  must(H5Tinsert(type, "address", 0, H5T_STD_U64LE), "add to a type");
  must(H5Tinsert(type, "stored", 8, H5T_STD_U32LE), "add to a type");
  must(H5Tinsert(type, "raw", 12, H5T_STD_U32LE), "add to a type");
  must(H5Tinsert(type, "xxh3_64", 16, H5T_STD_U64LE), "add to a type");
  const Hdf5Handle creation = properties(H5P_DATASET_CREATE);
  must(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "set the allocation time");
  must(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "set the fill time");
  const Hdf5Handle space = dataspace({rows.size()});
  const Hdf5Handle dataset(H5Dcreate2(output_.id(), "/chunks", type, space, links_, creation, H5P_DEFAULT),
                           H5Dclose, "create /chunks", path_);
  if (rows.empty()) return 0;
  must(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows.data()), "write /chunks");
  output_.check();
  const haddr_t address = H5Dget_offset(dataset);
  if (address == HADDR_UNDEF)
    throw Error(ErrorCode::io, path_ + ": libhdf5 gives no address for /chunks", path_);
  return address;
}

void ShardFile::must(herr_t status, const std::string& what) const { hdf5_must(status, what, path_); }

/// No times in the file: equal contents make equal bytes.
Hdf5Handle ShardFile::properties(hid_t kind) const {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose, "create a property list", path_);
  must(H5Pset_obj_track_times(list, false), "switch off times");
  return list;
}

Hdf5Handle ShardFile::dataspace(const std::vector<hsize_t>& shape) const {
  return {H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose,
          "create a dataspace", path_};
}

void ShardFile::create_group(const std::string& group) {
  if (!groups_.insert(group).second) return;
  const Hdf5Handle creation = properties(H5P_GROUP_CREATE);
  const Hdf5Handle made(H5Gcreate2(output_.id(), group.c_str(), links_, creation, H5P_DEFAULT), H5Gclose,
                        "create " + group, path_);
}

}  // namespace shardwright::ckpt
