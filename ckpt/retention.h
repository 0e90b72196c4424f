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
  bool dry_run = false;     // says what would be removed, and removes nothing
  std::function<bool()> still_mine = [] { return true; };
  /// Asked of the newest structurally valid ones, newest first, until `keep` of them are found; one for which
  /// it is false counts as damaged. Empty: structure is enough.
  std::function<bool(const std::string& path)> is_whole = {};
};

/// Ordered by step, never by name's text or time. Damaged ones neither count nor go; where none is valid
/// nothing is removed, and the last valid one never is. Returns what was removed, or
/// would be.
std::vector<std::string> retire(Env& env, const RetentionJob& job);

}  // namespace shardwright::ckpt
