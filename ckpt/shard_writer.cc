#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "ckpt/chunk_pipeline.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/hdf5_attributes.h"
#include "ckpt/hdf5_file_driver.h"
#include "ckpt/hdf5_types.h"
#include "ckpt/plugin/zstd_filter.h"
#include "ckpt/rest_digest.h"
#include "ckpt/shard.h"
#include "ckpt/shard_plan.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Extents as libhdf5 takes them; a scalar is stored with shape [1], which every tool can chunk.
std::vector<hsize_t> extents(const Dims& dims) {
  if (dims.empty()) return {1};
  return {dims.begin(), dims.end()};
}

/// The HDF5 side of a shard. All of it is called from one thread.
class ShardFile {
 public:
  /// `form` is that of all chunks.
  ShardFile(WritableFile& file, const std::string& path, ChunkForm form)
      : path_(path),
        form_(form),
        output_(file, path),
        links_(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "create a property list", path) {
    must(H5Pset_char_encoding(links_, H5T_CSET_UTF8), "set a character set");
  }

  /// A chunked dataset with the filters of the format, or, for a box of no elements, one without storage.
  Hdf5Handle create_dataset(const BoxRecord& box) {
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

  /// Writes chunk `index` of the dataset's grid as it is; returns its address in the file.
  std::uint64_t write_chunk(hid_t dataset, const BoxRecord& box, std::uint64_t index,
                            std::span<const std::byte> stored) {
    const std::vector<hsize_t> at = chunk_start(box, index);
    must(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at.data(), stored.size(), stored.data()), "write a chunk");
    output_.check();
    return output_.address_of_last_write(stored);
  }

  /// Compares libhdf5's own index with what was written for the box's last chunk. (It searches from the first
  /// chunk on, so asking for all of them would take quadratic time.)
  void check_last_chunk(hid_t dataset, const BoxRecord& box, const ChunkRow& row) const {
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

  /// The contiguous dataset /chunks; returns its address, 0 if it has no rows.
  std::uint64_t write_table(std::span<const ChunkRow> rows) {
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

  void close() { output_.close(); }

 private:
  void must(herr_t status, const std::string& what) const { hdf5_must(status, what, path_); }

  /// No times in the file: equal contents make equal bytes.
  Hdf5Handle properties(hid_t kind) const {
    Hdf5Handle list(H5Pcreate(kind), H5Pclose, "create a property list", path_);
    must(H5Pset_obj_track_times(list, false), "switch off times");
    return list;
  }

  Hdf5Handle dataspace(const std::vector<hsize_t>& shape) const {
    return {H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose,
            "create a dataspace", path_};
  }

  void create_group(const std::string& group) {
    if (!groups_.insert(group).second) return;
    const Hdf5Handle creation = properties(H5P_GROUP_CREATE);
    const Hdf5Handle made(H5Gcreate2(output_.id(), group.c_str(), links_, creation, H5P_DEFAULT), H5Gclose,
                          "create " + group, path_);
  }

  static std::vector<hsize_t> chunk_start(const BoxRecord& box, std::uint64_t index) {
    const Box part = chunk_box(box.box, box.chunk, index);
    std::vector<hsize_t> at;
    for (std::size_t d = 0; d < part.offset.size(); ++d) at.push_back(part.offset[d] - box.box.offset[d]);
    if (at.empty()) at.push_back(0);
    return at;
  }

  std::string path_;
  ChunkForm form_;
  Hdf5Output output_;
  Hdf5Handle links_;
  std::set<std::string> groups_;
};

/// Writes all datasets and the table and closes the file; fills the boxes' fingerprints.
std::vector<ChunkRow> write_datasets(ShardFile& shard, ChunkPipeline& pipeline, ShardPlan& plan, int rank,
                                     std::uint64_t step, ShardStats& stats, const SaveSignals& signals) {
  std::vector<ChunkRow> rows;
  rows.reserve(plan.chunks);
  for (BoxRecord& box : plan.boxes) {
    if (box.dataset.empty()) continue;
    const Hdf5Handle dataset = shard.create_dataset(box);
    for (std::uint64_t index = 0; index < box.chunks; ++index) {
      if (rows.size() == plan.chunks / 2) fault_point("shard.mid", rank, step);
      EncodedChunk chunk = [&] {
        const trace::Span span("wait for chunk");
        const Clock::time_point asked = Clock::now();
        EncodedChunk next = pipeline.next(signals);
        stats.chunk_wait_s += seconds_since(asked);
        return next;
      }();
      const trace::Span span("write", "bytes", static_cast<std::int64_t>(chunk.stored.size()));
      const Clock::time_point start = Clock::now();
      const std::uint64_t address = shard.write_chunk(dataset, box, index, chunk.stored);
      stats.write_s += seconds_since(start);
      rows.push_back(
          {address, static_cast<std::uint32_t>(chunk.stored.size()), chunk.raw_bytes, chunk.xxh3_64});
      box.fingerprint += chunk.fingerprint;
      stats.stored_bytes += chunk.stored.size();
      ++(chunk.kept ? stats.kept_chunks : stats.encoded_chunks);
      pipeline.recycle(std::move(chunk));
    }
    if (box.chunks > 0) shard.check_last_chunk(dataset, box, rows.back());
    stats.raw_bytes += box.box.elements() * size_of(box.dtype);
  }
  return rows;
}

/// Whoever else writes by this rank's name would be mixed with it.
std::unique_ptr<WritableFile> create_shard(Env& env, const std::string& path, int rank) {
  try {
    return env.create_new(path);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::exists) throw;
    throw Error(
        ErrorCode::exists,
        fmt::format("{}: exists already; another process writes as rank {} too, one for each rank is right",
                    path, rank),
        path);
  }
}

}  // namespace

Part write_shard(Env& env, const std::string& directory, const std::string& attempt, int rank,
                 std::uint64_t step, std::span<const SaveItem> given, const ShardOptions& options,
                 ShardStats* stats, const SaveSignals* signals) {
  // Equal boxes make equal files, whoever lists them (training, resharding) and in whatever order.
  std::vector<SaveItem> items(given.begin(), given.end());
  std::stable_sort(items.begin(), items.end(), [](const SaveItem& a, const SaveItem& b) {
    return std::tie(a.tensor, a.kind) < std::tie(b.tensor, b.kind);
  });
  const SaveSignals nobody;
  ShardStats unread;
  ShardStats& measured = stats != nullptr ? *stats : unread;
  measured = {};
  ShardPlan plan = plan_shard(items);
  Part part;
  part.attempt = attempt;
  part.rank = rank;
  part.step = step;
  if (!plan.has_file) {
    part.boxes = std::move(plan.boxes);
    return part;
  }

  const std::string path = directory + "/" + shard_name(rank);
  fault_point("shard.open", rank, step);
  const std::unique_ptr<WritableFile> file = create_shard(env, path, rank);
  std::vector<ChunkRow> rows;
  FileRecord record;
  record.name = shard_name(rank);
  {
    ChunkPipeline pipeline(items, plan.boxes, options);
    ShardFile shard(*file, path, form_of(options.codec));
    rows =
        write_datasets(shard, pipeline, plan, rank, step, measured, signals != nullptr ? *signals : nobody);
    measured.encode_s = pipeline.encode_seconds();
    measured.verify_s = pipeline.verify_seconds();
    measured.peak_host_bytes = pipeline.peak_bytes();
    record.table_address = shard.write_table(rows);
    fault_point("shard.close", rank, step);
    const trace::Span span("close");
    const Clock::time_point start = Clock::now();
    shard.close();
    measured.write_s += seconds_since(start);
  }

  // What the system has must be what libhdf5 was given, before anything vouches for it.
  record.bytes = file->size();
  const std::vector<std::byte> table = table_bytes(rows);
  record.table_bytes = table.size();
  record.table = xxh3_128(table);
  parse_table(table, record.bytes, path);
  {
    const trace::Span span("read back");
    record.rest = rest_digest(rows, record.bytes, [&](std::uint64_t offset, std::span<std::byte> data) {
      file->read(offset, data);
    });
  }
  std::vector<std::byte> stored_table(table.size());
  file->read(record.table_address, stored_table);
  if (stored_table != table)
    throw Error(ErrorCode::io, path + ": /chunks reads back differently than written", path);

  fault_point("shard.fsync", rank, step);
  const trace::Span span("fsync");
  const Clock::time_point start = Clock::now();
  file->sync();
  env.sync_dir(directory);
  measured.fsync_s = seconds_since(start);

  part.has_file = true;
  part.file = std::move(record);
  part.boxes = std::move(plan.boxes);
  return part;
}

}  // namespace shardwright::ckpt
