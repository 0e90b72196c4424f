#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/hdf5_handle.h"
#include "ckpt/manifest.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kMaxRows = 1u << 28;

/// The tables of a manifest whose bytes were verified. libhdf5 sees these bytes in memory and nothing else.
class Tables {
 public:
  Tables(std::span<const std::byte> bytes, const std::string& path) : path_(path), file_(open(bytes, path)) {}

  std::uint64_t version() const {
    const Hdf5Handle attribute(H5Aopen(file_, "version", H5P_DEFAULT), H5Aclose, "find its version", path_,
                               ErrorCode::damaged);
    std::uint64_t version = 0;
    const Hdf5Handle space(H5Aget_space(attribute), H5Sclose, "read its version", path_, ErrorCode::damaged);
    if (H5Sget_simple_extent_npoints(space) != 1 || H5Aread(attribute, H5T_NATIVE_UINT64, &version) < 0)
      refuse("version", "cannot be read");
    if (version < 1) refuse("version", "is impossible");
    return version;
  }

  std::uint64_t rows(const std::string& dataset) const {
    const Hdf5Handle opened = find(dataset);
    return extent(opened, dataset, 0);
  }

  std::vector<std::uint64_t> numbers(const std::string& dataset, std::uint64_t rows,
                                     std::uint64_t width = 0) const {
    const Hdf5Handle opened = find(dataset);
    const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
    if (extent(opened, dataset, width) != rows) refuse(dataset, fmt::format("has other than {} rows", rows));
    if (H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) > 8 || H5Tget_sign(type) != H5T_SGN_NONE)
      refuse(dataset, "does not hold unsigned integers");
    std::vector<std::uint64_t> values(rows * std::max<std::uint64_t>(width, 1));
    read(opened, dataset, H5T_NATIVE_UINT64, values.empty() ? nullptr : values.data());
    return values;
  }

  std::vector<std::string> strings(const std::string& dataset, std::uint64_t rows) const {
    const Hdf5Handle opened = find(dataset);
    const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
    if (extent(opened, dataset, 0) != rows) refuse(dataset, fmt::format("has other than {} rows", rows));
    if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0)
      refuse(dataset, "does not hold fixed-length strings");
    const std::size_t length = H5Tget_size(type);
    if (length == 0 || length > (1u << 16)) refuse(dataset, "has strings of an impossible length");
    std::string packed(length * rows, '\0');
    read(opened, dataset, type, packed.empty() ? nullptr : packed.data());
    std::vector<std::string> values;
    values.reserve(rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
      std::string value = packed.substr(i * length, length);
      const std::size_t end = value.find_last_not_of('\0');
      value.resize(end == std::string::npos ? 0 : end + 1);
      values.push_back(std::move(value));
    }
    return values;
  }

  std::string text(const std::string& dataset) const {
    const Hdf5Handle opened = find(dataset);
    std::string value(extent(opened, dataset, 0), '\0');
    read(opened, dataset, H5T_NATIVE_UINT8, value.empty() ? nullptr : value.data());
    return value;
  }

  [[noreturn]] void refuse(const std::string& dataset, const std::string& what) const {
    throw Error(ErrorCode::damaged, fmt::format("{}: {} {}", path_, dataset, what), path_);
  }

 private:
  static Hdf5Handle open(std::span<const std::byte> bytes, const std::string& path) {
    silence_hdf5();
    const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create a property list", path);
    // The library copies the image, so the bytes need to live for this call only.
    if (H5Pset_fapl_core(access, 1u << 20, false) < 0 ||
        H5Pset_file_image(access, const_cast<std::byte*>(bytes.data()), bytes.size()) < 0)
      throw Error(ErrorCode::io, path + ": libhdf5 failed to take its image", path);
    // The core driver refuses a name that exists, and takes two images of one name for the same file.
    static std::atomic<std::uint64_t> images{0};
    const std::string name = fmt::format("{}.image-{}", path, ++images);
    return {H5Fopen(name.c_str(), H5F_ACC_RDONLY, access), H5Fclose, "parse it", path, ErrorCode::damaged};
  }

  /// Only what lies in the verified bytes: libhdf5 would follow links and storage in other files.
  Hdf5Handle find(const std::string& dataset) const {
    const Hdf5Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose, "create a property list", path_);
    if (H5Pset_elink_cb(access, refuse_link, nullptr) < 0)
      throw Error(ErrorCode::io, path_ + ": libhdf5 failed to forbid links to other files", path_);
    Hdf5Handle opened(H5Dopen2(file_, dataset.c_str(), access), H5Dclose, "open " + dataset, path_,
                      ErrorCode::damaged);
    const Hdf5Handle creation(H5Dget_create_plist(opened), H5Pclose, "read " + dataset, path_,
                              ErrorCode::damaged);
    if (H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) != 0)
      refuse(dataset, "is stored outside the manifest");
    return opened;
  }

  static herr_t refuse_link(const char*, const char*, const char*, const char*, unsigned*, hid_t, void*) {
    return -1;
  }

  /// Rows of a dataset that must have shape [rows], or [rows, width].
  std::uint64_t extent(hid_t dataset, const std::string& name, std::uint64_t width) const {
    const Hdf5Handle space(H5Dget_space(dataset), H5Sclose, "read " + name, path_, ErrorCode::damaged);
    hsize_t dims[2] = {0, 0};
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank != (width == 0 ? 1 : 2) || H5Sget_simple_extent_dims(space, dims, nullptr) < 0 ||
        (width != 0 && dims[1] != width) || dims[0] > kMaxRows)
      refuse(name, "has another shape than its table should");
    return dims[0];
  }

  void read(hid_t dataset, const std::string& name, hid_t type, void* values) const {
    if (values != nullptr && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
      refuse(name, "cannot be read");
  }

  std::string path_;
  Hdf5Handle file_;
};

Dims dims_of(const std::vector<std::uint64_t>& table, std::size_t row, std::size_t count) {
  Dims dims;
  for (std::size_t d = 0; d < count; ++d) dims.push_back(table[row * kMaxDims + d]);
  return dims;
}

void read_tensors(const Tables& tables, Manifest& m) {
  const std::uint64_t n = tables.rows("/tensors/ndim");
  const auto names = tables.strings("/tensors/name", n);
  const auto ndim = tables.numbers("/tensors/ndim", n);
  const auto shape = tables.numbers("/tensors/shape", n, kMaxDims);
  for (std::size_t i = 0; i < n; ++i) {
    if (ndim[i] > kMaxDims) tables.refuse("/tensors/ndim", fmt::format("is above {}", kMaxDims));
    m.tensors.push_back({names[i], dims_of(shape, i, ndim[i])});
  }
}

/// Rows of other tables are kept in 32 bits; a larger one points nowhere and stays so.
std::uint32_t row_of(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, UINT32_MAX));
}

void read_states(const Tables& tables, Manifest& m) {
  const std::uint64_t n = tables.rows("/states/tensor");
  const auto tensor = tables.numbers("/states/tensor", n);
  const auto kind = tables.strings("/states/kind", n);
  const auto dtype = tables.strings("/states/dtype", n);
  const auto count = tables.numbers("/states/count", n);
  const auto sums = tables.numbers("/states/fingerprint", n, 2);
  for (std::size_t i = 0; i < n; ++i)
    m.states.push_back({row_of(tensor[i]), kind[i], parse_dtype(dtype[i]),
                        Fingerprint{sums[2 * i], sums[2 * i + 1], count[i]}});
}

void read_boxes(const Tables& tables, Manifest& m) {
  const std::uint64_t n = tables.rows("/boxes/state");
  const auto state = tables.numbers("/boxes/state", n);
  const auto file = tables.numbers("/boxes/file", n);
  auto dataset = tables.strings("/boxes/dataset", n);
  const auto offset = tables.numbers("/boxes/offset", n, kMaxDims);
  const auto shape = tables.numbers("/boxes/shape", n, kMaxDims);
  const auto chunk = tables.numbers("/boxes/chunk", n, kMaxDims);
  const auto first = tables.numbers("/boxes/first_chunk", n);
  const auto chunks = tables.numbers("/boxes/chunks", n);
  m.boxes.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    // A box has as many dimensions as its tensor; check() reports rows that point nowhere.
    std::size_t d = 0;
    if (state[i] < m.states.size() && m.states[state[i]].tensor < m.tensors.size())
      d = m.tensors[m.states[state[i]].tensor].shape.size();
    m.boxes.push_back({row_of(state[i]), row_of(file[i]), std::move(dataset[i]),
                       Box{dims_of(offset, i, d), dims_of(shape, i, d)}, dims_of(chunk, i, d), first[i],
                       chunks[i]});
  }
}

void read_files(const Tables& tables, Manifest& m) {
  const std::uint64_t n = tables.rows("/files/bytes");
  const auto names = tables.strings("/files/name", n);
  const auto bytes = tables.numbers("/files/bytes", n);
  const auto rest = tables.strings("/files/rest_xxh3_128", n);
  const auto address = tables.numbers("/files/table_addr", n);
  const auto table_bytes = tables.numbers("/files/table_bytes", n);
  const auto table = tables.strings("/files/table_xxh3_128", n);
  for (std::size_t i = 0; i < n; ++i)
    m.files.push_back(
        {names[i], bytes[i], parse_digest(rest[i]), address[i], table_bytes[i], parse_digest(table[i])});
}

}  // namespace

Manifest parse_manifest(std::span<const std::byte> bytes, const std::string& path) {
  const Tables tables(bytes, path);
  if (const std::uint64_t version = tables.version(); version > kManifestVersion)
    throw Error(ErrorCode::future_version,
                fmt::format("{}: version {} of the format; this program reads up to {}", path, version,
                            kManifestVersion),
                path);
  Manifest m;
  try {
    read_tensors(tables, m);
    read_states(tables, m);
    read_boxes(tables, m);
    read_files(tables, m);
  } catch (const Error& e) {
    if (!e.path().empty()) throw;
    throw Error(e.code(), fmt::format("{}: {}", path, e.what()), path);
  }
  m.description.training = tables.text("/training");
  m.description.model = tables.text("/model");
  m.description.config = tables.text("/config");
  m.description.layout = tables.text("/layout");
  return m;
}

std::vector<std::byte> read_manifest_bytes(Env& env, const std::string& directory,
                                           const ManifestDigest& expected) {
  const std::string path = directory + "/" + expected.name;
  const auto file = env.open(path);
  if (file->size() != expected.bytes)
    throw Error(ErrorCode::damaged,
                fmt::format("{}: has {} bytes; COMMIT says {}", path, file->size(), expected.bytes), path);
  std::vector<std::byte> bytes(expected.bytes);
  file->read(0, bytes);
  if (xxh3_128(bytes) != expected.xxh3_128)
    throw Error(ErrorCode::damaged, fmt::format("{}: its bytes are not those that COMMIT vouches for", path),
                path);
  return bytes;
}

Manifest read_manifest(Env& env, const std::string& directory, const ManifestDigest& expected) {
  const std::string path = directory + "/" + expected.name;
  Manifest m = parse_manifest(read_manifest_bytes(env, directory, expected), path);
  if (const auto breaches = check(m); !breaches.empty())
    throw Error(ErrorCode::damaged, fmt::format("{}: {}", path, breaches[0].message), path);
  return m;
}

}  // namespace shardwright::ckpt
