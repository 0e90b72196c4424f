// The proof of a reshard: every state that the target keeps has the source's values, whatever boxes it is cut
// in now.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/env.h"
#include "ckpt/manifest.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {

struct Proof {
  std::uint64_t read_bytes = 0;       // stored bytes of the source, of converted states
  std::vector<std::string> warnings;  // what a cast lost
};

/// Compares the fingerprints and types of the kept states, source against target. What a converted state must
/// hold is found from the source's chunks once more, with up to `threads` threads (ConvertedState::expected).
/// Error(damaged) names the first state that differs, is missing or is too many.
Proof prove(const std::shared_ptr<const ckpt::Checkpoint>& source, const TargetPlan& plan,
            const ckpt::Manifest& target, int threads);

/// Reads every chunk of the shards in `directory` that `target` tells of, and compares the fingerprints of
/// what they hold with the target's own. Any of `threads` workers tells `done` how many bytes it has read.
/// Error(damaged) names file or state.
void read_again(ckpt::Env& env, const std::string& directory, const ckpt::Manifest& target, int threads,
                const std::function<void(std::uint64_t)>& done);

}  // namespace shardwright::reshard
