// Checkpoints in which every value tells where it belongs: the number of its element, displaced by tensor and
// kind. What merges or cuts tensors wrongly puts values where they do not belong, and the check, which shares
// no code with placement, copy plans or the loader, sees it.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/commit.h"
#include "ckpt/env.h"
#include "ckpt/error.h"
#include "reshard/layout.h"
#include "reshard/placement.h"

namespace shardwright {

/// An integer below 2^24, so that float holds it exactly. `index` is row-major in the global shape.
inline float label(const std::string& tensor, const std::string& kind, std::uint64_t index) {
  std::uint64_t hash = 1469598103934665603ull;  // FNV-1a
  for (const char c : tensor + "|" + kind) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return static_cast<float>((hash + index) & 0xFFFFFF);
}

/// Calls `visit(n, index)` for the elements of a box in order: n counts from 0, index is row-major in the
/// global shape.
template <class Visit>
void for_each_element(const ckpt::Box& box, const ckpt::Dims& global_shape, Visit visit) {
  const std::uint64_t count = box.elements();
  for (std::uint64_t n = 0; n < count; ++n) {
    std::uint64_t rest = n;
    std::uint64_t index = 0;
    std::uint64_t stride = 1;
    for (std::size_t d = global_shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= global_shape[d];
    }
    visit(n, index);
  }
}

/// One element given another value than its label.
struct LabelChange {
  std::string tensor;
  std::string kind;
  std::uint64_t index = 0;
};

class LabelSource : public ckpt::Source {
 public:
  LabelSource(std::string tensor, std::string kind, ckpt::Dims global_shape, const LabelChange& change)
      : tensor_(std::move(tensor)), kind_(std::move(kind)), global_shape_(global_shape), change_(change) {}
  void read(const ckpt::Box& region, std::byte* dst) const override {
    const bool changed = change_.tensor == tensor_ && change_.kind == kind_;
    const float first = label(tensor_, kind_, 0);
    for_each_element(region, global_shape_, [&](std::uint64_t n, std::uint64_t index) {
      float value = static_cast<float>((static_cast<std::uint64_t>(first) + index) & 0xFFFFFF);
      if (changed && index == change_.index) value = -value - 1;
      std::memcpy(dst + n * sizeof value, &value, sizeof value);
    });
  }

 private:
  std::string tensor_, kind_;
  ckpt::Dims global_shape_;
  LabelChange change_;
};

/// What rank `rank` of `layout` writes of a labelled checkpoint.
inline std::vector<ckpt::SaveItem> label_items(const reshard::ModelSpec& model, const reshard::Layout& layout,
                                               int rank, const LabelChange& change = {}) {
  std::vector<ckpt::SaveItem> items;
  for (const reshard::Placed& p : reshard::placement(model, layout, rank)) {
    if (p.writes.empty()) continue;
    const reshard::TensorSpec& t = model.tensors[p.tensor];
    for (const char* kind : {reshard::kParam, reshard::kExpAvg, reshard::kExpAvgSq}) {
      items.push_back({t.name, kind, ckpt::DType::f32, t.shape, p.writes, p.chunk,
                       std::make_shared<LabelSource>(t.name, kind, t.shape, change)});
    }
  }
  return items;
}

/// Shards of all ranks, then the commit, as training would write them. `items` gives what each rank writes.
template <class Items>
void write_checkpoint(ckpt::Env& env, const std::string& directory, const reshard::ModelSpec& model,
                      const reshard::Layout& layout, std::uint64_t step, Items items) {
  ckpt::CommitJob job;
  job.attempt_dir = directory + ".tmp-0-0";
  job.final_dir = directory;
  job.commit.run = "00000000-0000-4000-8000-000000000000";
  job.commit.attempt = "0-0";
  job.commit.step = step;
  job.description.training = fmt::format(
      R"({{"step":{},"samples":{},"seed":1,"loss_scale":1.0,"skipped_steps":0,"dtype":"fp32","loss":1.0}})",
      step, 12 * step);
  job.description.model = to_json(model.config);
  job.description.config = R"({"train":{"global_batch":12,"micro_batch":1}})";
  job.description.layout = to_json(layout, model);
  job.writers = layout.ranks();
  env.create_dirs(job.attempt_dir);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const std::vector<ckpt::SaveItem> what = items(rank);
    ckpt::publish_part(
        env, job.attempt_dir,
        ckpt::write_shard(env, job.attempt_dir, job.commit.attempt, rank, step, what, {}, nullptr));
  }
  ckpt::commit_attempt(env, job);
}

inline void write_labelled(ckpt::Env& env, const std::string& directory, const reshard::ModelSpec& model,
                           const reshard::Layout& layout, std::uint64_t step,
                           const LabelChange& change = {}) {
  write_checkpoint(env, directory, model, layout, step,
                   [&](int rank) { return label_items(model, layout, rank, change); });
}

/// One line per state that is not what it should be: box by box as the shards hold them, each chunk decoded,
/// each element compared with its label and counted.
inline std::vector<std::string> check_labels(ckpt::Env& env, const std::string& directory) {
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(env, directory);
  const ckpt::Manifest& m = checkpoint.manifest();
  std::vector<std::vector<bool>> seen(m.states.size());
  std::map<std::uint32_t, std::string> wrong;  // first fault of each state
  ckpt::ChunkDecoder decoder;
  for (const ckpt::BoxEntry& box : m.boxes) {
    const ckpt::StateEntry& state = m.states[box.state];
    const ckpt::TensorEntry& tensor = m.tensors[state.tensor];
    seen[box.state].resize(ckpt::element_count(tensor.shape));
    const auto fault = [&](const std::string& what) {
      wrong.emplace(box.state, fmt::format("{} {}: {}", tensor.name, state.kind, what));
    };
    const auto first = static_cast<std::uint64_t>(label(tensor.name, state.kind, 0));
    const ckpt::ShardReader& shard = checkpoint.shard(box.file);
    for (std::uint64_t c = 0; c < box.chunks; ++c) {
      std::vector<std::byte> stored;
      shard.read_stored(box.first_chunk + c, stored);
      std::vector<float> values(ckpt::element_count(box.chunk));
      decoder.decode(stored, sizeof(float), std::as_writable_bytes(std::span(values)));
      const ckpt::Box filled = ckpt::chunk_box(box.box, box.chunk, c);
      // The stored chunk is full; its elements beyond the box are padding.
      for_each_element({filled.offset, box.chunk}, tensor.shape, [&](std::uint64_t n, std::uint64_t index) {
        std::uint64_t rest = n;
        for (std::size_t d = box.chunk.size(); d-- > 0; rest /= box.chunk[d]) {
          if (rest % box.chunk[d] >= filled.shape[d]) return;
        }
        const auto expected = static_cast<float>((first + index) & 0xFFFFFF);
        if (seen[box.state][index]) fault(fmt::format("element {} is there twice", index));
        seen[box.state][index] = true;
        if (values[n] != expected)
          fault(fmt::format("element {} is {}, should be {}", index, values[n], expected));
      });
    }
  }
  for (std::uint32_t s = 0; s < m.states.size(); ++s) {
    for (std::size_t i = 0; i < seen[s].size(); ++i) {
      if (!seen[s][i]) {
        wrong.emplace(s, fmt::format("{} {}: element {} is missing", m.tensors[m.states[s].tensor].name,
                                     m.states[s].kind, i));
        break;
      }
    }
    if (seen[s].empty()) wrong.emplace(s, m.tensors[m.states[s].tensor].name + ": has no box");
  }
  std::vector<std::string> lines;
  for (const auto& [state, line] : wrong) lines.push_back(line);
  return lines;
}

}  // namespace shardwright
