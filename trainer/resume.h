// Where a run begins: which checkpoint, agreed by all ranks and loaded by all of them, or a fresh start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "trainer/communicator.h"
#include "trainer/compatibility.h"
#include "trainer/config.h"
#include "trainer/parameters.h"
#include "trainer/train.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {

struct ResumeRequest {
  Resume mode = Resume::automatic;
  std::string path;  // for Resume::path
  bool accept_changes = false;
  int threads = 1;
};

struct Start {
  TrainingState state;  // position of this run; seed, type, global batch and data of the configuration
  bool fresh = true;
  std::string path;  // resumed from
  std::vector<ckpt::PassedOver> passed_over;
  Comparison comparison;
  /// What is newer than the start and must be superseded before the first step.
  bool supersede_all = false;
};

/// Rank 0 chooses (it alone scans), all ranks load or initialise `parameters`; if the content is bad on any
/// rank all fall to the next older one (never for Resume::path). `initial` is the state of a fresh start.
/// Collective. Throws AgreedError: usage, missing, mismatch, and damaged or incomplete where there is nothing
/// to go on from.
Start begin_from(ckpt::Env& env, Communicator& world, const Config& config, const ResumeRequest& request,
                 const TrainingState& initial, Parameters& parameters);

/// Renames what is newer than the start (rank 0 works, the error is everyone's) and returns the new paths on
/// rank 0. Collective.
std::vector<std::string> supersede(ckpt::Env& env, Communicator& world, const Config& config,
                                   const Start& start, const ckpt::Generation& generation);

}  // namespace shardwright::trainer
