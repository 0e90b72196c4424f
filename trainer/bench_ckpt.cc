#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <thread>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/run_dir.h"
#include "ckpt/saver.h"
#include "ckpt/scan.h"
#include "trainer/bench.h"
#include "trainer/bench_state.h"

namespace shardwright::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double gbps(std::uint64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; }

/// Runs work(first, last) over [0, count) split over threads.
template <typename Work>
void in_parallel(std::uint64_t count, int threads, const Work& work) {
  const auto pieces = static_cast<std::uint64_t>(threads);
  std::vector<std::jthread> workers;
  for (std::uint64_t t = 0; t < pieces; ++t)
    workers.emplace_back([&, t] { work(count * t / pieces, count * (t + 1) / pieces); });
}

/// A directory of this process below `parent`, removed with all that is in it.
class ScratchRun {
 public:
  ScratchRun(ckpt::Env& env, const std::string& parent)
      : env_(env), path_(fmt::format("{}/shardwright-bench-{}", parent, ::getpid())) {
    env_.create_dirs(checkpoints());
  }
  ~ScratchRun() {
    try {
      for (const std::string& name : env_.list(checkpoints())) remove(checkpoints() + "/" + name);
      remove(checkpoints());
      remove(path_);
    } catch (const std::exception& error) {
      std::fputs(fmt::format("shardwright: warning: {}: {}\n", path_, error.what()).c_str(), stderr);
    }
  }
  ScratchRun(const ScratchRun&) = delete;
  ScratchRun& operator=(const ScratchRun&) = delete;
  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

 private:
  void remove(const std::string& path) {
    if (env_.is_dir(path))
      ckpt::remove_checkpoint_dir(env_, path);
    else
      env_.unlink(path);
  }
  ckpt::Env& env_;
  std::string path_;
};

constexpr std::uint64_t kTensorElements = 1u << 20;  // a 1024 x 1024 matrix, 4 MiB

/// Adam's state of a model in training.
class State {
 public:
  State(std::uint64_t bytes, int threads) {
    tensors_ = std::max<std::uint64_t>(1, bytes / (3 * 4 * kTensorElements));
    values_.resize(tensors_ * 3 * kTensorElements);
    in_parallel(tensors_, threads, [&](std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t tensor = first; tensor < last; ++tensor)
        for (std::size_t kind = 0; kind < kStateKinds.size(); ++kind)
          fill_state(at(tensor, kind), kTensorElements, tensor, kind, 0);
    });
  }

  std::uint64_t bytes() const { return values_.size() * sizeof(float); }
  std::span<const std::byte> raw() const { return std::as_bytes(std::span(values_)); }

  std::vector<ckpt::SaveItem> save_items() {
    std::vector<ckpt::SaveItem> items;
    each([&](const std::string& tensor, std::uint64_t number, std::size_t kind) {
      ckpt::SaveItem item;
      item.tensor = tensor;
      item.kind = kStateKinds[kind];
      item.global_shape = shape();
      item.box = ckpt::Box::whole(shape());
      item.source = std::make_shared<ckpt::HostSource>(at(number, kind), item.box, sizeof(float));
      items.push_back(std::move(item));
    });
    return items;
  }
  /// Destinations in `memory`, as large as raw().
  std::vector<ckpt::LoadItem> load_items(std::span<std::byte> memory) {
    std::vector<ckpt::LoadItem> items;
    each([&](const std::string& tensor, std::uint64_t number, std::size_t kind) {
      std::byte* destination = memory.data() + (number * 3 + kind) * kTensorElements * sizeof(float);
      items.push_back(
          {tensor, kStateKinds[kind], ckpt::DType::f32, shape(), ckpt::Box::whole(shape()), destination});
    });
    return items;
  }

 private:
  static ckpt::Dims shape() { return {1024, kTensorElements / 1024}; }
  float* at(std::uint64_t tensor, std::size_t kind) {
    return values_.data() + (tensor * 3 + kind) * kTensorElements;
  }
  template <typename Use>
  void each(const Use& use) const {
    for (std::uint64_t number = 0; number < tensors_; ++number)
      for (std::size_t kind = 0; kind < 3; ++kind) use(fmt::format("layers.{}.weight", number), number, kind);
  }
  std::uint64_t tensors_;
  std::vector<float> values_;
};

double measure_memcpy(const State& state, std::span<std::byte> to, int threads) {
  double best = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto start = Clock::now();
    in_parallel(state.bytes(), threads, [&](std::uint64_t first, std::uint64_t last) {
      std::memcpy(to.data() + first, state.raw().data() + first, last - first);
    });
    best = std::min(best, seconds_since(start));
  }
  return best;
}

/// Encodes all chunks and decodes them again; seconds of each.
std::pair<double, double> measure_codec(const State& state, std::span<std::byte> to, int threads) {
  const std::uint64_t chunks = state.bytes() / ckpt::kMaxChunkBytes;
  std::vector<std::vector<std::byte>> stored(chunks);
  auto start = Clock::now();
  in_parallel(chunks, threads, [&](std::uint64_t first, std::uint64_t last) {
    ckpt::ChunkEncoder encoder(ckpt::Codec::fast);
    for (std::uint64_t i = first; i < last; ++i)
      encoder.encode(state.raw().subspan(i * ckpt::kMaxChunkBytes, ckpt::kMaxChunkBytes), sizeof(float),
                     stored[i]);
  });
  const double encode_s = seconds_since(start);
  start = Clock::now();
  in_parallel(chunks, threads, [&](std::uint64_t first, std::uint64_t last) {
    ckpt::ChunkDecoder decoder;
    for (std::uint64_t i = first; i < last; ++i)
      decoder.decode(stored[i], sizeof(float), to.subspan(i * ckpt::kMaxChunkBytes, ckpt::kMaxChunkBytes));
  });
  return {encode_s, seconds_since(start)};
}

/// Asks the kernel to forget the pages of a file, so that reading it measures the disk. Best effort: some
/// file systems keep them.
void drop_pages(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_errno(errno, "cannot be opened", path);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

/// Writes the bytes durably as one file, then reads it; seconds of each.
std::pair<double, double> measure_disk(ckpt::Env& env, const std::string& path, const State& state,
                                       std::span<std::byte> to) {
  constexpr std::uint64_t kBlock = 4u << 20;
  auto start = Clock::now();
  {
    const auto file = env.create(path);
    for (std::uint64_t at = 0; at < state.bytes(); at += kBlock)
      file->write(at, state.raw().subspan(at, std::min(kBlock, state.bytes() - at)));
    file->sync();
  }
  const double write_s = seconds_since(start);
  drop_pages(path);
  start = Clock::now();
  const auto file = env.open(path);
  for (std::uint64_t at = 0; at < state.bytes(); at += kBlock)
    file->read(at, to.subspan(at, std::min(kBlock, state.bytes() - at)));
  const double read_s = seconds_since(start);
  env.unlink(path);
  return {write_s, read_s};
}

/// What bounds the save: the ceiling that alone takes longest, unless the save takes over twice as long as
/// that.
std::string bound(const CkptBench& bench) {
  const std::pair<double, const char*> parts[] = {
      {static_cast<double>(bench.raw_bytes) / bench.memcpy_gbps, "memory copy"},
      {static_cast<double>(bench.raw_bytes) / bench.encode_gbps, "encode"},
      {static_cast<double>(bench.stored_bytes) / bench.disk_write_gbps, "disk write"}};
  const auto& longest = *std::max_element(std::begin(parts), std::end(parts));
  return bench.save_s > 2 * longest.first / 1e9 ? "overhead" : longest.second;
}

}  // namespace

CkptBench bench_ckpt(const std::string& directory, std::uint64_t raw_bytes, int threads) {
  ckpt::Env& env = ckpt::posix_env();
  State state(raw_bytes, threads);
  std::vector<std::byte> memory(state.bytes());
  const ScratchRun run(env, directory);

  CkptBench bench;
  bench.raw_bytes = state.bytes();
  bench.memcpy_gbps = gbps(state.bytes(), measure_memcpy(state, memory, threads));
  const auto [encode_s, decode_s] = measure_codec(state, memory, threads);
  bench.encode_gbps = gbps(state.bytes(), encode_s);
  bench.decode_gbps = gbps(state.bytes(), decode_s);
  const auto [write_s, read_s] = measure_disk(env, run.path() + "/sequential", state, memory);
  bench.disk_write_gbps = gbps(state.bytes(), write_s);
  bench.disk_read_gbps = gbps(state.bytes(), read_s);

  const ckpt::Generation generation = ckpt::begin_generation(env, run.path(), run.checkpoints()).generation;
  ckpt::SaverOptions options;
  options.checkpoints_dir = run.checkpoints();
  options.run_dir = run.path();
  options.run = generation.run;
  options.generation = generation.number;
  options.shard.threads = threads;
  options.lazy = true;
  ckpt::Saver saver(env, options);
  ckpt::SaveRequest request;
  request.items = state.save_items();
  request.description.training = R"({"step":0})";
  auto start = Clock::now();
  const std::vector<ckpt::SaveItem> items = request.items;
  saver.start(std::move(request));
  // The worst that training can meet: an optimizer step at once, before which all that was not read is
  // copied.
  for (const ckpt::SaveItem& item : items) saver.before_write(item.tensor, item.kind, item.box);
  saver.wait(600);
  bench.save_s = seconds_since(start);
  const std::vector<ckpt::SaveOutcome> outcomes = saver.take_outcomes();
  const ckpt::SaveOutcome& outcome = outcomes.back();
  if (outcome.result != ckpt::SaveResult::committed)
    throw Error(
        ErrorCode::io,
        fmt::format("{}: the save failed: {}; choose a directory with room", directory, outcome.reason),
        directory);
  bench.save_gbps = gbps(state.bytes(), bench.save_s);
  bench.stored_bytes = outcome.stored_bytes;
  bench.stall_ms = outcome.stall_ms;
  bench.peak_host_bytes = outcome.peak_host_bytes;

  const std::string checkpoint = ckpt::resolve_checkpoint(env, run.checkpoints());
  for (const std::string& name : env.list(checkpoint)) drop_pages(checkpoint + "/" + name);
  ckpt::LoadOptions load;
  load.threads = threads;
  const auto seconds_to_load = [&](std::span<std::byte> to) {
    const auto begun = Clock::now();
    const ckpt::LoadStats stats = ckpt::Checkpoint::open(env, checkpoint).load(state.load_items(to), load);
    bench.load_peak_host_bytes = std::max(bench.load_peak_host_bytes, stats.peak_host_bytes);
    return seconds_since(begun);
  };
  bench.load_s = seconds_to_load(memory);
  bench.load_gbps = gbps(state.bytes(), bench.load_s);
  bench.load_cached_s = 1e30;
  for (int repeat = 0; repeat < 3; ++repeat)
    bench.load_cached_s = std::min(bench.load_cached_s, seconds_to_load(memory));
  bench.load_cached_gbps = gbps(state.bytes(), bench.load_cached_s);
  bench.load_cached_of_ceiling = bench.load_cached_gbps / std::min(bench.memcpy_gbps, bench.decode_gbps);
  if (std::memcmp(memory.data(), state.raw().data(), state.bytes()) != 0)
    throw Error(
        ErrorCode::damaged,
        fmt::format("{}: what was loaded is not what was saved; this is a defect, report it", directory));

  memory = {};
  {
    const std::unique_ptr<std::byte[]> fresh(new std::byte[state.bytes()]);
    bench.load_fresh_gbps = gbps(state.bytes(), seconds_to_load({fresh.get(), state.bytes()}));
  }

  bench.ratio_to_disk = bench.save_gbps / bench.disk_write_gbps;
  bench.limited_by = bound(bench);
  return bench;
}

}  // namespace shardwright::trainer
