#include "trainer/config_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace shardwright::trainer {
namespace {

#define PLACE(type, expression)                      \
  ConfigPlace {                                      \
    +[](Config& c) -> type& { return c.expression; } \
  }

using Text = std::string;
using Texts = std::vector<std::string>;

ConfigKey required(ConfigKey key) {
  key.required = true;
  return key;
}
ConfigKey from(double least, ConfigKey key) {
  key.least = least;
  return key;
}
ConfigKey above(double least, ConfigKey key) {
  key.open_low = true;
  return from(least, std::move(key));
}
/// From 0 up to, but not including, 1.
ConfigKey below_one(ConfigKey key) {
  key.most = 1;
  key.open_high = true;
  return from(0, std::move(key));
}
ConfigKey up_to(double most, ConfigKey key) {
  key.most = most;
  return key;
}
ConfigKey choice(Texts choices, Texts later, ConfigKey key) {
  key.choices = std::move(choices);
  key.later = std::move(later);
  return key;
}

std::vector<ConfigKey> make_schema() {
  std::vector<ConfigKey> keys = {
      {"run.dir", "directory of the run; empty: runs/<name of the file>", PLACE(Text, run_dir)},

      choice({"gpt2", "llama", "bloom"}, {}, {"model.arch", "kind of decoder", PLACE(Text, model.arch)}),
      required(up_to(100000, from(1, {"model.layers", "decoder layers", PLACE(std::int64_t, model.layers)}))),
      required(from(1, {"model.hidden", "width of the residual stream", PLACE(std::int64_t, model.hidden)})),
      required(from(1, {"model.heads", "attention heads", PLACE(std::int64_t, model.heads)})),
      from(0,
           {"model.kv_heads", "heads of keys and values; 0: as heads", PLACE(std::int64_t, model.kv_heads)}),
      from(0,
           {"model.ffn", "width of the MLP; 0: 4 x hidden (llama: 8/3 x)", PLACE(std::int64_t, model.ffn)}),
      required(
          from(1, {"model.vocab", "tokens of the vocabulary (text: 256)", PLACE(std::int64_t, model.vocab)})),
      required(from(1, {"model.seq_len", "positions of a sequence", PLACE(std::int64_t, model.seq_len)})),
      {"model.tie_embeddings", "the output head is the embedding", PLACE(bool, model.tie_embeddings)},
      below_one({"model.dropout", "share of activations dropped", PLACE(double, model.dropout)}),
      {"model.preset", "a known model by name (gpt2-124m, llama-7b, ...), which the other keys change",
       PLACE(Text, preset)},

      required({"data.train", "file or list of files to train on", PLACE(Texts, data.train)}),
      {"data.valid", "file or list of files to evaluate on", PLACE(Texts, data.valid)},
      choice(
          {"auto", "text", "u16"}, {"megatron", "llmc"},
          {"data.format", "text: bytes; u16: token numbers; auto: u16 for .bin", PLACE(Text, data.format)}),

      required(from(0, {"train.steps", "optimizer steps in all", PLACE(std::int64_t, train.steps)})),
      required(
          from(1, {"train.global_batch", "sequences of a step", PLACE(std::int64_t, train.global_batch)})),
      from(1, {"train.micro_batch", "sequences a rank computes at once",
               PLACE(std::int64_t, train.micro_batch)}),
      from(0, {"train.seed", "of weights and order of data", PLACE(std::uint64_t, train.seed)}),
      choice({"fp32", "bf16", "fp16"}, {},
             {"train.dtype", "of what matrix products read; sums, masters and files are fp32",
              PLACE(Text, train.dtype)}),
      up_to(0x1p40, from(1, {"train.loss_scale",
                             "fp16: what the loss is multiplied by at first; a power of two is exact",
                             PLACE(double, train.loss_scale)})),
      from(1, {"train.loss_scale_window", "fp16: finite steps until the scale doubles",
               PLACE(std::int64_t, train.loss_scale_window)}),
      from(0,
           {"train.eval_every", "steps between evaluations; 0: none", PLACE(std::int64_t, train.eval_every)}),
      choice({"auto", "cpu"}, {"cuda"}, {"train.device", "where to compute", PLACE(Text, train.device)}),
      {"train.log_samples", "metrics.jsonl lists each step's samples", PLACE(bool, train.log_samples)},
      {"train.reproducible", "same layout, same bits", PLACE(bool, train.reproducible)},

      from(0, {"optim.lr", "largest learning rate", PLACE(double, optim.lr)}),
      from(0, {"optim.min_lr", "learning rate at the end", PLACE(double, optim.min_lr)}),
      from(0, {"optim.warmup_steps", "steps of linear warm-up", PLACE(std::int64_t, optim.warmup_steps)}),
      choice({"cosine", "linear", "constant", "wsd"}, {},
             {"optim.schedule", "learning rate after warm-up", PLACE(Text, optim.schedule)}),
      below_one({"optim.beta1", "AdamW: decay of the first moment", PLACE(double, optim.beta1)}),
      below_one({"optim.beta2", "AdamW: decay of the second moment", PLACE(double, optim.beta2)}),
      above(0, {"optim.eps", "AdamW: added to the root of the second moment", PLACE(double, optim.eps)}),
      from(0, {"optim.weight_decay", "AdamW: of matrices", PLACE(double, optim.weight_decay)}),
      from(0, {"optim.clip", "largest global gradient norm; 0: no clipping", PLACE(double, optim.clip)}),

      from(1, {"parallel.tp", "ranks that share each matrix", PLACE(int, parallel.layout.tp)}),
      from(1, {"parallel.pp", "pipeline stages", PLACE(int, parallel.layout.pp)}),
      from(0, {"parallel.dp", "copies of the model; 0: what the rank count leaves",
               PLACE(int, parallel.layout.dp)}),
      from(1, {"parallel.vpp", "virtual stages of a rank", PLACE(int, parallel.layout.vpp)}),
      up_to(3, from(0, {"parallel.zero",
                        "ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 parameters too",
                        PLACE(int, parallel.layout.zero)})),
      from(0, {"parallel.stages", "layers of each stage; empty: spread",
               PLACE(std::vector<int>, parallel.layout.stages)}),
      choice({"tdp", "tpd", "dtp", "dpt", "ptd", "pdt"}, {},
             {"parallel.rank_order", "which axis counts fastest to slowest among the ranks",
              PLACE(Text, parallel.layout.order)}),
      choice({"gpipe", "1f1b"}, {}, {"parallel.schedule", "of the pipeline", PLACE(Text, parallel.schedule)}),
      {"parallel.sequence_parallel", "norms cut along the sequence", PLACE(bool, parallel.sequence_parallel)},
      choice(
          {"none", "selective", "full"}, {},
          {"parallel.recompute", "activations computed again in backward", PLACE(Text, parallel.recompute)}),
      choice(
          {"none", "cpu", "nvme"}, {},
          {"parallel.offload",
           "where optimizer state waits for the next step: cpu, host memory (as none on device cpu); nvme, a "
           "file, so that memory need not hold it",
           PLACE(Text, parallel.offload)}),
      {"parallel.offload_dir",
       "where each rank has that file, on a disk of its host; empty: the run's directory",
       PLACE(Text, parallel.offload_dir)},
      choice({"auto", "mpi"}, {"nccl"}, {"parallel.comm", "collectives", PLACE(Text, parallel.comm)}),

      {"checkpoint.dir", "directory of checkpoints; empty: <run>/checkpoints", PLACE(Text, checkpoints_dir)},
      from(0, {"checkpoint.every", "steps between checkpoints; 0: only the last",
               PLACE(std::int64_t, checkpoint.every)}),
      from(0, {"checkpoint.keep", "newest ones kept; 0: all", PLACE(int, checkpoint.keep)}),
      {"checkpoint.async", "training goes on while a checkpoint is written", PLACE(bool, checkpoint.async)},
      choice({"auto", "fast", "small", "none", "deflate"}, {},
             {"checkpoint.codec", "how hard to compress", PLACE(ckpt::Codec, checkpoint.codec)}),
      choice({"wait", "skip"}, {},
             {"checkpoint.on_busy", "when the last save is still running", PLACE(Text, checkpoint.on_busy)}),
      {"checkpoint.verify_writes", "decode each chunk before it is written",
       PLACE(bool, checkpoint.verify_writes)},
      {"checkpoint.check_replicas", "no checkpoint of state of which two ranks hold different copies",
       PLACE(bool, checkpoint.check_replicas)},
      from(0, {"checkpoint.workers", "threads that compress; 0: as many as a rank has",
               PLACE(int, checkpoint.workers)}),
      choice({"low", "normal"}, {},
             {"checkpoint.priority",
              "of these threads: low, they take what training leaves idle; normal, they share the cores with "
              "it, so the checkpoint is durable sooner and the step takes longer",
              PLACE(Text, checkpoint.priority)}),
      above(0, {"checkpoint.commit_deadline_s", "wait for all ranks' parts",
                PLACE(double, checkpoint.commit_deadline_s)}),

      choice({"stop", "skip", "rollback"}, {},
             {"health.on_nonfinite",
              "when a loss or gradient norm is not finite: end, pass the batch over, or "
              "go back to the last checkpoint and pass it over",
              PLACE(Text, health.on_nonfinite)}),
      from(0,
           {"health.max_skips", "batches passed over in a row, or rollbacks of one call, before the run ends",
            PLACE(std::int64_t, health.max_skips)}),
      from(0, {"health.loss_spike", "a loss above this many times the last steps' median is told; 0: none is",
               PLACE(double, health.loss_spike)}),
      from(0, {"health.norm_spike", "the same of gradient norms", PLACE(double, health.norm_spike)}),

      {"elastic.enabled", "go on by itself after a failure", PLACE(bool, elastic.enabled)},
      choice(
          {"shrink", "restart"}, {},
          {"elastic.on_failure", "go on with fewer ranks, or with as many", PLACE(Text, elastic.on_failure)}),
      from(1, {"elastic.min_ranks", "give up below this many", PLACE(int, elastic.min_ranks)}),
      from(0, {"elastic.max_restarts", "failures survived in one call", PLACE(int, elastic.max_restarts)}),
      above(0, {"elastic.heartbeat_s", "silence after which a rank is lost",
                PLACE(double, elastic.heartbeat_s)}),
      above(0, {"elastic.phase_deadline_s", "time in one phase without progress (start, load: at least 300)",
                PLACE(double, elastic.phase_deadline_s)}),
  };
  return keys;
}

std::string range(const ConfigKey& key) {
  std::string text;
  if (key.least > -std::numeric_limits<double>::infinity())
    text += fmt::format(" {} {}", key.open_low ? "above" : "from", key.least);
  if (key.most < std::numeric_limits<double>::infinity())
    text += fmt::format("{} {} {}", text.empty() ? "" : ",", key.open_high ? "below" : "to", key.most);
  return text;
}

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> schema = make_schema();
  return schema;
}

std::string expectation(const ConfigKey& key) {
  struct Visitor {
    const ConfigKey& key;
    std::string operator()(bool& (*)(Config&)) const { return "true or false"; }
    std::string operator()(int& (*)(Config&)) const { return "a whole number" + range(key); }
    std::string operator()(std::int64_t& (*)(Config&)) const { return "a whole number" + range(key); }
    std::string operator()(std::uint64_t& (*)(Config&)) const { return "a whole number" + range(key); }
    std::string operator()(double& (*)(Config&)) const { return "a number" + range(key); }
    std::string operator()(std::string& (*)(Config&)) const {
      return key.choices.empty() ? "a text in quotes"
                                 : fmt::format("one of {}", fmt::join(key.choices, ", "));
    }
    std::string operator()(ckpt::Codec& (*)(Config&)) const {
      return fmt::format("one of {}", fmt::join(key.choices, ", "));
    }
    std::string operator()(std::vector<int>& (*)(Config&)) const {
      return "a list of whole numbers" + range(key);
    }
    std::string operator()(Texts& (*)(Config&)) const { return "a text in quotes or a list of them"; }
  };
  return std::visit(Visitor{key}, key.place);
}

namespace {

/// What may be given where not every value of its type may; empty otherwise.
std::string allowed(const ConfigKey& key) {
  if (!key.choices.empty()) return fmt::format("{}", fmt::join(key.choices, ", "));
  const std::string bounds = range(key);
  return bounds.empty() ? "" : bounds.substr(1);
}

}  // namespace

const std::vector<KeyInfo>& config_keys() {
  static const std::vector<KeyInfo> keys = [] {
    std::vector<KeyInfo> list;
    const Config defaults;
    for (const ConfigKey& key : config_schema())
      list.push_back(
          {key.name, key.required ? "required" : toml_value(key, defaults), key.meaning, allowed(key)});
    return list;
  }();
  return keys;
}

}  // namespace shardwright::trainer
