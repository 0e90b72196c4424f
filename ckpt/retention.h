// Which checkpoints are removed, and how: rename to `.trash-<attempt>`, parent fsync, unlink (fault point
// retire).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/env.h"

namespace shardwright::ckpt {

struct RetentionJob {
  std::string checkpoints_dir;
  int keep = 1;             // newest valid ones kept; at least 1
  std::string attempt;      // suffix of the trash name
  std::string spare;        // path never removed (resumed from); may be empty
  bool superseded = false;  // remove superseded ones too (prune only)
  std::function<bool()> still_mine = [] { return true; };
};

/// Ordered by step, never by name's text or time; never removes the last valid one. Returns what was removed.
std::vector<std::string> retire(Env& env, const RetentionJob& job);

}  // namespace shardwright::ckpt
