// Dynamic loss scaling (Micikevicius et al. 2018): gradients of fp16 are computed of the loss times a power
// of two, so that small ones do not vanish, and a step whose gradients overflow is passed over with half of
// it. The scale is part of the training state: it is the same in each layout and goes on after a resume.
#pragma once

#include "trainer/config.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {

/// The scale that a run of this type begins with: 1 but for fp16.
double first_loss_scale(const Config::Train& train);

/// What a checkpoint of another type leaves: fp16 begins anew, the others have none. `stored` is the type
/// that the state was saved with.
void adapt_loss_scale(TrainingState& state, const std::string& stored, const Config::Train& train);

/// After a finite step: doubles the scale once `loss_scale_window` of them have passed without an overflow.
void grow_loss_scale(TrainingState& state, const Config::Train& train);

/// After an overflow: halves the scale. False if it is at its least, so that the overflow is not its fault.
bool shrink_loss_scale(TrainingState& state);

}  // namespace shardwright::trainer
