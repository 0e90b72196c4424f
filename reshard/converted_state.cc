#include "reshard/converted_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <utility>

#include "ckpt/box_index.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/parallel.h"
#include "ckpt/shard.h"

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ckpt::DType;

// Rows that are read at once for the mean.
constexpr std::uint64_t kBlockBytes = 1u << 20;

/// The rows of `region` from `begin` to `end`, or nothing if it has none of them.
std::optional<Box> rows(const Box& region, std::uint64_t begin, std::uint64_t end) {
  Box part = region;
  part.offset[0] = std::max(region.offset[0], begin);
  const std::uint64_t last = std::min(region.end(0), end);
  if (last <= part.offset[0]) return std::nullopt;
  part.shape[0] = last - part.offset[0];
  return part.empty() ? std::nullopt : std::optional(part);
}

class ConvertedSource : public ckpt::Source {
 public:
  ConvertedSource(std::shared_ptr<const ConvertedState> state, std::shared_ptr<ckpt::ChunkCache> cache)
      : state_(std::move(state)), cache_(std::move(cache)) {}
  void read(const Box& region, std::byte* dst) const override { state_->read(*cache_, region, dst); }
  bool read_stored(const Box& region, const ckpt::Dims& chunk, ckpt::StoredChunk& out) const override {
    return state_->read_stored(*cache_, region, chunk, out);
  }

 private:
  std::shared_ptr<const ConvertedState> state_;
  std::shared_ptr<ckpt::ChunkCache> cache_;
};

}  // namespace

ConvertedState::ConvertedState(const ckpt::Manifest& source, std::uint32_t state, DType dtype,
                               const ckpt::Dims& shape, NewRows new_rows)
    : state_(state),
      name_(source.tensors[source.states[state].tensor].name + " " + source.states[state].kind),
      source_dtype_(source.states[state].dtype),
      dtype_(dtype),
      source_shape_(source.tensors[source.states[state].tensor].shape),
      shape_(shape),
      new_rows_(new_rows) {
  if (!shape_.empty()) kept_rows_ = std::min(shape_[0], source_shape_[0]);
}

std::uint64_t ConvertedState::convert(const std::byte* from, std::byte* to, std::size_t count) const {
  const CastLosses losses = cast(from, source_dtype_, to, dtype_, count);
  if (losses.overflows > 0)
    throw Error(ErrorCode::mismatch, fmt::format("{}: has values too large for {}; a wider type, or no cast",
                                                 name_, ckpt::name(dtype_)));
  return losses.underflows;
}

std::vector<std::byte> ConvertedState::mean_row(ckpt::ChunkCache& source) const {
  if (new_rows_ == NewRows::zero) return {};
  const std::uint64_t columns = ckpt::element_count(source_shape_) / source_shape_[0];
  const std::uint64_t block =
      std::max<std::uint64_t>(1, kBlockBytes / (columns * ckpt::size_of(source_dtype_)));
  std::vector<double> sums(columns), values;
  std::vector<std::byte> raw;
  for (std::uint64_t row = 0; row < kept_rows_; row += block) {
    const Box part = *rows(Box::whole(source_shape_), row, std::min(row + block, kept_rows_));
    raw.resize(part.elements() * ckpt::size_of(source_dtype_));
    source.read(state_, part, raw.data());
    values.resize(part.elements());
    cast(raw.data(), source_dtype_, reinterpret_cast<std::byte*>(values.data()), DType::f64, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sums[i % columns] += values[i];
  }
  for (double& sum : sums) sum /= static_cast<double>(kept_rows_);
  std::vector<std::byte> row(columns * ckpt::size_of(dtype_));
  cast(reinterpret_cast<const std::byte*>(sums.data()), DType::f64, row.data(), dtype_, columns);
  return row;
}

// Every row of the region; `row` as of mean_row().
void ConvertedState::fill(const std::vector<std::byte>& row, const Box& region, std::byte* dst) const {
  const std::size_t size = ckpt::size_of(dtype_);
  if (row.empty()) {
    std::memset(dst, 0, region.elements() * size);
    return;
  }
  Box one = Box::whole(shape_);
  one.shape[0] = 1;
  Box part = region;
  part.offset[0] = 0;
  part.shape[0] = 1;
  for (std::uint64_t r = 0; r < region.shape[0]; ++r)
    ckpt::copy_region(row.data(), one, dst + r * part.elements() * size, part, part, size);
}

void ConvertedState::read(ckpt::ChunkCache& source, const Box& region, std::byte* dst) const {
  if (region.empty()) return;
  const std::optional<Box> kept = shape_.empty() ? region : rows(region, 0, kept_rows_);
  std::size_t done = 0;
  if (kept) {
    done = kept->elements();
    if (is_cast()) {
      thread_local std::vector<std::byte> raw;
      raw.resize(done * ckpt::size_of(source_dtype_));
      source.read(state_, *kept, raw.data());
      convert(raw.data(), dst, done);
    } else {
      source.read(state_, *kept, dst);
    }
  }
  if (done == region.elements()) return;
  std::call_once(once_, [&] { new_row_ = mean_row(source); });
  fill(new_row_, *rows(region, kept_rows_, shape_[0]), dst + done * ckpt::size_of(dtype_));
}

bool ConvertedState::read_stored(ckpt::ChunkCache& source, const Box& region, const ckpt::Dims& chunk,
                                 ckpt::StoredChunk& out) const {
  if (is_cast() || (!shape_.empty() && region.end(0) > kept_rows_)) return false;
  return source.read_stored(state_, region, chunk, out);
}

ConvertedState::Expected ConvertedState::expected(const std::shared_ptr<const ckpt::Checkpoint>& source,
                                                  int threads) const {
  const ckpt::Manifest& manifest = source->manifest();
  const std::size_t source_size = ckpt::size_of(source_dtype_), size = ckpt::size_of(dtype_);
  struct Worker {
    ckpt::ChunkDecoder decoder;
    std::vector<std::byte> stored, raw, values, converted;
  };
  std::vector<Worker> workers(static_cast<std::size_t>(threads));
  Expected result;
  ckpt::Fingerprint of_source;
  std::mutex mutex;
  std::vector<std::pair<std::size_t, std::uint64_t>>
      chunks;  // of all boxes, so that no thread waits at a box's end
  const auto [first_box, last_box] = source->index().rows(state_);
  for (std::size_t row = first_box; row < last_box; ++row)
    for (std::uint64_t c = 0; c < manifest.boxes[row].chunks; ++c) chunks.emplace_back(row, c);
  ckpt::parallel_for(threads, chunks.size(), [&](int worker, std::size_t i) {
    const auto [row, c] = chunks[i];
    const ckpt::BoxEntry& box = manifest.boxes[row];
    const ckpt::ShardReader& shard = source->shard(box.file);
    Worker& w = workers[static_cast<std::size_t>(worker)];
    shard.read_stored(box.first_chunk + c, w.stored);
    w.raw.resize(ckpt::element_count(box.chunk) * source_size);
    w.decoder.decode(w.stored, source_size, w.raw);
    const Box part = ckpt::chunk_box(box.box, box.chunk, c);
    w.values.resize(part.elements() * source_size);
    ckpt::copy_region(w.raw.data(), {part.offset, box.chunk}, w.values.data(), part, part, source_size);
    const ckpt::Fingerprint before = ckpt::fingerprint(w.values.data(), source_size, part, source_shape_);
    ckpt::Fingerprint after;
    std::uint64_t underflows = 0;
    if (const auto kept = shape_.empty() ? std::optional(part) : rows(part, 0, kept_rows_)) {
      if (is_cast()) {
        w.converted.resize(kept->elements() * size);
        underflows = convert(w.values.data(), w.converted.data(), kept->elements());
      }
      after = ckpt::fingerprint(is_cast() ? w.converted.data() : w.values.data(), size, *kept, shape_);
    }
    const std::lock_guard lock(mutex);
    of_source += before;
    result.fingerprint += after;
    result.underflows += underflows;
    result.read_bytes += w.stored.size();
  });
  if (of_source != manifest.states[state_].fingerprint)
    throw Error(
        ErrorCode::damaged,
        fmt::format("{}: {} reads with another fingerprint than it was saved with", source->path(), name_),
        source->path());
  if (!has_new_rows()) return result;
  // Read and summed again, not what the writers had in memory.
  ckpt::ChunkCache cache(source, 0);
  const std::vector<std::byte> mean = mean_row(cache);
  result.read_bytes += cache.read_bytes();
  std::vector<std::byte> values;
  const std::uint64_t columns = ckpt::element_count(shape_) / shape_[0];
  const std::uint64_t block = std::max<std::uint64_t>(1, kBlockBytes / (columns * size));
  for (std::uint64_t row = kept_rows_; row < shape_[0]; row += block) {
    const Box part = *rows(Box::whole(shape_), row, row + block);
    values.resize(part.elements() * size);
    fill(mean, part, values.data());
    result.fingerprint += ckpt::fingerprint(values.data(), size, part, shape_);
  }
  return result;
}

std::shared_ptr<const ckpt::Source> converted_source(std::shared_ptr<const ConvertedState> state,
                                                     std::shared_ptr<ckpt::ChunkCache> cache) {
  return std::make_shared<ConvertedSource>(std::move(state), std::move(cache));
}

}  // namespace shardwright::reshard
