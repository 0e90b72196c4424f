// Counts of a plan, tensor by tensor: so that a plan of many ranks needs memory for one tensor's boxes only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"
#include "reshard/layout.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {

/// How one tensor, or one state of it, lies in files.
struct Pieces {
  std::vector<ckpt::Box> boxes;
  std::vector<ckpt::Dims> chunks;     // extents of a stored chunk of each box
  std::vector<std::uint32_t> owners;  // the target rank or the source file of each box
  friend bool operator==(const Pieces&, const Pieces&) = default;
};

/// What all ranks of a legal layout write of a tensor of the model.
Pieces written_pieces(const ModelSpec& model, const Layout& layout, std::uint32_t tensor);

/// Extents of the stored chunks of a box whose placement says `chunk`.
ckpt::Dims stored_extents(const ckpt::Box& box, const ckpt::Dims& chunk, ckpt::DType dtype);

/// Adds to a plan's counts; not thread-safe. The plan must outlive it.
class PlanCounter {
 public:
  explicit PlanCounter(TargetPlan& plan);
  /// `states` states of a tensor of one dtype that lie alike in the source, and so in the target. Of `cast`
  /// ones no stored chunk can be kept.
  void add(const Pieces& target, const Pieces& source, ckpt::DType dtype, std::uint64_t states,
           bool cast = false);
  /// Counts the files, after the last add().
  void finish();

 private:
  void drop_repeats();
  TargetPlan& plan_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> reads_;  // target rank, source file
  std::size_t distinct_ = 0;                                    // of them, when repeats were last dropped
};

}  // namespace shardwright::reshard
