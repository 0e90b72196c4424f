// The configuration of a run: TOML file, then --set, checked as a whole. Unknown keys are errors that suggest
// the nearest one; a value whose feature is not built yet is an error that says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/chunk_codec.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::trainer {

struct Config {
  std::string file;             // as given
  std::string run_dir;          // [run] dir, default runs/<stem of the file>
  std::string checkpoints_dir;  // [checkpoint] dir, default <run_dir>/checkpoints

  std::string preset;          // [model] preset, a name of reshard::presets() or empty
  reshard::ModelConfig model;  // [model], the preset and defaults filled in

  struct Data {
    std::vector<std::string> train;  // files, in order; a string or an array in TOML
    std::vector<std::string> valid;
    std::string format = "auto";  // auto | text | u16 (megatron | llmc: not built yet)
  } data;

  struct Train {
    std::int64_t steps = 0;
    std::int64_t global_batch = 0;
    std::int64_t micro_batch = 1;
    std::uint64_t seed = 0;
    std::string dtype = "fp32";
    double loss_scale = 65536;              // fp16: the first one
    std::int64_t loss_scale_window = 2000;  // fp16: finite steps until it doubles
    std::int64_t eval_every = 0;            // 0: never
    std::string device = "auto";
    bool log_samples = false;
    bool reproducible = true;
  } train;

  struct Optim {
    double lr = 3e-4;
    double min_lr = 0;
    std::int64_t warmup_steps = 0;
    std::string schedule = "cosine";  // cosine | linear | constant | wsd
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0;  // global gradient norm; 0: no clipping
  } optim;

  struct Parallel {
    // dp = 0: what the rank count leaves (reshard::with_ranks).
    reshard::Layout layout = {.tp = 1, .pp = 1, .dp = 0, .zero = 0, .vpp = 1, .stages = {}};
    std::string schedule = "1f1b";
    bool sequence_parallel = false;
    std::string recompute = "none";
    std::string offload = "none";  // none | cpu | nvme
    std::string offload_dir;       // empty: <run_dir>
    std::string comm = "auto";
  } parallel;

  struct CheckpointSection {
    std::int64_t every = 0;  // 0: only after the last step
    int keep = 0;            // 0: all
    bool async = true;
    ckpt::Codec codec = ckpt::Codec::fast;
    std::string on_busy = "wait";  // wait | skip
    bool verify_writes = false;
    bool check_replicas = true;
    int workers = 0;               // 0: as many as a rank has threads
    std::string priority = "low";  // low | normal, of the workers
    double commit_deadline_s = 120;
  } checkpoint;

  struct Health {
    std::string on_nonfinite = "stop";  // stop | skip | rollback
    std::int64_t max_skips = 10;        // in a row; of rollbacks: in one call
    double loss_spike = 1.5;            // times the median of the last steps; 0: not watched
    double norm_spike = 10;
  } health;

  struct Elastic {
    bool enabled = true;
    std::string on_failure = "shrink";  // shrink | restart
    int min_ranks = 1;
    int max_restarts = 10;
    double heartbeat_s = 10;
    double phase_deadline_s = 120;  // start and load: at least 300
  } elastic;

  reshard::BatchShape batch() const { return {train.global_batch, train.micro_batch}; }
};

/// "section.key" and the text of its value, as --set gives them.
using Override = std::pair<std::string, std::string>;
/// "section.key=value" taken apart. Error(usage).
Override parse_override(const std::string& text);

/// Who said the value of each key ("section.key"): "run.toml:7", "--set", "preset", or "default", also where
/// a default follows from other values.
using ValueSources = std::map<std::string, std::string>;

/// Reads and checks; Error(usage) with a line for each mistake: unknown key (nearest known), wrong type (what
/// is right), value out of range, not built yet. [model] preset fills in what neither file nor overrides say.
/// Error(missing) for the file. Paths stay as written (relative to the working directory). `sources` (may be
/// null) gets an entry for each key.
Config load_config(const std::string& file, const std::vector<Override>& overrides,
                   ValueSources* sources = nullptr);
/// The same for TOML that was read already; `file` names it in messages, in `sources` and for defaults.
Config parse_config(const std::string& contents, const std::string& file,
                    const std::vector<Override>& overrides, ValueSources* sources = nullptr);

/// The effective, complete configuration as TOML (written to <run>/config.toml); load_config reads it back to
/// the same Config. With `sources`, each value's own is a comment behind it.
std::string to_toml(const Config& config, const ValueSources& sources = {});
/// The same as one JSON object, as kept in manifests.
std::string to_json(const Config& config);

/// The overrides that set a layout, whatever the file says: how a supervisor tells its workers theirs.
std::vector<Override> layout_overrides(const reshard::Layout& layout);

/// Every key with its default, its meaning and what it may be, "section.key" (for --help and for
/// suggestions).
struct KeyInfo {
  std::string key;
  std::string fallback;
  std::string meaning;
  std::string allowed;  // "gpt2, llama, bloom" or "from 1", "above 0", ...; empty: whatever its type holds
};
const std::vector<KeyInfo>& config_keys();

}  // namespace shardwright::trainer
