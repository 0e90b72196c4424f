// Loss of a checkpoint on a data file, the same answer for a checkpoint of any layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::trainer {

struct EvalReport {
  std::uint64_t step = 0;
  double loss = 0;  // mean over tokens
  double perplexity = 0;
  std::int64_t tokens = 0;
};

/// Loads the checkpoint as one rank and runs forward over all samples. Errors as Checkpoint and TokenData
/// have them.
EvalReport evaluate(const std::string& checkpoint, const std::vector<std::string>& files,
                    const std::string& format, int threads);

}  // namespace shardwright::trainer
