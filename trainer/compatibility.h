// May this run go on from that checkpoint? The model never differs; seed, global batch and data only when the
// user says so; all else may.
#pragma once

#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "trainer/config.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {

struct Difference {
  std::string field;
  std::string stored;
  std::string here;
  /// "train.seed: 7 in the checkpoint, 8 here"
  std::string line() const;
};

struct Comparison {
  bool weights_only = false;        // the checkpoint has no optimizer state
  std::vector<Difference> refused;  // need --accept-changes
  std::vector<Difference>
      permitted;  // layout, precision, [optim], [checkpoint], [elastic], steps: said, never refused
};

/// `here` is the state as this run would start it: seed, global batch and data of the configuration.
/// Error(mismatch) for another model, with the fields that differ, and for another program's checkpoint.
Comparison compare(const ckpt::Manifest& stored, const std::string& path, const Config& config,
                   const reshard::ModelSpec& model, const TrainingState& here);

/// Error(mismatch) unless all states, or those of the weights alone, are fp32, as training and evaluation
/// hold them: `reshard --cast` makes others.
void check_types(const ckpt::Manifest& stored, const std::string& path, bool weights_only);

/// Throws Error(mismatch) naming what needs --accept-changes, if anything does.
void refuse_changes(const Comparison& comparison, const std::string& path);

}  // namespace shardwright::trainer
