#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ckpt/limits.h"
#include "ckpt/manifest.h"
#include "ckpt/tiling.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kRowBytes = 24;  // of a shard's /chunks
constexpr std::size_t kMaxNameBytes = 1024;

/// Product of the extents, or nothing where it does not fit.
std::optional<std::uint64_t> checked_product(const Dims& dims, std::uint64_t factor = 1) {
  std::uint64_t product = factor;
  for (std::uint64_t extent : dims)
    if (__builtin_mul_overflow(product, extent, &product)) {
      // A zero extent makes the product zero whatever the others are.
      for (std::uint64_t e : dims)
        if (e == 0) return 0;
      return std::nullopt;
    }
  return product;
}

bool good_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find('/') == std::string::npos &&
         name.find('@') == std::string::npos && name.find('\0') == std::string::npos;
}

/// Only the names that writers give: nothing that could lead out of the directory.
bool good_file_name(const std::string& name) {
  const std::size_t digits = name.size() < 13 ? 0 : name.size() - 8;  // "rank-" and ".h5"
  if (digits < 5 || digits > 9 || !name.starts_with("rank-") || !name.ends_with(".h5")) return false;
  int rank = 0;
  for (std::size_t i = 5; i < 5 + digits; ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
    rank = rank * 10 + (name[i] - '0');
  }
  return name == shard_name(rank);
}

/// "/kind/tensor", or "/kind/tensor@k" for a further box.
bool good_dataset(const std::string& dataset, const std::string& kind, const std::string& tensor) {
  const std::string stem = "/" + kind + "/" + tensor;
  if (!dataset.starts_with(stem)) return false;
  const std::string rest = dataset.substr(stem.size());
  if (rest.empty()) return true;
  return rest.size() >= 2 && rest.size() <= 10 && rest[0] == '@' && rest[1] != '0' &&
         std::all_of(rest.begin() + 1, rest.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool offset_less(const Dims& a, const Dims& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

class Checker {
 public:
  explicit Checker(const Manifest& manifest) : m_(manifest) {}

  std::vector<Breach> run() {
    tensors();
    files();
    states();
    boxes();
    if (!breaches_.empty()) return std::move(breaches_);
    rows();
    coverage();
    return std::move(breaches_);
  }

 private:
  template <class... Args>
  void breach(const std::string& code, const std::string& tensor, const std::string& kind,
              fmt::format_string<Args...> format, Args&&... args) {
    breaches_.push_back({code, tensor, kind, fmt::format(format, std::forward<Args>(args)...)});
  }

  void tensors() {
    std::vector<bool> has_state(m_.tensors.size());
    for (const StateEntry& s : m_.states)
      if (s.tensor < has_state.size()) has_state[s.tensor] = true;
    for (std::size_t i = 0; i < m_.tensors.size(); ++i) {
      const TensorEntry& t = m_.tensors[i];
      if (!good_name(t.name))
        breach("manifest", t.name, "", "tensor {}: its name is empty, too long or holds '/', '@' or NUL", i);
      if (i > 0 && !(m_.tensors[i - 1].name < t.name))
        breach("manifest", t.name, "", "tensor {}: tensors are not sorted by name and unique", t.name);
      if (!checked_product(t.shape, 8))
        breach("manifest", t.name, "", "tensor {}: the bytes of shape {} do not fit 64 bits", t.name,
               to_string(t.shape));
      if (!has_state[i]) breach("manifest", t.name, "", "tensor {}: has no state", t.name);
    }
  }

  void files() {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < m_.files.size(); ++i) {
      const FileRecord& f = m_.files[i];
      if (!good_file_name(f.name))
        breach("path", "", "", "file '{}': not the name of a shard (rank-NNNNN.h5)", f.name);
      if (i > 0 && !(m_.files[i - 1].name < f.name))
        breach("manifest", "", "", "file {}: files are not sorted by name and unique", f.name);
      if (f.table_bytes % kRowBytes != 0 || f.table_bytes > f.bytes ||
          f.table_address > f.bytes - f.table_bytes)
        breach("manifest", "", "", "file {}: its chunk table ({} bytes at {}) is not inside its {} bytes",
               f.name, f.table_bytes, f.table_address, f.bytes);
      if (f.table_bytes / kRowBytes > kMaxChunksOfShard)
        breach("manifest", "", "", "file {}: its chunk table has {} rows; at most {} are right", f.name,
               f.table_bytes / kRowBytes, kMaxChunksOfShard);
      if (__builtin_add_overflow(all, f.bytes, &all))
        breach("manifest", "", "", "file {}: the bytes of all files do not fit 64 bits", f.name);
    }
  }

  void states() {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < m_.states.size(); ++i) {
      const StateEntry& s = m_.states[i];
      if (s.tensor >= m_.tensors.size()) {
        breach("manifest", "", s.kind, "state {}: tensor row {} of {}", i, s.tensor, m_.tensors.size());
        continue;
      }
      const TensorEntry& t = m_.tensors[s.tensor];
      if (!good_name(s.kind))
        breach("manifest", t.name, s.kind, "state {}: its kind is empty, too long or holds '/', '@' or NUL",
               i);
      if (i > 0 && std::tie(m_.states[i - 1].tensor, m_.states[i - 1].kind) >= std::tie(s.tensor, s.kind))
        breach("manifest", t.name, s.kind, "state {}: states are not sorted and unique", i);
      const auto bytes = checked_product(t.shape, size_of(s.dtype));
      if (bytes && __builtin_add_overflow(all, *bytes, &all))
        breach("manifest", t.name, s.kind, "state {}: the bytes of all states do not fit 64 bits", i);
    }
  }

  void boxes() {
    for (std::size_t i = 0; i < m_.boxes.size(); ++i) {
      const BoxEntry& b = m_.boxes[i];
      if (b.state >= m_.states.size() || m_.states[b.state].tensor >= m_.tensors.size()) {
        breach("manifest", "", "", "box {}: state row {} of {}", i, b.state, m_.states.size());
        continue;
      }
      const StateEntry& s = m_.states[b.state];
      const TensorEntry& t = m_.tensors[s.tensor];
      if (b.file >= m_.files.size()) {
        breach("manifest", t.name, s.kind, "box {}: file row {} of {}", i, b.file, m_.files.size());
        continue;
      }
      if (i > 0 && m_.boxes[i - 1].state > b.state)
        breach("manifest", t.name, s.kind, "box {}: boxes are not sorted by state and offset", i);
      if (i > 0 && m_.boxes[i - 1].state == b.state && offset_less(b.box.offset, m_.boxes[i - 1].box.offset))
        breach("manifest", t.name, s.kind, "box {}: boxes are not sorted by state and offset", i);
      if (!good_dataset(b.dataset, s.kind, t.name))
        breach("path", t.name, s.kind, "box {}: dataset '{}' is not /{}/{}", i, b.dataset, s.kind, t.name);
      extents(i, b, s, t);
    }
  }

  void extents(std::size_t i, const BoxEntry& b, const StateEntry& s, const TensorEntry& t) {
    const std::size_t n = t.shape.size();
    if (b.box.offset.size() != n || b.box.shape.size() != n || b.chunk.size() != n) {
      breach("manifest", t.name, s.kind, "box {}: has other than the tensor's {} dimensions", i, n);
      return;
    }
    std::optional<std::uint64_t> chunks = 1;
    for (std::size_t d = 0; d < n; ++d) {
      const std::uint64_t offset = b.box.offset[d], extent = b.box.shape[d], chunk = b.chunk[d];
      if (extent == 0 || extent > t.shape[d] || offset > t.shape[d] - extent) {
        breach("manifest", t.name, s.kind, "box {} {}: empty, or outside the shape {}", i, to_string(b.box),
               to_string(t.shape));
        return;
      }
      if (chunk == 0 || chunk > extent) {
        breach("manifest", t.name, s.kind, "box {}: a chunk of {} does not fit {}", i, to_string(b.chunk),
               to_string(b.box.shape));
        return;
      }
      const std::uint64_t along = extent / chunk + (extent % chunk != 0);
      std::uint64_t product = 0;
      chunks =
          chunks && !__builtin_mul_overflow(*chunks, along, &product) ? std::optional(product) : std::nullopt;
    }
    const auto chunk_bytes = checked_product(b.chunk, size_of(s.dtype));
    if (!chunk_bytes || *chunk_bytes > kMaxChunkBytes)
      breach("manifest", t.name, s.kind, "box {}: a chunk of {} is more than {} bytes", i, to_string(b.chunk),
             kMaxChunkBytes);
    if (!chunks || *chunks != b.chunks)
      breach("manifest", t.name, s.kind, "box {}: {} chunks where {} in chunks of {} has {}", i, b.chunks,
             to_string(b.box), to_string(b.chunk), chunks.value_or(kMax));
  }

  /// The boxes of a file own its table rows, each exactly one, and no two boxes share a dataset.
  void rows() {
    std::vector<std::vector<const BoxEntry*>> of_file(m_.files.size());
    for (const BoxEntry& b : m_.boxes) of_file[b.file].push_back(&b);
    for (std::size_t f = 0; f < of_file.size(); ++f) {
      auto& list = of_file[f];
      std::sort(list.begin(), list.end(),
                [](const BoxEntry* a, const BoxEntry* b) { return a->first_chunk < b->first_chunk; });
      std::uint64_t next = 0;
      bool good = true;
      for (const BoxEntry* b : list) {
        good = good && b->first_chunk == next && !__builtin_add_overflow(next, b->chunks, &next);
      }
      const std::uint64_t have = m_.files[f].table_bytes / kRowBytes;
      if (!good || next != have)
        breach("manifest", "", "", "file {}: its boxes do not own the {} rows of its chunk table once each",
               m_.files[f].name, have);
      std::sort(list.begin(), list.end(),
                [](const BoxEntry* a, const BoxEntry* b) { return a->dataset < b->dataset; });
      const auto twice =
          std::adjacent_find(list.begin(), list.end(),
                             [](const BoxEntry* a, const BoxEntry* b) { return a->dataset == b->dataset; });
      if (twice != list.end())
        breach("manifest", "", "", "file {}: two boxes name the dataset {}", m_.files[f].name,
               (*twice)->dataset);
    }
  }

  void coverage() {
    std::size_t first = 0;
    for (std::uint32_t state = 0; state < m_.states.size(); ++state) {
      std::vector<const Box*> boxes;
      for (; first < m_.boxes.size() && m_.boxes[first].state == state; ++first)
        boxes.push_back(&m_.boxes[first].box);
      const StateEntry& s = m_.states[state];
      const TensorEntry& t = m_.tensors[s.tensor];
      const std::uint64_t all = element_count(t.shape);
      if (all > 0) tiles(boxes, s, t);
      if (s.fingerprint.count != all)
        breach("coverage", t.name, s.kind, "{} {}: its fingerprint counts {} of {} elements", t.name, s.kind,
               s.fingerprint.count, all);
    }
  }

  /// The first element that is not in exactly one box is told: a damaged table can have millions of them.
  void tiles(const std::vector<const Box*>& boxes, const StateEntry& s, const TensorEntry& t) {
    const auto wrong = first_miscount(boxes, t.shape);
    if (!wrong) return;
    const Box element{wrong->element, Dims::filled(t.shape.size(), 1)};
    if (wrong->boxes == 0) {
      const std::uint64_t all = element_count(t.shape);
      std::uint64_t uncovered = all;  // if no element is in two boxes, else there are more
      for (const Box* b : boxes) uncovered -= std::min(uncovered, b->elements());
      breach("coverage", t.name, s.kind, "{} {}: at least {} of {} elements are in no box, the first is {}",
             t.name, s.kind, std::max<std::uint64_t>(uncovered, 1), all, to_string(wrong->element));
      return;
    }
    std::vector<const Box*> holders;
    std::copy_if(boxes.begin(), boxes.end(), std::back_inserter(holders),
                 [&](const Box* b) { return contains(*b, element); });
    breach("overlap", t.name, s.kind, "{} {}: boxes {} and {} share elements", t.name, s.kind,
           to_string(*holders[0]), to_string(*holders[1]));
  }

  const Manifest& m_;
  std::vector<Breach> breaches_;
};

}  // namespace

std::vector<Breach> check(const Manifest& manifest) { return Checker(manifest).run(); }

}  // namespace shardwright::ckpt
