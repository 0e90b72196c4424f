// Tensors and files beyond what 31 and 32 bits count, really written and read, with values that are computed
// as they are asked for. Minutes and gigabytes of disk: label `long`.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/commit.h"
#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t k31Bits = 1ull << 31;

/// Element i of a one-dimensional tensor: bytes of a hash of i, so that no two stretches are alike.
class Computed : public Source {
 public:
  explicit Computed(std::size_t size) : size_(size) {}
  void read(const Box& region, std::byte* dst) const override {
    for (std::uint64_t k = 0; k < region.shape[0]; ++k) {
      const std::uint64_t v = ((region.offset[0] + k) * 0x9e3779b97f4a7c15ull) >> 32;
      std::memcpy(dst + k * size_, &v, size_);
    }
  }

 private:
  std::size_t size_;
};

struct Large {
  DType dtype;
  std::uint64_t elements;
  std::vector<std::uint64_t> cuts;  // where the next writer begins
  Codec codec;
};

std::string save(const std::string& directory, const Large& large) {
  CommitJob job;
  job.final_dir = directory + "/" + step_dir_name(1);
  job.attempt_dir = job.final_dir + ".tmp-0-1";
  job.commit.run = "11111111-2222-4333-8444-555555555555";
  job.commit.attempt = "0-1";
  job.commit.step = 1;
  job.description = {"{}", "{}", "{}", "{}"};
  job.writers = static_cast<int>(large.cuts.size()) + 1;
  posix_env().create_dirs(job.attempt_dir);
  ShardOptions options;
  options.codec = large.codec;
  options.threads = 2;
  for (int rank = 0; rank < job.writers; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::uint64_t begin = r == 0 ? 0 : large.cuts[r - 1];
    const std::uint64_t end = r == large.cuts.size() ? large.elements : large.cuts[r];
    const SaveItem item{"large",
                        "param",
                        large.dtype,
                        {large.elements},
                        Box{{begin}, {end - begin}},
                        {},
                        std::make_shared<Computed>(size_of(large.dtype))};
    publish_part(
        posix_env(), job.attempt_dir,
        write_shard(posix_env(), job.attempt_dir, job.commit.attempt, rank, 1, {&item, 1}, options, nullptr));
  }
  commit_attempt(posix_env(), job);
  return job.final_dir;
}

void expect_whole(const std::string& path, const Large& large) {
  const VerifyReport report = verify(posix_env(), path, 2);
  EXPECT_TRUE(report.problems.empty()) << report.problems[0].message;
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), path);
  EXPECT_EQ(checkpoint.manifest().states[0].fingerprint.count, large.elements);
  std::vector<std::uint64_t> around = {0, large.elements};
  around.insert(around.end(), large.cuts.begin(), large.cuts.end());
  for (std::uint64_t power = 1ull << 30; power < large.elements; power *= 2) around.push_back(power);
  const std::size_t size = size_of(large.dtype);
  for (const std::uint64_t at : around) {
    const std::uint64_t begin = at < 700001 ? 0 : at - 700001;
    const Box box{{begin}, {std::min<std::uint64_t>(1400003, large.elements - begin)}};
    std::vector<std::byte> memory(box.shape[0] * size), expected(memory.size());
    const LoadItem item{"large", "param", large.dtype, {large.elements}, box, memory.data()};
    LoadOptions options;
    options.threads = 2;
    checkpoint.load({&item, 1}, options);
    Computed(size).read(box, expected.data());
    EXPECT_TRUE(memory == expected) << to_string(box);
  }
}

void expect_little_memory() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(used.ru_maxrss, 1L << 20) << "KiB";
}

TEST(LargeTensors, B124_MoreElementsThan31BitsCount) {
  const TempDir dir;
  const Large large{DType::u8, k31Bits + 5, {(1u << 30) + 1, k31Bits - 3}, Codec::fast};
  expect_whole(save(dir.path(), large), large);
  expect_little_memory();
}

// The only box is above 4 GiB, and so are the addresses of its last chunks, as nothing is compressed.
TEST(LargeTensors, B122_ABoxAndAFileAbove4GiB) {
  const TempDir dir;
  const Large large{DType::f32, (1ull << 30) + (1u << 26) + 3, {}, Codec::none};
  const std::string path = save(dir.path(), large);
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), path);
  EXPECT_GT(checkpoint.manifest().files[0].bytes, 1ull << 32);
  EXPECT_GT(checkpoint.manifest().files[0].table_address, 1ull << 32);
  expect_whole(path, large);
  expect_little_memory();
}

}  // namespace
}  // namespace shardwright::ckpt
