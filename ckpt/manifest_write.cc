#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/hdf5_file_driver.h"
#include "ckpt/hdf5_types.h"
#include "ckpt/limits.h"
#include "ckpt/manifest.h"

namespace shardwright::ckpt {
namespace {

const char* const kFile = "manifest.h5";
constexpr std::size_t kTableChunkBytes = 1u << 20;
constexpr std::size_t kCompressAbove = 1u << 16;  // smaller tables stay contiguous: one read for any tool

void must(herr_t status, const std::string& what) { hdf5_must(status, what, kFile); }

Hdf5Handle property_list(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose, "create a property list", kFile);
  must(H5Pset_obj_track_times(list, false), "switch off times");
  return list;
}

/// Where libhdf5 writes a manifest to: it is digested and written as a whole. (H5Fget_file_image would not
/// do: in 1.10 it gives a superblock with a wrong checksum.)
class MemoryFile : public WritableFile {
 public:
  void write(std::uint64_t offset, std::span<const std::byte> data) override {
    if (bytes.size() < offset + data.size()) bytes.resize(offset + data.size());
    std::copy(data.begin(), data.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void read(std::uint64_t offset, std::span<std::byte> data) override {
    const std::uint64_t there =
        offset < bytes.size() ? std::min<std::uint64_t>(bytes.size() - offset, data.size()) : 0;
    if (there > 0) std::memcpy(data.data(), bytes.data() + offset, there);
    std::fill(data.begin() + static_cast<std::ptrdiff_t>(there), data.end(), std::byte{0});
  }
  void truncate(std::uint64_t size) override { bytes.resize(size); }
  std::uint64_t size() override { return bytes.size(); }
  void sync() override {}

  std::vector<std::byte> bytes;
};

/// A manifest being built in memory.
class Image {
 public:
  Image() : output_(memory_, kFile) {
    const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose, "create a dataspace", kFile);
    const Hdf5Handle attribute(
        H5Acreate2(output_.id(), "version", H5T_STD_U32LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
        "create an attribute", kFile);
    const std::uint32_t version = kManifestVersion;
    must(H5Awrite(attribute, H5T_NATIVE_UINT32, &version), "write an attribute");
    for (const char* group : {"/tensors", "/states", "/boxes", "/files"}) {
      const Hdf5Handle creation = property_list(H5P_GROUP_CREATE);
      const Hdf5Handle made(H5Gcreate2(output_.id(), group, H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose,
                            "create a group", kFile);
    }
  }

  /// `width` 0: shape [rows]; else [rows, width].
  void numbers(const std::string& path, const std::vector<std::uint64_t>& values, std::size_t width = 0) {
    table(path, H5T_STD_U64LE, H5T_NATIVE_UINT64, 8, values.data(),
          values.size() / std::max<std::size_t>(width, 1), width);
  }

  /// Fixed-length strings, as long as the longest, padded with NUL: no byte of them lies in an unchecked
  /// heap.
  void strings(const std::string& path, const std::vector<std::string>& values) {
    std::size_t length = 1;
    for (const std::string& v : values) length = std::max(length, v.size());
    std::string packed(length * values.size(), '\0');
    for (std::size_t i = 0; i < values.size(); ++i)
      std::memcpy(packed.data() + i * length, values[i].data(), values[i].size());
    const Hdf5Handle type = hdf5_string(length);
    table(path, type, type, length, packed.data(), values.size(), 0);
  }

  void text(const std::string& path, const std::string& value) {
    if (value.size() > kMaxDocumentBytes)
      throw Error(ErrorCode::usage,
                  fmt::format("{}: a document of {} bytes; at most 256 MiB are right", path, value.size()));
    table(path, H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, value.data(), value.size(), 0);
  }

  std::vector<std::byte> bytes() {
    output_.close();
    return std::move(memory_.bytes);
  }

 private:
  void table(const std::string& path, hid_t file_type, hid_t memory_type, std::size_t element,
             const void* data, std::size_t rows, std::size_t width) {
    const hsize_t dims[2] = {rows, width};
    const int rank = width == 0 ? 1 : 2;
    const Hdf5Handle space(H5Screate_simple(rank, dims, nullptr), H5Sclose, "create a dataspace", kFile);
    const Hdf5Handle creation = property_list(H5P_DATASET_CREATE);
    const std::size_t row_bytes = element * std::max<std::size_t>(width, 1);
    if (rows * row_bytes > kCompressAbove) {
      const hsize_t chunk[2] = {std::clamp<std::size_t>(kTableChunkBytes / row_bytes, 1, rows), width};
      must(H5Pset_chunk(creation, rank, chunk), "set a chunk");
      must(H5Pset_shuffle(creation), "set a filter");
      must(H5Pset_deflate(creation, 1), "set a filter");
      must(H5Pset_fletcher32(creation), "set a filter");
    }
    const Hdf5Handle dataset(
        H5Dcreate2(output_.id(), path.c_str(), file_type, space, H5P_DEFAULT, creation, H5P_DEFAULT),
        H5Dclose, "create " + path, kFile);
    if (rows > 0) must(H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), "write " + path);
  }

  MemoryFile memory_;
  Hdf5Output output_;
};

/// Rows of kMaxDims numbers; dimensions that a tensor does not have are 0.
template <class Entries, class Get>
std::vector<std::uint64_t> dims_rows(const Entries& entries, Get get) {
  std::vector<std::uint64_t> rows(entries.size() * kMaxDims);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Dims& dims = get(entries[i]);
    std::copy(dims.begin(), dims.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * kMaxDims));
  }
  return rows;
}

template <class Entries, class Get>
std::vector<std::uint64_t> number_rows(const Entries& entries, Get get) {
  std::vector<std::uint64_t> rows;
  rows.reserve(entries.size());
  for (const auto& e : entries) rows.push_back(get(e));
  return rows;
}

template <class Entries, class Get>
std::vector<std::string> string_rows(const Entries& entries, Get get) {
  std::vector<std::string> rows;
  rows.reserve(entries.size());
  for (const auto& e : entries) rows.emplace_back(get(e));
  return rows;
}

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& m) {
  Image image;
  image.strings("/tensors/name", string_rows(m.tensors, [](auto& t) { return t.name; }));
  image.numbers("/tensors/ndim", number_rows(m.tensors, [](auto& t) { return t.shape.size(); }));
  image.numbers("/tensors/shape",
                dims_rows(
                    m.tensors, [](auto& t) -> auto& { return t.shape; }),
                kMaxDims);

  image.numbers("/states/tensor", number_rows(m.states, [](auto& s) { return s.tensor; }));
  image.strings("/states/kind", string_rows(m.states, [](auto& s) { return s.kind; }));
  image.strings("/states/dtype", string_rows(m.states, [](auto& s) { return name(s.dtype); }));
  image.numbers("/states/count", number_rows(m.states, [](auto& s) { return s.fingerprint.count; }));
  std::vector<std::uint64_t> sums;
  for (const StateEntry& s : m.states) sums.insert(sums.end(), {s.fingerprint.h, s.fingerprint.g});
  image.numbers("/states/fingerprint", sums, 2);

  image.numbers("/boxes/state", number_rows(m.boxes, [](auto& b) { return b.state; }));
  image.numbers("/boxes/file", number_rows(m.boxes, [](auto& b) { return b.file; }));
  image.strings("/boxes/dataset", string_rows(m.boxes, [](auto& b) { return b.dataset; }));
  image.numbers("/boxes/offset",
                dims_rows(
                    m.boxes, [](auto& b) -> auto& { return b.box.offset; }),
                kMaxDims);
  image.numbers("/boxes/shape",
                dims_rows(
                    m.boxes, [](auto& b) -> auto& { return b.box.shape; }),
                kMaxDims);
  image.numbers("/boxes/chunk",
                dims_rows(
                    m.boxes, [](auto& b) -> auto& { return b.chunk; }),
                kMaxDims);
  image.numbers("/boxes/first_chunk", number_rows(m.boxes, [](auto& b) { return b.first_chunk; }));
  image.numbers("/boxes/chunks", number_rows(m.boxes, [](auto& b) { return b.chunks; }));

  image.strings("/files/name", string_rows(m.files, [](auto& f) { return f.name; }));
  image.numbers("/files/bytes", number_rows(m.files, [](auto& f) { return f.bytes; }));
  image.strings("/files/rest_xxh3_128", string_rows(m.files, [](auto& f) { return to_hex(f.rest); }));
  image.numbers("/files/table_addr", number_rows(m.files, [](auto& f) { return f.table_address; }));
  image.numbers("/files/table_bytes", number_rows(m.files, [](auto& f) { return f.table_bytes; }));
  image.strings("/files/table_xxh3_128", string_rows(m.files, [](auto& f) { return to_hex(f.table); }));

  image.text("/training", m.description.training);
  image.text("/model", m.description.model);
  image.text("/config", m.description.config);
  image.text("/layout", m.description.layout);
  return image.bytes();
}

ManifestDigest write_manifest(Env& env, const std::string& directory, const Manifest& manifest) {
  const std::vector<std::byte> bytes = encode_manifest(manifest);
  if (bytes.size() > kMaxManifestBytes)
    throw Error(ErrorCode::usage,
                directory + "/manifest.h5: larger than 1 GiB; fewer boxes or smaller documents are right");
  const auto file = env.create_new(directory + "/" + kFile);  // one committer has an attempt
  file->write(0, bytes);
  file->sync();
  return {kFile, bytes.size(), xxh3_128(bytes)};
}

}  // namespace shardwright::ckpt
