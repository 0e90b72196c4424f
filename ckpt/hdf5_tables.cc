#include "ckpt/hdf5_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/limits.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kStringBytes = 32;  // of a string in memory, beside its characters

Hdf5Handle open_image(std::span<const std::byte> bytes, const std::string& path) {
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

}  // namespace

Hdf5Tables::Hdf5Tables(std::span<const std::byte> bytes, const std::string& path)
    : ManifestTables(path), bytes_(bytes.size()), file_(open_image(bytes, path)) {}

std::uint64_t Hdf5Tables::version() const {
  const Hdf5Handle attribute(H5Aopen(file_, "version", H5P_DEFAULT), H5Aclose, "find its version", path_,
                             ErrorCode::damaged);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose, "read its version", path_, ErrorCode::damaged);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose, "read its version", path_, ErrorCode::damaged);
  std::uint64_t version = 0;
  if (H5Sget_simple_extent_npoints(space) != 1 || H5Tget_class(type) != H5T_INTEGER ||
      H5Aread(attribute, H5T_NATIVE_UINT64, &version) < 0)
    refuse("version", "cannot be read");
  if (version < 1) refuse("version", "is impossible");
  return version;
}

std::uint64_t Hdf5Tables::rows(const std::string& dataset) const { return extent(find(dataset), dataset, 0); }

std::vector<std::uint64_t> Hdf5Tables::numbers(const std::string& dataset, std::uint64_t rows,
                                               std::uint64_t width) const {
  const Hdf5Handle opened = find(dataset);
  const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
  if (extent(opened, dataset, width) != rows) refuse(dataset, fmt::format("has other than {} rows", rows));
  const std::size_t size = H5Tget_size(type);
  if (H5Tget_class(type) != H5T_INTEGER || size > 8 || H5Tget_sign(type) != H5T_SGN_NONE)
    refuse(dataset, "does not hold unsigned integers of up to 64 bits");
  const std::uint64_t count = rows * std::max<std::uint64_t>(width, 1);
  admit(opened, dataset, count * size, count * 8);
  std::vector<std::uint64_t> values(count);
  read(opened, dataset, H5T_NATIVE_UINT64, values.empty() ? nullptr : values.data());
  return values;
}

std::vector<std::string> Hdf5Tables::strings(const std::string& dataset, std::uint64_t rows) const {
  const Hdf5Handle opened = find(dataset);
  const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
  if (extent(opened, dataset, 0) != rows) refuse(dataset, fmt::format("has other than {} rows", rows));
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0)
    refuse(dataset, "does not hold fixed-length strings");
  const std::uint64_t length = H5Tget_size(type);
  if (length == 0 || length > kMaxTableStringBytes) refuse(dataset, "has strings of an impossible length");
  admit(opened, dataset, rows * length, rows * (length + kStringBytes));
  std::string packed(length * rows, '\0');
  read(opened, dataset, type, packed.empty() ? nullptr : packed.data());
  std::vector<std::string> values;
  values.reserve(rows);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const std::string_view value(packed.data() + i * length, length);
    values.emplace_back(value.substr(0, value.find_last_not_of('\0') + 1));
  }
  return values;
}

std::string Hdf5Tables::text(const std::string& dataset) const {
  const Hdf5Handle opened = find(dataset);
  const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
  const std::uint64_t length = extent(opened, dataset, 0);
  if (H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) != 1 || H5Tget_sign(type) != H5T_SGN_NONE)
    refuse(dataset, "does not hold bytes");
  admit(opened, dataset, length, length);
  std::string value(length, '\0');
  read(opened, dataset, H5T_NATIVE_UINT8, value.empty() ? nullptr : value.data());
  return value;
}

/// Only what lies in the verified bytes: libhdf5 would follow links and storage in other files.
Hdf5Handle Hdf5Tables::find(const std::string& dataset) const {
  check_links(dataset);
  Hdf5Handle opened(H5Dopen2(file_, dataset.c_str(), H5P_DEFAULT), H5Dclose, "open " + dataset, path_,
                    ErrorCode::damaged);
  const Hdf5Handle creation(H5Dget_create_plist(opened), H5Pclose, "read " + dataset, path_,
                            ErrorCode::damaged);
  if (H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) != 0)
    refuse(dataset, "is stored outside the manifest");
  check_filters(dataset, creation);
  return opened;
}

/// A name leads to its object directly, at each of its parts.
void Hdf5Tables::check_links(const std::string& dataset) const {
  for (std::size_t end = dataset.find('/', 1);; end = dataset.find('/', end + 1)) {
    const std::string part = dataset.substr(0, end);
    H5L_info_t link;
    if (H5Lexists(file_, part.c_str(), H5P_DEFAULT) <= 0 ||
        H5Lget_info(file_, part.c_str(), &link, H5P_DEFAULT) < 0)
      refuse(dataset, "is missing");
    if (link.type != H5L_TYPE_HARD) refuse(dataset, "is a link to somewhere else");
    if (end == std::string::npos) return;
  }
}

/// Those that every libhdf5 has, each once: others it would look for in plugins, and deflate in deflate has
/// no bound.
void Hdf5Tables::check_filters(const std::string& dataset, hid_t creation) const {
  if (H5Pget_layout(creation) != H5D_CHUNKED) return;
  std::vector<H5Z_filter_t> seen;
  const int filters = H5Pget_nfilters(creation);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, nullptr);
    const bool known =
        filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_SHUFFLE || filter == H5Z_FILTER_FLETCHER32;
    if (!known || std::find(seen.begin(), seen.end(), filter) != seen.end())
      refuse(dataset, "has filters other than shuffle, deflate and Fletcher32, each once");
    seen.push_back(filter);
  }
}

/// Rows of a dataset that must have shape [rows], or [rows, width].
std::uint64_t Hdf5Tables::extent(hid_t opened, const std::string& dataset, std::uint64_t width) const {
  const Hdf5Handle space(H5Dget_space(opened), H5Sclose, "read " + dataset, path_, ErrorCode::damaged);
  hsize_t dims[2] = {0, 0};
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank != (width == 0 ? 1 : 2) || H5Sget_simple_extent_dims(space, dims, nullptr) < 0 ||
      (width != 0 && dims[1] != width))
    refuse(dataset, "has another shape than its table should");
  if (dims[0] > kMaxTableRows) refuse(dataset, fmt::format("has {} rows; at most 2^28 are right", dims[0]));
  return dims[0];
}

/// Before memory is taken for a dataset of `stored` bytes as stored, `in_memory` here: are they there, and is
/// it not too much together? Neither can overflow: 2^28 rows of at most 2^16 bytes.
void Hdf5Tables::admit(hid_t opened, const std::string& dataset, std::uint64_t stored,
                       std::uint64_t in_memory) const {
  if (stored == 0) return;
  const Hdf5Handle creation(H5Dget_create_plist(opened), H5Pclose, "read " + dataset, path_,
                            ErrorCode::damaged);
  const std::uint64_t held = H5Dget_storage_size(opened);
  bool there = held <= bytes_;
  switch (H5Pget_layout(creation)) {
    case H5D_CHUNKED: {
      hsize_t chunk[2] = {0, 0};
      const Hdf5Handle type(H5Dget_type(opened), H5Tclose, "read " + dataset, path_, ErrorCode::damaged);
      std::uint64_t bytes = H5Tget_size(type);
      const int rank = H5Pget_chunk(creation, 2, chunk);
      for (int d = 0; d < std::min(rank, 2); ++d)
        if (__builtin_mul_overflow(bytes, chunk[d], &bytes)) bytes = kMaxTableChunkBytes + 1;
      if (rank < 1 || bytes > kMaxTableChunkBytes) refuse(dataset, "is cut in chunks above 1 MiB");
      there = there && stored <= held * kMaxDeflateRatio;
      break;
    }
    case H5D_CONTIGUOUS: {
      const haddr_t address = H5Dget_offset(opened);
      there = there && stored <= held && address != HADDR_UNDEF && address <= bytes_ - held;
      break;
    }
    default:
      there = there && stored <= held;
  }
  if (!there)
    refuse(dataset, fmt::format("claims {} bytes of values, which the manifest does not hold", stored));
  memory_ += in_memory;
  if (memory_ > std::min(bytes_ * kMaxDeflateRatio, kMaxTablesMemory))
    refuse(dataset,
           fmt::format("and the tables before it need {} bytes of memory, too much for a manifest of {}",
                       memory_, bytes_));
}

void Hdf5Tables::read(hid_t opened, const std::string& dataset, hid_t type, void* values) const {
  if (values != nullptr && H5Dread(opened, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0)
    refuse(dataset, "cannot be read");
}

}  // namespace shardwright::ckpt
