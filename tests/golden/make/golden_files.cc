// golden_files OUT_DIR
//   writes the golden checkpoints of tests/golden/v1 through the library's public calls, and beside each NAME
//   a NAME.json of what a reader must find in it: every state with its type, shape, fingerprint and values,
//   the values as hex of their little-endian bytes, row-major.
//
// The files of tests/golden/v1 were written by this program once and are never written again: what a version
// of the format wrote is read for good. The program stays to tell how they came to be; a test holds it
// against the .json files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kStep = 1000000007;
constexpr const char* kRun = "0b1e55ed-0000-4000-8000-00000000cafe";

/// Bits that deserve care, by type: NaNs with payloads (quiet, signalling, negative), both infinities and
/// zeros, the smallest and largest of each sign.
std::vector<std::uint64_t> special(DType type) {
  switch (type) {
    case DType::f32:
      return {0x7fc00001, 0x7f800001, 0xffc12345, 0x80000000, 0,          0x7f800000,
              0xff800000, 1,          0x80000001, 0x7f7fffff, 0xff7fffff, 0x00800000};
    case DType::bf16:
      return {0x7fc1, 0x7f81, 0xffd5, 0x8000, 0, 0x7f80, 0xff80, 1, 0x8001, 0x7f7f, 0xff7f, 0x0080};
    case DType::f16:
      return {0x7e01, 0x7c01, 0xfe55, 0x8000, 0, 0x7c00, 0xfc00, 1, 0x8001, 0x7bff, 0xfbff, 0x0400};
    case DType::f64:
      return {0x7ff8000000000001,
              0x7ff0000000000001,
              0xfff8123456789abc,
              0x8000000000000000,
              0,
              0x7ff0000000000000,
              0xfff0000000000000,
              1,
              0x8000000000000001,
              0x7fefffffffffffff};
    case DType::boolean:
      return {0, 1, 2, 255};  // a byte, never judged
    default: {
      const std::uint64_t highest = 1ull << (8 * size_of(type) - 1);
      return {0, ~0ull, highest, highest - 1, 1};
    }
  }
}

/// What a writer saves of a state.
struct Piece {
  int rank = 0;
  Box box;
};

struct State {
  std::string tensor;
  std::string kind;
  DType dtype = DType::f32;
  Dims shape;
  std::vector<Piece> pieces;
  Dims chunk;
  bool smooth = false;  // few distinct bytes, so that chunks shrink
  std::vector<std::byte> values{};
};

struct Golden {
  std::string name;
  int writers = 1;
  std::vector<State> states;
  std::vector<Codec> codecs{Codec::fast};  // of the writers, repeated
  std::string config = R"({"made by":"golden_files"})";
};

/// Element i: the special bits first, then a hash of its index and its state's name.
void fill(State& state) {
  const std::size_t size = size_of(state.dtype);
  const std::uint64_t count = element_count(state.shape);
  const std::vector<std::uint64_t> first = state.smooth ? std::vector<std::uint64_t>{} : special(state.dtype);
  state.values.resize(count * size);
  std::uint64_t seed = 0;
  for (const char c : state.kind + "/" + state.tensor) seed = seed * 131 + static_cast<unsigned char>(c);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t v = (seed + i + 1) * 0x9e3779b97f4a7c15ull;
    v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9ull;
    v ^= v >> 32;
    if (state.dtype == DType::boolean) v &= 1;
    if (state.smooth) v = i / 7 % 3;
    if (i < first.size() && count > 1) v = first[i];
    std::memcpy(state.values.data() + i * size, &v, size);
  }
}

class Values : public Source {
 public:
  explicit Values(const State& state) : state_(state) {}
  void read(const Box& region, std::byte* dst) const override {
    copy_region(state_.values.data(), Box::whole(state_.shape), dst, region, region, size_of(state_.dtype));
  }

 private:
  const State& state_;
};

/// Uneven pieces along a dimension, one for each writer, some of them empty where there are too few.
std::vector<Piece> cut(const Dims& shape, std::size_t along, int writers) {
  std::vector<Piece> pieces;
  for (int rank = 0; rank < writers; ++rank) {
    Box box = Box::whole(shape);
    const auto at = [&](int p) {
      return shape[along] * static_cast<std::uint64_t>(p) / static_cast<std::uint64_t>(writers);
    };
    box.offset[along] = at(rank);
    box.shape[along] = at(rank + 1) - at(rank);
    pieces.push_back({rank, box});
  }
  return pieces;
}

std::vector<Piece> whole(const Dims& shape, int rank) { return {{rank, Box::whole(shape)}}; }

/// A grid of boxes between the given rows and columns, dealt out to the writers in turn, so that a writer has
/// several.
std::vector<Piece> grid(const std::vector<std::uint64_t>& rows, const std::vector<std::uint64_t>& columns,
                        int writers) {
  std::vector<Piece> pieces;
  for (std::size_t r = 0; r + 1 < rows.size(); ++r)
    for (std::size_t c = 0; c + 1 < columns.size(); ++c)
      pieces.push_back({static_cast<int>(pieces.size() * 3) % writers,
                        Box{{rows[r], columns[c]}, {rows[r + 1] - rows[r], columns[c + 1] - columns[c]}}});
  return pieces;
}

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  // Each hostile checkpoint is this one with a rule broken.
  all.push_back(
      {"minimal-2-writers",
       2,
       {{"a", "exp_avg", DType::f32, {3, 2}, whole({3, 2}, 0), {}},
        {"a", "param", DType::f32, {3, 2}, {{0, Box{{0, 0}, {2, 2}}}, {1, Box{{2, 0}, {1, 2}}}}, {1, 2}},
        {"b", "param", DType::f64, {}, whole({}, 1), {}}}});

  Golden floats{"floats-1-writer", 1, {}};
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const char* kind : {"exp_avg", "param"})
      floats.states.push_back(
          {fmt::format("x.{}", name(type)), kind, type, {3, 5, 7}, whole({3, 5, 7}, 0), {}});
  all.push_back(std::move(floats));

  Golden integers{"integers-2-writers", 2, {}};
  for (const DType type : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32, DType::i64,
                           DType::u64, DType::boolean})
    integers.states.push_back(
        {fmt::format("n.{}", name(type)), "param", type, {11, 3}, cut({11, 3}, 0, 2), {}});
  all.push_back(std::move(integers));

  const Dims deep{2, 1, 3, 1, 2, 1, 1, 2};
  all.push_back({"shapes-3-writers",
                 3,
                 {{"deep", "param", DType::i32, deep, cut(deep, 2, 3), {}},
                  {"embed", "exp_avg", DType::f32, {97, 4}, cut({97, 4}, 0, 3), {10, 4}},
                  {"embed", "param", DType::bf16, {97, 4}, cut({97, 4}, 0, 3), {10, 3}},
                  {"none", "param", DType::f32, {0, 4}, cut({0, 4}, 0, 3), {}},
                  {"none.between", "param", DType::u8, {3, 0, 5}, whole({3, 0, 5}, 1), {}},
                  {"one.row", "param", DType::f16, {1, 17}, cut({1, 17}, 1, 3), {}},
                  {"scalar", "exp_avg", DType::f64, {}, whole({}, 2), {}},
                  {"scalar", "param", DType::boolean, {}, whole({}, 0), {}}}});

  // 2, 2, 2 and 0 elements; the last writer has not even an empty box.
  Golden six{"six-over-5-writers", 5, {{"six", "param", DType::f32, {6}, {}, {}}}};
  for (int rank = 0; rank < 4; ++rank) {
    const std::uint64_t begin = std::min<std::uint64_t>(6, static_cast<std::uint64_t>(rank) * 2);
    six.states[0].pieces.push_back({rank, Box{{begin}, {std::min<std::uint64_t>(2, 6 - begin)}}});
  }
  all.push_back(std::move(six));

  all.push_back(
      {"boxes-7-writers",
       7,
       {{"table", "exp_avg_sq", DType::f32, {13, 11}, grid({0, 1, 4, 9, 13}, {0, 5, 6, 11}, 7), {2, 3}},
        {"table", "param", DType::u16, {13, 11}, grid({0, 6, 7, 13}, {0, 1, 2, 3, 5, 8, 11}, 7), {4, 2}},
        {"cube", "param", DType::i64, {7, 5, 3}, cut({7, 5, 3}, 0, 7), {1, 2, 2}}}});

  Golden chunks{"chunks-3-writers", 3, {}, {Codec::fast, Codec::small, Codec::none}};
  for (const bool smooth : {false, true})
    for (const auto& [type, size] :
         {std::pair(DType::f32, "4"), std::pair(DType::u8, "1"), std::pair(DType::f64, "8")})
      chunks.states.push_back({fmt::format("{}.{}", smooth ? "shrinks" : "does not", size),
                               "param",
                               type,
                               {45, 16},
                               cut({45, 16}, 0, 3),
                               {7, 9},
                               smooth});
  // Cells of one element, and many equal bytes in one cell.
  chunks.states.push_back({"single", "param", DType::i16, {3, 3}, cut({3, 3}, 0, 3), {1, 1}});
  all.push_back(std::move(chunks));

  // Readable without a plugin: Huffman codes, runs, and what does not shrink; the last writer uses the other
  // filter.
  Golden deflated{"deflate-3-writers", 3, {}, {Codec::deflate, Codec::deflate, Codec::fast}};
  for (const bool smooth : {false, true})
    for (const auto& [type, size] :
         {std::pair(DType::f32, "4"), std::pair(DType::bf16, "2"), std::pair(DType::f64, "8")})
      deflated.states.push_back({fmt::format("{}.{}", smooth ? "shrinks" : "does not", size),
                                 "param",
                                 type,
                                 {99, 17},
                                 cut({99, 17}, 0, 3),
                                 {23, 17},
                                 smooth});
  deflated.states.push_back({"scalar", "param", DType::boolean, {}, whole({}, 0), {}});
  all.push_back(std::move(deflated));

  Golden names{"names-2-writers", 2, {}};
  for (const char* tensor : {"größe.weight", "層.0.重み", "🙂", "Weight", "weight", "weight.10", "weight.9",
                             "a b", "-", "\"q\\"})
    for (const char* kind : {"param", "モーメント"})
      names.states.push_back({tensor, kind, DType::u8, {5}, cut({5}, 0, 2), {}});
  all.push_back(std::move(names));

  // Columns above 64 KiB, which are stored deflated: one long name, and a long document.
  Golden wide{"deflated-tables-5-writers", 5, {}};
  for (int i = 0; i < 70; ++i)
    wide.states.push_back({i == 33 ? std::string(1000, 'n') : fmt::format("t{}", i),
                           "param",
                           DType::u8,
                           {3},
                           whole({3}, i % 5),
                           {}});
  wide.config = fmt::format(R"({{"text":"{:>70000}"}})", "end");
  all.push_back(std::move(wide));
  return all;
}

void write(Env& env, const std::string& out, Golden& golden) {
  for (State& state : golden.states) fill(state);
  const std::string final_dir = out + "/" + golden.name;
  CommitJob job;
  job.attempt_dir = final_dir + ".tmp-4-2";
  job.final_dir = final_dir;
  job.commit.run = kRun;
  job.commit.generation = 4;
  job.commit.attempt = "4-2";
  job.commit.step = kStep;
  job.writers = golden.writers;
  job.description = {fmt::format(R"({{"step":{},"samples":5,"loss":null}})", kStep), R"({"arch":"none"})",
                     golden.config, R"({"string":"golden"})"};
  env.create_dirs(job.attempt_dir);
  for (int rank = 0; rank < golden.writers; ++rank) {
    std::vector<SaveItem> items;
    for (const State& state : golden.states)
      for (const Piece& piece : state.pieces)
        if (piece.rank == rank)
          items.push_back({state.tensor, state.kind, state.dtype, state.shape, piece.box, state.chunk,
                           std::make_shared<Values>(state)});
    ShardOptions options;
    options.codec = golden.codecs[static_cast<std::size_t>(rank) % golden.codecs.size()];
    publish_part(env, job.attempt_dir,
                 write_shard(env, job.attempt_dir, job.commit.attempt, rank, kStep, items, options, nullptr));
  }
  const Manifest manifest = commit_attempt(env, job);

  nlohmann::ordered_json expected = {{"step", kStep},
                                     {"run", kRun},
                                     {"generation", 4},
                                     {"attempt", "4-2"},
                                     {"writers", golden.writers},
                                     {"states", nlohmann::json::array()}};
  for (const StateEntry& entry : manifest.states) {
    const TensorEntry& tensor = manifest.tensors[entry.tensor];
    const auto state = std::find_if(golden.states.begin(), golden.states.end(), [&](const State& s) {
      return s.tensor == tensor.name && s.kind == entry.kind;
    });
    std::string hex;
    for (const std::byte b : state->values) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
    expected["states"].push_back(
        {{"tensor", tensor.name},
         {"kind", entry.kind},
         {"dtype", name(entry.dtype)},
         {"shape", std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end())},
         {"fingerprint", to_hex(entry.fingerprint)},
         {"values", hex}});
  }
  std::ofstream(final_dir + ".json") << expected.dump(1) << "\n";
}

}  // namespace
}  // namespace shardwright::ckpt

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "golden_files OUT_DIR\n");
    return 2;
  }
  try {
    for (auto& golden : shardwright::ckpt::goldens())
      shardwright::ckpt::write(shardwright::ckpt::posix_env(), argv[1], golden);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "golden_files: %s\n", e.what());
    return 1;
  }
}
