// bench_codec CHECKPOINT [CODEC [THREADS]]: what a save's and a load's workers do to a trained state, kind by
// kind, in bytes of state a second of processor time of a thread. Alone, of a chunk that is in the cache:
// encode, decode, the digest of what is stored, the fingerprint. Passes from memory that is not, as in a save
// (fingerprint, encode, digest) and in a load (digest, decode): one thread, and each of THREADS at
// once. Also stored / raw. Medians of seven times over up to 32 MiB of each kind, as one JSON object.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <ctime>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/digest.h"
#include "ckpt/fingerprint.h"
#include "ckpt/scan.h"

namespace shardwright::ckpt {
namespace {

constexpr int kPasses = 7;
constexpr std::uint64_t kBytesOfAKind = 32u << 20;

using Bytes = std::vector<std::byte>;

/// Of this thread: what else runs on the machine does not count.
double processor_s() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0)
    throw Error(ErrorCode::io, "no clock of processor time");
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Chunks of full size of each kind.
std::map<std::string, std::vector<Bytes>> chunks_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::vector<Bytes>> kinds;
  for (const StateEntry& state : checkpoint.manifest().states) {
    const TensorEntry& tensor = checkpoint.manifest().tensors[state.tensor];
    if (state.dtype != DType::f32) continue;
    const Box box = Box::whole(tensor.shape);
    Bytes values(box.elements() * size_of(state.dtype));
    const LoadItem item{tensor.name, state.kind, state.dtype, tensor.shape, box, values.data()};
    checkpoint.load({&item, 1}, {});
    auto& chunks = kinds[state.kind];
    for (std::size_t at = 0; at + kMaxChunkBytes <= values.size(); at += kMaxChunkBytes)
      if (chunks.size() * kMaxChunkBytes < kBytesOfAKind)
        chunks.emplace_back(values.data() + at, values.data() + at + kMaxChunkBytes);
  }
  return kinds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Passes of `work(thread)` by so many threads at once: median seconds of processor time of a pass of the
/// slowest.
template <class Work>
double pass_s(int threads, const Work& work) {
  std::vector<double> slowest(kPasses, 0);
  const auto count = static_cast<std::size_t>(threads);
  std::vector<std::vector<double>> seconds(count, std::vector<double>(kPasses));
  std::barrier together(threads);
  std::vector<std::jthread> workers;
  for (std::size_t thread = 0; thread < count; ++thread)
    workers.emplace_back([&, thread] {
      for (std::size_t pass = 0; pass < kPasses; ++pass) {
        together.arrive_and_wait();
        seconds[thread][pass] = work(thread);
      }
    });
  workers.clear();
  for (const auto& of_thread : seconds)
    for (std::size_t pass = 0; pass < kPasses; ++pass)
      slowest[pass] = std::max(slowest[pass], of_thread[pass]);
  return median(slowest);
}

/// Rates of one kind, in GB of state a second and thread.
nlohmann::json rates(const std::vector<Bytes>& chunks, Codec codec, int threads) {
  std::vector<Bytes> stored(chunks.size());
  std::vector<ChunkEncoder> encoders;
  std::vector<ChunkDecoder> decoders(static_cast<std::size_t>(threads));
  std::vector<Bytes> out(static_cast<std::size_t>(threads)), back(out.size(), Bytes(kMaxChunkBytes)),
      dense(back);
  for (int thread = 0; thread < threads; ++thread) encoders.emplace_back(codec);
  std::uint64_t raw = 0, kept = 0;
  std::atomic<std::uint64_t> sink = 0;  // so that nothing is left out as unused
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    encoders[0].encode(chunks[i], sizeof(float), stored[i]);
    raw += chunks[i].size();
    kept += stored[i].size();
  }
  const Dims shape{kMaxChunkBytes / sizeof(float)};
  const auto nothing = [](std::size_t, std::size_t) {};
  const auto rate = [&](int at_once, const auto& before, const auto& work) {
    const auto pass = [&](std::size_t thread) {
      double seconds = 0;
      for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
        before(thread, chunk);
        const double start = processor_s();
        work(thread, chunk);
        seconds += processor_s() - start;
      }
      return seconds;
    };
    return static_cast<double>(raw) / pass_s(at_once, pass) / 1e9;
  };
  const auto copy = [&](std::size_t thread, std::size_t chunk) {
    std::memcpy(dense[thread].data(), chunks[chunk].data(), kMaxChunkBytes);
  };
  const auto print = [&](std::size_t thread, std::size_t) {
    sink += fingerprint(dense[thread].data(), sizeof(float), Box::whole(shape), shape).h;
  };
  const auto encode = [&](std::size_t thread, std::size_t) {
    encoders[thread].encode(dense[thread], sizeof(float), out[thread]);
  };
  const auto fetch = [&](std::size_t, std::size_t chunk) {
    for (std::size_t at = 0; at < stored[chunk].size(); at += 64)
      sink += static_cast<unsigned>(stored[chunk][at]);
  };
  const auto digest = [&](std::size_t, std::size_t chunk) { sink += xxh3_128(stored[chunk]).low; };
  const auto decode = [&](std::size_t thread, std::size_t chunk) {
    decoders[thread].decode(stored[chunk], sizeof(float), back[thread]);
  };
  const auto save = [&](std::size_t thread, std::size_t chunk) {
    sink += fingerprint(chunks[chunk].data(), sizeof(float), Box::whole(shape), shape).h;
    encoders[thread].encode(chunks[chunk], sizeof(float), out[thread]);
    sink += xxh3_64(out[thread]);
  };
  const auto load = [&](std::size_t thread, std::size_t chunk) {
    digest(thread, chunk);
    decode(thread, chunk);
  };
  return {{"raw_bytes", raw},
          {"stored_ratio", static_cast<double>(kept) / static_cast<double>(raw)},
          {"encode_gbps", rate(1, copy, encode)},
          {"decode_gbps", rate(1, fetch, decode)},
          {"digest_gbps", rate(1, fetch, digest)},
          {"fingerprint_gbps", rate(1, copy, print)},
          {"save_pass_gbps", rate(1, nothing, save)},
          {"save_pass_gbps_each_of_all", rate(threads, nothing, save)},
          {"load_pass_gbps", rate(1, nothing, load)},
          {"load_pass_gbps_each_of_all", rate(threads, nothing, load)}};
}

int run(int count, char** arguments) {
  if (count < 2 || count > 4)
    throw Error(ErrorCode::usage, "bench_codec CHECKPOINT [CODEC [THREADS]] is right");
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), resolve_checkpoint(posix_env(), arguments[1]));
  const Codec codec = parse_codec(count > 2 ? arguments[2] : "auto");
  const int threads = count > 3 ? std::stoi(arguments[3])
                                : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (threads < 1 || threads > 1024) throw Error(ErrorCode::usage, "THREADS: 1 to 1024 is right");
  nlohmann::json kinds = nlohmann::json::object();
  for (const auto& [kind, chunks] : chunks_of(checkpoint))
    if (!chunks.empty()) kinds[kind] = rates(chunks, codec, threads);
  if (kinds.empty())
    throw Error(ErrorCode::usage,
                fmt::format("{}: no fp32 tensor has a whole chunk of {} bytes; take a larger model",
                            arguments[1], kMaxChunkBytes));
  fmt::print("{}\n", nlohmann::json{{"codec", name(codec)}, {"threads", threads}, {"kinds", kinds}}.dump());
  return 0;
}

}  // namespace
}  // namespace shardwright::ckpt

int main(int count, char** arguments) {
  try {
    return shardwright::ckpt::run(count, arguments);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_codec: error: {}\n", e.what());
    return 1;
  }
}
