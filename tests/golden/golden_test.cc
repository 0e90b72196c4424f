// The golden checkpoints of each version of the format are read forever: every value, through boxes that
// cross the writers' cuts in every way, bit for bit as the .json beside each says. And nothing of the hostile
// ones is loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "ckpt/verify.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = SHARDWRIGHT_GOLDEN;

struct Expected {
  std::string tensor, kind, fingerprint;
  DType dtype = DType::f32;
  Dims shape;
  std::vector<std::byte> values;
};

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<Expected> expected_of(const nlohmann::json& document) {
  std::vector<Expected> states;
  for (const auto& s : document["states"]) {
    Expected e{s["tensor"], s["kind"], s["fingerprint"], parse_dtype(s["dtype"].get<std::string>()), {}, {}};
    for (const std::uint64_t extent : s["shape"]) e.shape.push_back(extent);
    if (s.contains("values")) e.values = from_hex(s["values"]);
    states.push_back(std::move(e));
  }
  return states;
}

/// Pieces of a shape in `n` along each dimension, odd cuts, and one box that leaves out what lies at the
/// edges.
std::vector<Box> odd_boxes(const Dims& shape, std::uint64_t n) {
  std::vector<Box> boxes;
  Box inner = Box::whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    for (std::uint64_t i = 0; i < n; ++i) {
      Box box = Box::whole(shape);
      box.offset[d] = shape[d] * i / n;
      box.shape[d] = shape[d] * (i + 1) / n - box.offset[d];
      boxes.push_back(box);
    }
    if (shape[d] > 2) {
      inner.offset[d] = 1;
      inner.shape[d] = shape[d] - 2;
    }
  }
  boxes.push_back(inner);
  return boxes;
}

void expect_boxes(const Checkpoint& checkpoint, const std::vector<Expected>& states, std::uint64_t n) {
  std::vector<LoadItem> items;
  std::vector<std::vector<std::byte>> memory;
  std::vector<const Expected*> of;
  for (const Expected& e : states)
    for (const Box& box : odd_boxes(e.shape, n)) {
      memory.emplace_back(box.elements() * size_of(e.dtype), std::byte{0xEE});
      items.push_back({e.tensor, e.kind, e.dtype, e.shape, box, memory.back().data()});
      of.push_back(&e);
    }
  checkpoint.load(items, {});
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::vector<std::byte> wanted(memory[i].size());
    if (!wanted.empty())
      copy_region(of[i]->values.data(), Box::whole(of[i]->shape), wanted.data(), items[i].box, items[i].box,
                  size_of(of[i]->dtype));
    EXPECT_TRUE(memory[i] == wanted) << items[i].tensor << " " << items[i].kind << " "
                                     << to_string(items[i].box);
  }
}

std::vector<std::string> golden_names(const std::string& version) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGolden / version))
    if (entry.is_directory()) names.push_back(version + "/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, IsReadForever) {
  const std::string path = (kGolden / GetParam()).string();
  const auto document = nlohmann::json::parse(std::ifstream(path + ".json"));
  const std::vector<Expected> states = expected_of(document);

  const VerifyReport report = verify(posix_env(), path, 1);
  for (const Problem& p : report.problems) ADD_FAILURE() << p.code << ": " << p.message;
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), path);
  EXPECT_EQ(checkpoint.commit().step, document["step"]);
  EXPECT_EQ(checkpoint.commit().run, document["run"]);
  EXPECT_EQ(checkpoint.commit().generation, document["generation"]);
  EXPECT_EQ(checkpoint.commit().attempt, document["attempt"]);

  const Manifest& m = checkpoint.manifest();
  ASSERT_EQ(m.states.size(), states.size());
  bool has_values = true;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const TensorEntry& tensor = m.tensors[m.states[i].tensor];
    EXPECT_EQ(tensor.name, states[i].tensor);
    EXPECT_EQ(tensor.shape, states[i].shape);
    EXPECT_EQ(m.states[i].kind, states[i].kind);
    EXPECT_EQ(m.states[i].dtype, states[i].dtype);
    EXPECT_EQ(to_hex(m.states[i].fingerprint), states[i].fingerprint);
    has_values = has_values && (!states[i].values.empty() || element_count(states[i].shape) == 0);
  }
  if (!has_values) return;  // of trained ones the fingerprints alone are kept, and verify has compared them
  for (const std::uint64_t n : {1, 2, 3, 5, 7}) expect_boxes(checkpoint, states, n);
}

INSTANTIATE_TEST_SUITE_P(V1, Golden, ::testing::ValuesIn(golden_names("v1")), [](const auto& name) {
  std::string word;
  for (const char c : name.param) word += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return word;
});

/// All states, whole, as a program that resumes would load them.
void load_all(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), path);
  const Manifest& m = checkpoint.manifest();
  std::vector<LoadItem> items;
  std::vector<std::vector<std::byte>> memory;
  for (const StateEntry& s : m.states) {
    const TensorEntry& t = m.tensors[s.tensor];
    memory.emplace_back(element_count(t.shape) * size_of(s.dtype));
    items.push_back({t.name, s.kind, s.dtype, t.shape, Box::whole(t.shape), memory.back().data()});
  }
  checkpoint.load(items, {});
}

/// Peak memory in KiB of a process of its own that verifies and loads a checkpoint.
long peak_kib(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      verify(posix_env(), path, 1);
      load_all(path);
    } catch (const Error&) {
      // What is refused, and how, other tests say.
    }
    ::_exit(0);
  }
  int status = 0;
  struct rusage used {};
  EXPECT_EQ(::wait4(child, &status, 0, &used), child);
  EXPECT_EQ(status, 0) << path;
  return used.ru_maxrss;
}

TEST(Hostile, NoneTakesMuchMemory) {
  const fs::path hostile = kGolden / "hostile";
  const long good = peak_kib((kGolden / "v1/minimal-2-writers").string());
  long most = 0;
  for (const auto& entry : nlohmann::json::parse(std::ifstream(hostile / "cases.json"))) {
    const std::string path = (hostile / entry["name"] / entry.value("path", "")).string();
    const long more = peak_kib(path) - good;
    EXPECT_LT(more, 64 << 10) << path;
    most = std::max(most, more);
  }
  std::printf("at most %ld KiB more than a good one\n", most);
}

TEST(Hostile, NothingOfThemIsLoaded) {
  const fs::path hostile = kGolden / "hostile";
  for (const auto& entry : nlohmann::json::parse(std::ifstream(hostile / "cases.json"))) {
    const std::string path = (hostile / entry["name"] / entry.value("path", "")).string();
    if (entry.contains("loads")) {
      EXPECT_NO_THROW(load_all(path)) << path;
    } else {
      EXPECT_THROW(load_all(path), Error) << path;
    }
  }
}

}  // namespace
}  // namespace shardwright::ckpt
