// Turns a checkpoint of any layout into one of any other: the load plan of every target rank, then the save
// path, in bounded memory and without temporary files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/codec.h"
#include "ckpt/contents.h"
#include "ckpt/env.h"
#include "reshard/conversion.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"
#include "reshard/process_place.h"

namespace shardwright::reshard {

struct ReshardOptions {
  std::string source;  // a checkpoint directory
  std::string target;  // must not exist
  Layout layout;
  std::uint64_t max_memory_bytes = 512u << 20;  // at least 64 MiB
  int jobs = 1;
  Conversion conversion = {};
  bool plan_only = false;
  bool paranoid = false;  // the target is read again and compared before the commit
  /// Given, all chunks are encoded anew; else those that need no cutting stay as they are stored.
  std::optional<ckpt::Codec> codec = {};
  /// Where more than one process works at this, all with these options, each writes a share of the target
  /// ranks. Each uses `max_memory_bytes`.
  ProcessPlace process = {};
  ProcessTimes times = {};
  std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)> progress;
};

/// What a target rank writes.
struct RankShare {
  std::uint64_t boxes = 0;
  std::uint64_t bytes = 0;         // of values, before compression
  std::uint64_t source_files = 0;  // that it reads
};

/// The contract's fields of `reshard --json`.
struct ReshardReport {
  std::string source;
  std::string target;
  std::uint64_t step = 0;
  std::string from_layout_json;
  std::string to_layout_json;
  std::uint64_t tensors = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t needed_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t chunks_read = 0;
  std::uint64_t chunks_passed_through = 0;
  std::uint64_t chunks_recoded = 0;
  std::uint64_t shards_kept = 0;  // of the target, finished by an interrupted try and not made again
  std::uint64_t copies = 0;
  std::uint64_t files_read = 0;  // of a plan: files of the source with anything that is needed
  std::uint64_t files_written = 0;
  std::uint64_t estimated_peak_bytes = 0;
  double seconds = 0;
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t proof_tensors =
      0;  // states whose fingerprints were compared, source against target, before the commit
  bool proof_ok = false;
  std::vector<std::string> conversions;  // what else than the layout is another one, a line each
  std::uint64_t states_cast = 0;         // states of the target that have another type than in the source
  std::vector<RankShare> ranks;          // of a plan, by rank of the target
  std::vector<std::string> warnings;     // for example a dp that training's batch does not allow
};

/// Error(exists) if the target is there, Error(usage) for an illegal layout, Error(busy) if another process
/// works on the same target, Error(damaged) if the source is. On failure nothing is left that could be taken
/// for a checkpoint; where it was another process that ended or hung, finished shards are kept for another
/// try. Of several processes all end alike, and process 0 has the report.
ReshardReport reshard(ckpt::Env& env, const ReshardOptions& options);

/// The plan of resharding a training checkpoint of `model` from a layout; there need not be one. Of the
/// options `layout`, `max_memory_bytes` and `conversion.weights_only` count; bytes are those of values,
/// before compression.
ReshardReport plan_reshard(const ModelSpec& model, const Layout& from, const ReshardOptions& options);

/// The model and the layout that a checkpoint's manifest describes; Error(mismatch) naming `path` if it is
/// another program's, which describes what it likes, or nothing.
ModelConfig config_of(const ckpt::Manifest& manifest, const std::string& path = "checkpoint");
Layout layout_of(const ckpt::Manifest& manifest, const std::string& path = "checkpoint");

/// The table of config_of(); Error(mismatch) also if the tensors are not those of the table.
ModelSpec model_of(const ckpt::Manifest& manifest, const std::string& path = "checkpoint");

}  // namespace shardwright::reshard
