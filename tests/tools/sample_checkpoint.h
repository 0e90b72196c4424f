// Small checkpoints with every value derived from its global position, so that a loaded box can be checked
// without remembering anything.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {

struct SampleState {
  std::string tensor;
  std::string kind;
  DType dtype;
  Dims shape;
  std::size_t cut;  // dimension along which writers cut it
  Dims chunk;       // empty: the default
};

/// One of everything: odd sizes, a scalar, a single row, a tensor of no elements, each width of element,
/// several dimensions, chunks that do not divide.
inline const std::vector<SampleState>& sample_states() {
  static const std::vector<SampleState> states = {
      {"cube", "param", DType::f16, {3, 5, 7}, 1, {2, 1, 4}},
      {"embed", "exp_avg", DType::f32, {97, 8}, 0, {4, 8}},
      {"embed", "param", DType::f32, {97, 8}, 0, {4, 8}},
      {"flags", "param", DType::boolean, {11}, 0, {}},
      {"nothing", "param", DType::f32, {0, 4}, 0, {}},
      {"numbers", "param", DType::i64, {7}, 0, {3}},
      {"one_row", "param", DType::f32, {1, 17}, 1, {}},
      {"scalar", "param", DType::f64, {}, 0, {}},
      {"wide", "param", DType::bf16, {3, 40}, 1, {2, 7}},
  };
  return states;
}

inline std::uint64_t sample_bits(const SampleState& state, std::uint64_t salt, std::uint64_t index) {
  std::uint64_t x = index + 1 + 1000003 * salt;
  for (const char c : state.tensor + "/" + state.kind) x = x * 31 + static_cast<unsigned char>(c);
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  if (state.dtype == DType::boolean) return x & 1;
  return x;
}

/// The dense values of `box`; `salt` is the step, as a rule.
inline std::vector<std::byte> sample_values(const SampleState& state, const Box& box, std::uint64_t salt) {
  const std::size_t size = size_of(state.dtype);
  std::vector<std::byte> values(box.elements() * size);
  for (std::uint64_t i = 0; i < box.elements(); ++i) {
    std::uint64_t rest = i, index = 0, stride = 1;
    for (std::size_t d = state.shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= state.shape[d];
    }
    const std::uint64_t bits = sample_bits(state, salt, index);
    std::memcpy(values.data() + i * size, &bits, size);
  }
  return values;
}

/// Piece `p` of `n`, uneven, some of them empty where there are more pieces than rows.
inline Box sample_piece(const SampleState& state, std::size_t cut, int p, int n) {
  Box box = Box::whole(state.shape);
  if (state.shape.empty()) return box;
  const auto at = [&](int q) {
    return state.shape[cut] * static_cast<std::uint64_t>(q) / static_cast<std::uint64_t>(n);
  };
  box.offset[cut] = at(p);
  box.shape[cut] = at(p + 1) - at(p);
  return box;
}

/// Values that own their memory.
class OwnedSource : public Source {
 public:
  OwnedSource(std::vector<std::byte> values, Box box, std::size_t size)
      : values_(std::move(values)), box_(box), size_(size) {}
  void read(const Box& region, std::byte* dst) const override {
    copy_region(values_.data(), box_, dst, region, region, size_);
  }
  std::span<const std::byte> host_range() const override { return values_; }
  std::vector<std::byte>& values() { return values_; }

 private:
  std::vector<std::byte> values_;
  Box box_;
  std::size_t size_;
};

/// What writer `rank` of `writers` saves. A scalar is written by the last one.
inline std::vector<SaveItem> sample_items(int rank, int writers, std::uint64_t salt,
                                          const std::vector<SampleState>& states = sample_states()) {
  std::vector<SaveItem> items;
  for (const SampleState& state : states) {
    if (state.shape.empty() && rank != writers - 1) continue;
    const Box box = sample_piece(state, state.cut, rank, writers);
    items.push_back(
        {state.tensor, state.kind, state.dtype, state.shape, box, state.chunk,
         std::make_shared<OwnedSource>(sample_values(state, box, salt), box, size_of(state.dtype))});
  }
  return items;
}

inline Description sample_description(std::uint64_t step) {
  return {"{\"step\":" + std::to_string(step) + "}", R"({"arch":"sample"})", R"({"train":{}})",
          R"({"string":"t1p1d1z0"})"};
}

struct SampleSave {
  std::uint64_t step = 5;
  int writers = 3;
  std::uint64_t generation = 0;
  std::uint64_t save_number = 1;
  std::string run = "11111111-2222-4333-8444-555555555555";
  std::string supersede_suffix = ".superseded-0";
  double deadline_s = 5;
  std::optional<std::uint64_t> salt = {};  // of the values; none: the step
  std::vector<SampleState> states = sample_states();

  std::string attempt() const { return std::to_string(generation) + "-" + std::to_string(save_number); }
  std::string attempt_dir(const std::string& checkpoints) const {
    return checkpoints + "/" + step_dir_name(step) + ".tmp-" + attempt();
  }
};

inline CommitJob sample_job(const std::string& checkpoints, const SampleSave& save) {
  CommitJob job;
  job.attempt_dir = save.attempt_dir(checkpoints);
  job.final_dir = checkpoints + "/" + step_dir_name(save.step);
  job.commit.run = save.run;
  job.commit.generation = save.generation;
  job.commit.attempt = save.attempt();
  job.commit.step = save.step;
  job.description = sample_description(save.step);
  job.writers = save.writers;
  job.deadline_s = save.deadline_s;
  job.supersede_suffix = save.supersede_suffix;
  return job;
}

/// One writer's share: shard and part.
inline void write_sample_rank(Env& env, const std::string& checkpoints, const SampleSave& save, int rank) {
  const std::string directory = save.attempt_dir(checkpoints);
  env.create_dirs(directory);
  const auto items = sample_items(rank, save.writers, save.salt.value_or(save.step), save.states);
  publish_part(env, directory,
               write_shard(env, directory, save.attempt(), rank, save.step, items, ShardOptions{}, nullptr));
}

/// A whole save, one writer after the other; returns the checkpoint's path.
inline std::string save_sample(Env& env, const std::string& checkpoints, const SampleSave& save) {
  for (int rank = 0; rank < save.writers; ++rank) write_sample_rank(env, checkpoints, save, rank);
  const CommitJob job = sample_job(checkpoints, save);
  commit_attempt(env, job);
  return job.final_dir;
}

/// Loads all states in `pieces` boxes along `cut` (each state's own if too large) and compares every value.
inline LoadStats expect_sample(const Checkpoint& checkpoint, std::uint64_t salt, int pieces = 1,
                               std::size_t cut = 0, int threads = 1) {
  std::vector<LoadItem> items;
  std::vector<std::vector<std::byte>> memory, expected;
  for (const SampleState& state : sample_states())
    for (int p = 0; p < pieces; ++p) {
      const std::size_t along = cut < state.shape.size() ? cut : state.cut;
      const Box box = sample_piece(state, along, p, pieces);
      expected.push_back(sample_values(state, box, salt));
      memory.emplace_back(expected.back().size(), std::byte{0xEE});
      items.push_back({state.tensor, state.kind, state.dtype, state.shape, box, memory.back().data()});
    }
  LoadOptions options;
  options.threads = threads;
  const LoadStats stats = checkpoint.load(items, options);
  for (std::size_t i = 0; i < items.size(); ++i)
    EXPECT_TRUE(memory[i] == expected[i])
        << items[i].tensor << " " << items[i].kind << " " << to_string(items[i].box);
  return stats;
}

/// Runs `call` and returns the Error it throws; fails the test if it throws none.
template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no Error was thrown";
  return {ErrorCode::usage, ""};
}

/// Flips one bit of a file.
inline void flip_bit(const std::string& path, std::uint64_t offset) {
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr) << path;
  ASSERT_EQ(std::fseek(file, static_cast<long>(offset), SEEK_SET), 0);
  const int byte = std::fgetc(file);
  ASSERT_NE(byte, EOF);
  ASSERT_EQ(std::fseek(file, static_cast<long>(offset), SEEK_SET), 0);
  ASSERT_NE(std::fputc(byte ^ 4, file), EOF);
  ASSERT_EQ(std::fclose(file), 0);
}

}  // namespace shardwright::ckpt
