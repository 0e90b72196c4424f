#include "reshard/proof.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/fingerprint.h"
#include "ckpt/open_files.h"
#include "ckpt/parallel.h"
#include "ckpt/shard.h"

namespace shardwright::reshard {
namespace {

[[noreturn]] void refuse(const std::string& tensor, const std::string& kind, const std::string& wrong) {
  throw Error(ErrorCode::damaged,
              fmt::format("{} {}: {}; the same values as in the source (nothing was committed)", tensor, kind,
                          wrong));
}

// With the checkpoint's own word on what became of a file that is missing.
ConvertedState::Expected expected_of(const ConvertedState& state,
                                     const std::shared_ptr<const ckpt::Checkpoint>& source, int threads) {
  try {
    return state.expected(source, threads);
  } catch (const Error& e) {
    throw source->explain(e);
  }
}

}  // namespace

Proof prove(const std::shared_ptr<const ckpt::Checkpoint>& source, const TargetPlan& plan,
            const ckpt::Manifest& target, int threads) {
  const ckpt::Manifest& manifest = source->manifest();
  Proof proof;
  struct Lost {
    std::uint64_t tensors = 0, values = 0;
    ckpt::DType type = ckpt::DType::f32;
  };
  std::map<std::string, Lost> of_kind;
  std::map<std::pair<std::string, std::string>, std::pair<ckpt::Fingerprint, ckpt::DType>> expected;
  for (const KeptState& kept : plan.states) {
    const ckpt::StateEntry& state = manifest.states[kept.state];
    const std::string& tensor = plan.model.tensors[kept.tensor].name;
    ckpt::Fingerprint fingerprint = state.fingerprint;
    if (kept.converted) {
      const ConvertedState::Expected found = expected_of(*kept.converted, source, threads);
      fingerprint = found.fingerprint;
      proof.read_bytes += found.read_bytes;
      if (found.underflows > 0) {
        Lost& lost = of_kind[state.kind];
        ++lost.tensors;
        lost.values += found.underflows;
        lost.type = kept.dtype;
      }
    }
    expected[{tensor, state.kind}] = {fingerprint, kept.dtype};
  }
  for (const ckpt::StateEntry& state : target.states) {
    const std::string& tensor = target.tensors[state.tensor].name;
    const auto at = expected.find({tensor, state.kind});
    if (at == expected.end()) refuse(tensor, state.kind, "is not in the source");
    if (at->second.second != state.dtype) refuse(tensor, state.kind, "has another type than it should");
    if (at->second.first != state.fingerprint) refuse(tensor, state.kind, "the fingerprint differs");
    expected.erase(at);
  }
  if (!expected.empty()) {
    const auto& [tensor, kind] = expected.begin()->first;
    refuse(tensor, kind, "is missing in the target");
  }
  for (const auto& [kind, lost] : of_kind)
    proof.warnings.push_back(fmt::format("{}: {} values in {} tensors are too small for {} and are zero now",
                                         kind, lost.values, lost.tensors, ckpt::name(lost.type)));
  return proof;
}

void read_again(ckpt::Env& env, const std::string& directory, const ckpt::Manifest& target, int threads,
                const std::function<void(std::uint64_t)>& done) {
  ckpt::OpenFiles files(env);
  std::vector<std::vector<std::size_t>> boxes(target.files.size());
  for (std::size_t b = 0; b < target.boxes.size(); ++b) boxes[target.boxes[b].file].push_back(b);
  struct Worker {
    ckpt::ChunkDecoder decoder;
    std::vector<std::byte> stored, raw, values;
  };
  std::vector<Worker> workers(static_cast<std::size_t>(threads));
  std::vector<ckpt::Fingerprint> sums(target.states.size());
  std::mutex mutex;
  for (std::size_t f = 0; f < target.files.size(); ++f) {
    const ckpt::ShardReader shard(files, directory, target.files[f]);
    if (shard.read_rest() != target.files[f].rest) {
      const std::string path = directory + "/" + target.files[f].name;
      throw Error(ErrorCode::damaged,
                  path + ": reads back differently than written; a disk that keeps what it is given", path);
    }
    ckpt::parallel_for(threads, boxes[f].size(), [&](int worker, std::size_t i) {
      Worker& w = workers[static_cast<std::size_t>(worker)];
      const ckpt::BoxEntry& box = target.boxes[boxes[f][i]];
      const ckpt::StateEntry& state = target.states[box.state];
      const std::size_t size = ckpt::size_of(state.dtype);
      ckpt::Fingerprint sum;
      for (std::uint64_t c = 0; c < box.chunks; ++c) {
        const ckpt::Box part = ckpt::chunk_box(box.box, box.chunk, c);
        shard.read_stored(box.first_chunk + c, w.stored);
        done(w.stored.size());
        w.raw.resize(ckpt::element_count(box.chunk) * size);
        w.decoder.decode(w.stored, size, w.raw);
        w.values.resize(part.elements() * size);
        ckpt::copy_region(w.raw.data(), {part.offset, box.chunk}, w.values.data(), part, part, size);
        sum += ckpt::fingerprint(w.values.data(), size, part, target.tensors[state.tensor].shape);
      }
      const std::lock_guard lock(mutex);
      sums[box.state] += sum;
    });
  }
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const ckpt::StateEntry& state = target.states[s];
    if (sums[s] != state.fingerprint)
      refuse(target.tensors[state.tensor].name, state.kind, "reads back with another fingerprint");
  }
}

}  // namespace shardwright::reshard
