// The names under a checkpoints directory: what a directory claims to be before anything in it was read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardwright::ckpt {

enum class NameState {
  committed,   // step-0000000120
  attempt,     // step-0000000120.tmp-3-12
  superseded,  // step-0000000120.superseded-4
  trash,       // step-0000000120.trash-3-12
};

struct CheckpointName {
  std::string text;
  std::uint64_t step = 0;
  NameState state = NameState::committed;
  std::string suffix;                       // what follows ".tmp-", ".superseded-" or ".trash-"
  std::optional<std::uint64_t> generation;  // first number of the suffix, where it begins with one
};

/// Nothing for any other name: it is not this program's and is never touched. Thread-safe.
std::optional<CheckpointName> parse_checkpoint_name(const std::string& name);

/// The last component of a path, whatever slashes follow it.
std::string base_name(const std::string& path);

/// True for a path that names an attempt: of a save (step-N.tmp-3-12) or of a reshard (NAME.tmp-r-...).
bool is_attempt(const std::string& path);

}  // namespace shardwright::ckpt
