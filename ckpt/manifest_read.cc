#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/hdf5_tables.h"
#include "ckpt/manifest.h"
#include "ckpt/manifest_tables.h"

namespace shardwright::ckpt {
namespace {

Dims dims_of(const std::vector<std::uint64_t>& table, std::size_t row, std::size_t count) {
  Dims dims;
  for (std::size_t d = 0; d < count; ++d) dims.push_back(table[row * kMaxDims + d]);
  return dims;
}

void read_tensors(const ManifestTables& tables, Manifest& m) {
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

void read_states(const ManifestTables& tables, Manifest& m) {
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

void read_boxes(const ManifestTables& tables, Manifest& m) {
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

void read_files(const ManifestTables& tables, Manifest& m) {
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

void ManifestTables::refuse(const std::string& dataset, const std::string& what) const {
  throw Error(ErrorCode::damaged, fmt::format("{}: {} {}", path_, dataset, what), path_);
}

Manifest parse_manifest(std::span<const std::byte> bytes, const std::string& path) {
  const Hdf5Tables tables(bytes, path);
  if (const std::uint64_t version = tables.version(); version > kManifestVersion)
    throw Error(ErrorCode::future_version,
                fmt::format("{}: version {} of the format; this program reads up to {}", path, version,
                            kManifestVersion),
                path);
  try {
    return join_tables(tables);
  } catch (const Error& e) {
    if (!e.path().empty()) throw;
    throw Error(e.code(), fmt::format("{}: {}", path, e.what()), path);
  }
}

Manifest join_tables(const ManifestTables& tables) {
  Manifest m;
  read_tensors(tables, m);
  read_states(tables, m);
  read_boxes(tables, m);
  read_files(tables, m);
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
