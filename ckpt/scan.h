// What is in a checkpoints directory, and which of it may be resumed from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/contents.h"
#include "ckpt/env.h"

namespace shardwright::ckpt {

enum class Status { valid, incomplete, damaged, superseded, future_version };
std::string_view name(Status status);

struct ScanEntry {
  std::string path;
  std::uint64_t step = 0;
  std::uint64_t generation = 0;
  Status status = Status::damaged;
  std::string reason;  // why it is not valid; empty if it is
  std::string layout_json;
  std::uint64_t stored_bytes = 0;
  double time = 0;  // seconds since the epoch, of COMMIT
};

/// What a checkpoint says of itself, its chain of digests followed down to the manifest.
struct Structure {
  Commit commit;
  Manifest manifest;
};

/// COMMIT -> manifest digest -> every file present with its size. Throws the Error that says what is wrong
/// and names the file: incomplete, damaged, future_version, io.
Structure check_structure(Env& env, const std::string& path);

/// All `step-<10 digits>` with what may follow (superseded, tmp), newest first. Structural: COMMIT ->
/// manifest digest -> every file present with its size. Never trusts LATEST.
std::vector<ScanEntry> scan(Env& env, const std::string& checkpoints_dir);

/// The same, and then every byte of those that are structurally whole is read as verify does, on `threads`
/// threads, one checkpoint after the other. `progress` (may be empty) gets bytes done and bytes in all.
std::vector<ScanEntry> deep_scan(Env& env, const std::string& checkpoints_dir, int threads,
                                 const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

/// Path and manifest digest of the newest valid checkpoint, with what was passed over on the way.
struct PassedOver {
  std::string path;
  std::string reason;
};
struct Selection {
  std::string path;
  Commit commit;
};
std::optional<Selection> newest_valid(Env& env, const std::string& checkpoints_dir,
                                      std::vector<PassedOver>* passed_over);

/// What the command line means by CKPT: a checkpoint directory itself, or a run or checkpoints directory
/// (then its newest valid one). Error(missing) if there is no checkpoint at all, Error(busy) for a `.tmp-`
/// directory, Error(damaged) if there are some but none is valid.
std::string resolve_checkpoint(Env& env, const std::string& path);

}  // namespace shardwright::ckpt
