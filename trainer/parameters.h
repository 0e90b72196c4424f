// The memory behind a rank's part of the model: placement() turned into buffers, nothing else. What the
// optimizer owns has the box placement says; what forward and backward read and write has the box the rank
// holds, always there or, where ZeRO shards it, in a slot while its unit is in work (parameter_memory.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/source.h"
#include "kernels/device.h"
#include "kernels/elements.h"
#include "reshard/placement.h"
#include "trainer/offload_state.h"
#include "trainer/parameter_memory.h"

namespace shardwright::trainer {

/// One tensor as this rank holds it. Pointers are into device memory, dense row-major of their box, and never
/// change.
struct Parameter {
  reshard::Placed placed;
  const reshard::TensorSpec* spec = nullptr;
  std::size_t unit = 0;     // ParameterMemory::units
  kernels::Elements value;  // placed.holds; the copy that forward and backward read. ZeRO 3: in a slot
  float* grad = nullptr;    // placed.holds; ZeRO 2 and 3: in a slot, of one micro-batch

  // What the optimizer owns. Only these are saved and loaded.
  ckpt::Box optimizer_box;
  /// Elements of `holds` before the optimizer box starts (pieces are runs of rows, so it is a contiguous
  /// range).
  std::uint64_t optimizer_offset = 0;
  // Null where they are offloaded: moments, and masters of 16-bit values.
  float* master = nullptr;        // the most precise value: of an fp32 value this is value_piece
  kernels::Elements value_piece;  // as `value`: inside of it, or with ZeRO 3 all that stays
  float* grad_piece = nullptr;    // inside `grad`, or with ZeRO 2 and 3 the sum over micro-batches
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
};

/// The type of values that "fp32", "bf16" or "fp16" asks for; Error(usage) for others.
kernels::ElementType element_type_named(const std::string& dtype);

/// Elements of dense `outer` before the first of `inner`, a run of its rows; 0 for an empty one.
std::uint64_t row_offset(const ckpt::Box& outer, const ckpt::Box& inner);

/// Tensors that are fused in memory lie back to back, in this order, for values and for gradients: q, k, v
/// weights; q, k, v biases; gate, up weights. Other tensors are 64-byte aligned.
///
/// initialise() and a load fill masters. Values follow from them by DataParallel::spread_values(), and of an
/// fp32 value with ZeRO 0 the master is the value itself.
class Parameters {
 public:
  /// Allocates the part of `rank`, values of matrices in `type`; needs no other rank, so a test may build any
  /// of them in one process. All zero. With `offload`, moments and masters of 16-bit values lie in a file
  /// (offload_state.h).
  Parameters(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
             kernels::ElementType type = kernels::ElementType::f32,
             const std::optional<OffloadOptions>& offload = std::nullopt);
  Parameters(const Parameters&) = delete;  // parameters point into this object
  Parameters& operator=(const Parameters&) = delete;

  const reshard::ModelSpec& model() const { return model_; }
  const reshard::Layout& layout() const { return layout_; }
  int rank() const { return rank_; }
  std::span<Parameter> all() { return parameters_; }
  std::span<const Parameter> all() const { return parameters_; }
  /// The tensor with this role in this layer (any layer number for embeddings, final norm and head); null if
  /// not held.
  Parameter* find(reshard::Role role, std::int64_t layer = -1);
  const ParameterMemory& memory() const { return memory_; }
  /// Null without offload.
  OffloadedState* offloaded() { return offloaded_.get(); }

  /// Weights at step 0: normal(0, 0.02) by Philox keyed by seed and the tensor's name, counted by global
  /// element index, residual projections scaled by 1/sqrt(2 layers); norms 1, biases 0. Equal in every
  /// layout. Moments zero.
  void initialise(std::uint64_t seed);
  /// Fills optimizer boxes of param and of the moments (with `weights_only` these are zero). Errors as of
  /// Checkpoint::load() and of an offload file.
  void load(const ckpt::Checkpoint& checkpoint, bool weights_only, const ckpt::LoadOptions& options);
  /// Before the first micro-batch of a step.
  void zero_gradients();
  /// A unit's gradients with the zero padding between them: the same extent on all ranks that hold the same
  /// boxes.
  std::span<float> gradients(std::size_t unit);

  /// What a save writes: writer boxes of param, exp_avg, exp_avg_sq. Sources point into this object's memory,
  /// or read its offload file.
  std::vector<ckpt::SaveItem> save_items() const;
  /// What a load fills of memory: optimizer boxes of param and of the moments (none with `weights_only`).
  std::vector<ckpt::LoadItem> load_items(bool weights_only);
  /// `box` of a kind that the optimizer owns, `memory` where it lies or null where it is offloaded.
  std::shared_ptr<const ckpt::Source> source(const Parameter& parameter, const char* kind,
                                             const ckpt::Box& box, const float* memory) const;

 private:
  void load_offloaded(const ckpt::Checkpoint& checkpoint, bool weights_only,
                      const ckpt::LoadOptions& options);

  reshard::ModelSpec model_;
  reshard::Layout layout_;
  int rank_;
  ParameterMemory memory_;
  kernels::Memory values_, value_pieces_, grads_, grad_pieces_, moments_, masters_;
  std::unique_ptr<OffloadedState> offloaded_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<reshard::Role, std::int64_t>, std::size_t>
      places_;  // by role and first place in the model
};

}  // namespace shardwright::trainer
