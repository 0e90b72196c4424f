// Which run and which generation this process belongs to, and who holds its locks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/run_dir.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/launcher.h"

namespace shardwright::trainer {

struct RunIdentity {
  ckpt::Generation generation;
  bool supervised = false;
  std::vector<std::unique_ptr<ckpt::RunLock>>
      locks;  // on rank 0 of a run without supervisor, for the whole run
};

/// Begins the next generation of a run; the caller holds the locks. Says on standard error where GENERATION
/// was lost and what it was taken from.
ckpt::Generation next_generation(ckpt::Env& env, const Config& config);

/// With a supervisor its word; without one rank 0 locks the run and checkpoints directories, begins the next
/// generation and tells the others. Collective; an Error (busy, io) is everyone's.
RunIdentity join_run(ckpt::Env& env, Communicator& world, const Config& config,
                     const std::optional<Supervised>& supervised);

}  // namespace shardwright::trainer
