// Measurements that `shardwright bench` prints: each against a ceiling measured in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "reshard/layout.h"

namespace shardwright::trainer {

struct TrainBench {
  std::string model;
  std::string dtype;
  std::string layout;
  double step_ms = 0;
  double tokens_per_s = 0;
  double gflops = 0;
  double peak_gflops = 0;  // best 2048^3 fp32 matrix product of this run
  double share_of_peak = 0;
  kernels::MemoryBytes memory{};  // peaks by use
};
/// Forward, backward and optimizer of a 10 M GPT (6 layers x 384, sequence 256, batch 8, vocabulary 256) on
/// one rank; `dtype` as train.dtype, `recompute` as parallel.recompute.
TrainBench bench_train(int threads, int steps, const std::string& dtype, const std::string& recompute);

struct CkptBench {
  std::uint64_t raw_bytes = 0, stored_bytes = 0;
  double memcpy_gbps = 0, disk_write_gbps = 0, disk_read_gbps = 0, encode_gbps = 0, decode_gbps = 0;
  double save_s = 0, save_gbps = 0, stall_ms = 0;
  std::uint64_t peak_host_bytes = 0;
  double load_s = 0, load_gbps = 0;                // from the disk, as far as the system let its pages go
  double load_cached_s = 0, load_cached_gbps = 0;  // from the page cache
  double load_fresh_gbps = 0;  // from the page cache into memory that was never touched: with its page faults
  double load_cached_of_ceiling = 0;  // of the slower of memory copy and decode
  std::uint64_t load_peak_host_bytes = 0;
  double ratio_to_disk = 0;
  std::string limited_by;
};
/// Saves and loads `raw_bytes` of state of realistic entropy in `directory` (removed afterwards), beside the
/// ceilings for the same bytes in the same directory: memory copy, durable sequential write, read, encode,
/// decode.
CkptBench bench_ckpt(const std::string& directory, std::uint64_t raw_bytes, int threads);

struct ReshardBenchOptions {
  std::string program;  // this program: its `reshard` is measured as a process of its own
  std::string directory;
  std::uint64_t raw_bytes = 0;
  reshard::Layout from, to;
  std::vector<int> jobs;  // to measure with; the last of them counts for what is not `scaling`
  std::uint64_t max_memory_bytes = 512u << 20;
  int rounds = 3;
  std::string keep;  // where the checkpoint stays; empty: nowhere
};
struct ReshardBench {
  std::string from_json, to_json;  // layouts
  std::string model_json;
  std::uint64_t raw_bytes = 0, stored_bytes = 0;  // of the checkpoint made
  double copy_s = 0;                              // all its files as one, as dd conv=fsync writes them
  double copy_least_s = 0, copy_most_s = 0;       // of the rounds
  double reshard_s = 0;                           // the whole process
  double reshard_least_s = 0, reshard_most_s = 0;
  double ratio_to_copy = 0;  // median of the rounds' ratios
  double early_copy_s = 0;   // the same copy where the disk begins to write before the fsync
  double ratio_to_early_copy = 0;
  double seconds_per_gb = 0;  // 10^9 stored bytes
  std::uint64_t peak_rss_bytes = 0;
  double read_per_needed = 0;
  double passed_through_share = 0;  // of the target's chunks
  struct Scaling {
    int jobs = 1;
    double seconds = 0;
  };
  std::vector<Scaling> scaling;
};
/// Makes a checkpoint of about `raw_bytes` of state of realistic entropy, a Llama with as few layers as the
/// layouts allow, in `directory` (removed afterwards), and times in turn a plain durable copy of its bytes
/// and a reshard of it, from the page cache: medians of the rounds. Error(usage) for an illegal layout, or a
/// size that is too little for one, Error(exists) if `keep` is there.
ReshardBench bench_reshard(const ReshardBenchOptions& options);

}  // namespace shardwright::trainer
