// Gradients and parameters on their way between the ranks of the data axis. ZeRO 0 sums gradients in place;
// from 1 on each rank gets the sums of its own pieces, and gives the new values of those to the others; from
// 2 on a gradient is whole only during the backward pass of its unit, from 3 on a value only during either
// pass. The pieces are placement's: uneven, some empty.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "trainer/bucket.h"
#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// Elements that pass through at once, over all ranks of the axis: 64 MiB of fp32.
inline constexpr std::uint64_t kRoundElements = std::uint64_t{1} << 24;

/// Bytes that a DataParallel allocates, as a pure function.
struct PassageMemory {
  std::uint64_t send_elements = 0;     // gradients on their way; with ZeRO 1 and 2 values too
  std::uint64_t receive_elements = 0;  // sums of this rank's pieces
  std::uint64_t gather_bytes = 0;      // ZeRO 3: values on their way
  std::uint64_t bytes() const { return 4 * (send_elements + receive_elements) + gather_bytes; }
};
PassageMemory passage_memory(const ParameterMemory& memory, int ranks,
                             std::uint64_t round_elements = kRoundElements);

/// Every call is collective over the data axis, in the same order on all its ranks; main thread only. What is
/// started is under way while the caller computes.
class DataParallel {
 public:
  static constexpr std::size_t kNoUnit = SIZE_MAX;

  DataParallel(Parameters& parameters, Communicator& data, kernels::Stream& stream,
               std::uint64_t round_elements = kRoundElements);

  // Around the passes of a unit. Nothing happens where nothing is sharded.

  /// The unit's values are in place until another unit with the same slot is asked for. Those of `next`,
  /// which must be asked for next (kNoUnit: it is not known), are started.
  void need_values(std::size_t unit, std::size_t next);
  /// Before a micro-batch's backward pass first adds to the unit's gradients.
  void begin_gradients(std::size_t unit);
  /// After it has added the last: their sum over the axis is started.
  void end_gradients(std::size_t unit);

  /// After the last micro-batch: grad_piece is the sum over the axis, on each rank.
  void reduce_gradients();
  /// After masters have changed: the values follow on all ranks.
  void spread_values();

 private:
  /// A round of a bucket, under way in memory that it has to itself.
  struct Round {
    const Bucket* bucket = nullptr;
    std::int64_t number = 0;
    std::byte* packed = nullptr;
    float* sums = nullptr;  // of a reduction
    std::unique_ptr<Transfer> transfer;
  };
  /// Memory for rounds, handed out from its start and all taken back at once.
  struct Passage {
    std::span<std::byte> memory;
    std::size_t used = 0;
    std::byte* take(std::size_t bytes);  // null: no room
  };
  using Place = std::pair<const Bucket*, std::int64_t>;  // bucket and round

  void all_reduce_in_place();
  void reduce(std::size_t unit);
  bool start_reduction(const Place& place);
  void finish_reductions();
  bool start_gather(const Place& place, Passage& passage);
  void finish_gathers(Passage& passage);
  /// Starts as many rounds of the unit that is coming as there is room for.
  void gather_more();
  std::size_t& in_slot(std::size_t unit) { return in_slot_[parameters_.memory().units[unit].layer ? 0 : 1]; }

  Parameters& parameters_;
  Communicator& data_;
  kernels::Stream& stream_;
  int zero_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<Place>> rounds_;  // by unit
  kernels::Memory send_, receive_, gather_;
  Passage sending_, receiving_, gathering_;
  std::vector<Round> reductions_, gathers_;
  std::size_t in_slot_[2] = {kNoUnit, kNoUnit};  // ZeRO 3: whose values are there
  std::size_t coming_ = kNoUnit;                 // the unit that is being gathered
  std::size_t started_ = 0;                      // of its rounds
};

}  // namespace shardwright::trainer
