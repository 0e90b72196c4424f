#include "trainer/memory_need.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

using testing::HasSubstr;

reshard::ModelSpec model(std::int64_t hidden, std::int64_t vocab, std::int64_t ffn = 0) {
  reshard::ModelConfig config;
  config.layers = 3;
  config.hidden = hidden;
  config.heads = 1;
  config.vocab = vocab;
  config.ffn = ffn;
  config.seq_len = 5;
  return reshard::build_model(config);
}

double parameters(const reshard::ModelSpec& spec) {
  double all = 0;
  for (const reshard::TensorSpec& tensor : spec.tensors)
    all += static_cast<double>(ckpt::Box{{}, tensor.shape}.elements());
  return all;
}

TEST(MemoryNeed, CountsCopiesMomentsSaveAndLogits) {
  const reshard::ModelSpec spec = model(8, 97);
  const double p = parameters(spec);
  EXPECT_DOUBLE_EQ(least_memory(spec, reshard::parse_layout("t1"), 2), 4 * (7 * p + 2 * 5 * 97));
  EXPECT_DOUBLE_EQ(least_memory(spec, reshard::parse_layout("d3"), 2),
                   4 * ((6 + 6 + 3) * p + 3 * 2 * 5 * 97));
  EXPECT_DOUBLE_EQ(least_memory(spec, reshard::parse_layout("d3z1"), 2),
                   4 * ((6 + 2 + 3) * p + 3 * 2 * 5 * 97));
}

TEST(MemoryNeed, NonsenseIsRefusedWithBothSizesWhateverItOverflows) {
  for (const auto& spec : {model(8, 99'999'999, 99'999'999), model(99'999'999, 99'999'999, 99'999'999)}) try {
      check_memory(spec, reshard::parse_layout("d2"), 1, 23.0 * (1 << 30));
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), HasSubstr("this machine has 23 GiB; "));
    }
  check_memory(model(8, 97), reshard::parse_layout("d2"), 1, 1 << 20);
}

TEST(MemoryNeed, ThisMachineHasSome) {
  EXPECT_GT(machine_memory(), 1e8);
  EXPECT_LT(machine_memory(), 1e17);
}

}  // namespace
}  // namespace shardwright::trainer
