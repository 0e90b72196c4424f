// The memory behind a rank's part of the model: placement() turned into buffers, nothing else. Values and
// gradients have the box the rank holds, moments the box its optimizer owns.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/source.h"
#include "kernels/device.h"
#include "reshard/placement.h"

namespace shardwright::trainer {

/// One tensor as this rank holds it. Pointers are into device memory, dense row-major of their box.
struct Parameter {
  reshard::Placed placed;
  const reshard::TensorSpec* spec = nullptr;
  float* value = nullptr;       // placed.holds
  float* grad = nullptr;        // placed.holds
  float* exp_avg = nullptr;     // optimizer box
  float* exp_avg_sq = nullptr;  // optimizer box
  ckpt::Box optimizer_box;
  /// Elements of `holds` before the optimizer box starts (pieces are runs of rows, so it is a contiguous
  /// range).
  std::uint64_t optimizer_offset = 0;
};

/// Elements of dense `outer` before the first of `inner`, a run of its rows; 0 for an empty one.
std::uint64_t row_offset(const ckpt::Box& outer, const ckpt::Box& inner);

/// Tensors that are fused in memory lie back to back, in this order, for values and for gradients: q, k, v
/// weights; q, k, v biases; gate, up weights. Other tensors follow the model's order, 64-byte aligned.
class Parameters {
 public:
  /// Allocates the part of `rank`; needs no other rank, so a test may build any of them in one process.
  /// Values are zero.
  Parameters(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank);
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

  /// Weights at step 0: normal(0, 0.02) by Philox keyed by seed and the tensor's name, counted by global
  /// element index, residual projections scaled by 1/sqrt(2 layers); norms 1, biases 0. Equal in every
  /// layout. Moments zero.
  void initialise(std::uint64_t seed);
  void zero_moments();
  void zero_gradients();
  /// The memory of all gradients with the zero padding between them: the same extent on all ranks that hold
  /// the same boxes.
  std::span<float> gradients();

  /// What a save writes: writer boxes of param, exp_avg, exp_avg_sq. Sources point into this object's memory.
  std::vector<ckpt::SaveItem> save_items() const;
  /// What a load fills: `holds` of param, optimizer boxes of the moments (none with `weights_only`).
  std::vector<ckpt::LoadItem> load_items(bool weights_only);

 private:
  reshard::ModelSpec model_;
  reshard::Layout layout_;
  int rank_;
  kernels::Memory values_, grads_, moments_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<reshard::Role, std::int64_t>, std::size_t>
      places_;  // by role and first place in the model
};

}  // namespace shardwright::trainer
