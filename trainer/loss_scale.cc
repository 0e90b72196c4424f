#include "trainer/loss_scale.h"

#include <algorithm>

namespace shardwright::trainer {
namespace {

constexpr double kLeast = 1;
// The largest power of two of which an fp32 gradient's square still fits fp32 by far.
constexpr double kMost = 1ULL << 40;

bool scaled(const std::string& dtype) { return dtype == "fp16"; }

}  // namespace

double first_loss_scale(const Config::Train& train) { return scaled(train.dtype) ? train.loss_scale : 1; }

void adapt_loss_scale(TrainingState& state, const std::string& stored, const Config::Train& train) {
  if (stored == train.dtype && scaled(stored)) return;
  state.loss_scale = first_loss_scale(train);
  state.loss_scale_steps = 0;
}

void grow_loss_scale(TrainingState& state, const Config::Train& train) {
  if (!scaled(state.dtype)) return;
  if (++state.loss_scale_steps < train.loss_scale_window) return;
  state.loss_scale_steps = 0;
  if (state.loss_scale < kMost) state.loss_scale *= 2;
}

bool shrink_loss_scale(TrainingState& state) {
  if (!scaled(state.dtype) || state.loss_scale <= kLeast) return false;
  state.loss_scale = std::max(kLeast, state.loss_scale / 2);
  state.loss_scale_steps = 0;
  return true;
}

}  // namespace shardwright::trainer
