// How the library sees memory: a Source to save from, a destination to load into. Device memory is the
// caller's implementation of Source; this library knows host bytes only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"

namespace shardwright::ckpt {

/// A chunk as some shard stores it, and decoded.
struct StoredChunk {
  std::vector<std::byte> stored;
  std::vector<std::byte> raw;  // of the chunk's full extents, with what pads it
  std::uint64_t xxh3_64 = 0;   // of the stored bytes
};

/// Values of one box of a tensor, readable in parts.
class Source {
 public:
  virtual ~Source() = default;
  /// Copies `region` (global coordinates, inside the source's box) densely to `dst`. Thread-safe.
  virtual void read(const Box& region, std::byte* dst) const = 0;
  /// True, with `out` filled and its digest checked, if `region` is what one stored chunk of the full extents
  /// `chunk` holds: it can be written again as it is. Thread-safe; errors as of read().
  virtual bool read_stored(const Box& /*region*/, const Dims& /*chunk*/, StoredChunk& /*out*/) const {
    return false;
  }
  /// Where `region` lies densely, for a reader that holds it until give_back(region): nobody changes it so
  /// long. Null where it does not lie so. It counts as read from then on. Thread-safe.
  virtual const std::byte* borrow(const Box& /*region*/) const { return nullptr; }
  virtual void give_back(const Box& /*region*/) const {}
  /// True if the values stay what they are for as long as this object lives, whatever training does: a
  /// snapshot reads it when it comes to it.
  virtual bool frozen() const { return false; }
  /// The host memory read from, so that a snapshot can watch it; empty for anything else.
  virtual std::span<const std::byte> host_range() const { return {}; }
};

/// Dense row-major host memory of `box`. Does not own it.
class HostSource : public Source {
 public:
  HostSource(const void* data, Box box, std::size_t element_size)
      : data_(static_cast<const std::byte*>(data)), box_(box), element_size_(element_size) {}
  void read(const Box& region, std::byte* dst) const override {
    copy_region(data_, box_, dst, region, region, element_size_);
  }
  const std::byte* borrow(const Box& region) const override {
    const auto first = dense_start(box_, region);
    return first ? data_ + *first * element_size_ : nullptr;
  }
  std::span<const std::byte> host_range() const override { return {data_, box_.elements() * element_size_}; }

 private:
  const std::byte* data_;
  Box box_;
  std::size_t element_size_;
};

/// One box that this process writes. Over all processes of a save the boxes of a (tensor, kind) must cover
/// the global shape exactly once; verify and commit check it.
struct SaveItem {
  std::string tensor;  // global name; '/' and '@' are refused
  std::string kind;    // "param", "exp_avg", "exp_avg_sq", or the caller's own
  DType dtype = DType::f32;
  Dims global_shape;  // empty for a scalar
  Box box;            // may be empty: nothing is written, the tensor is still listed
  Dims chunk;         // extents of a chunk, each at most the box's; empty: chosen as whole rows up to 1 MiB
  std::shared_ptr<const Source> source;
};

/// One box to be filled, from whatever boxes the checkpoint has.
struct LoadItem {
  std::string tensor;
  std::string kind;
  DType dtype = DType::f32;          // must equal the stored one
  Dims global_shape;                 // must equal the stored one
  Box box;                           // may be empty
  std::byte* destination = nullptr;  // dense memory of `box`
};

}  // namespace shardwright::ckpt
