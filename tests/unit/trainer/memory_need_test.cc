#include "trainer/memory_need.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/error.h"
#include "trainer/offload_windows.h"

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

TrainingShape shape_of(const reshard::ModelSpec& spec, std::int64_t global_batch,
                       const char* dtype = "fp32") {
  TrainingShape shape;
  shape.batch = {global_batch, 1};
  shape.positions = spec.config.seq_len;
  shape.dtype = dtype;
  return shape;
}

// Bytes of all ranks by their use, for a model whose matrices are nearly all of it: in 16-bit types values
// have 2 bytes and the optimizer a master more; gradients are fp32.
TEST(MemoryNeed, CountsSixteenBitValuesAndMastersAtEachZeroStage) {
  const reshard::ModelSpec spec = model(512, 97);
  const double psi = parameters(spec);
  const double copies = 3;
  struct Sizes {
    const char* dtype;
    double value, gradient, owned;
  };
  for (const Sizes& size : {Sizes{"fp32", 4, 4, 8}, Sizes{"bf16", 2, 4, 12}, Sizes{"fp16", 2, 4, 12}}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const reshard::Layout layout = reshard::parse_layout("d3z" + std::to_string(zero));
      const TrainingShape shape = shape_of(spec, 3, size.dtype);
      double passing = 0;  // activations and buffers
      for (int rank = 0; rank < 3; ++rank) {
        const MemoryBytes memory = memory_of_rank(spec, layout, rank, shape);
        passing += static_cast<double>(memory.activation + memory.buffers);
      }
      const double state = size.value * (zero < 3 ? copies : 1) + size.gradient * (zero < 2 ? copies : 1) +
                           size.owned * (zero < 1 ? copies : 1);
      EXPECT_NEAR((least_memory(spec, layout, shape) - passing) / psi, state, 0.01 * state)
          << size.dtype << " zero " << zero;
    }
  }
}

TEST(MemoryNeed, CountsWhatThePlannerCounts) {
  const reshard::ModelSpec spec = model(8, 97);
  TrainingShape shape = shape_of(spec, 12, "bf16");
  const reshard::Layout layout = reshard::parse_layout("p3d2z2");
  for (const char* recompute : {"none", "full"}) {
    shape.recompute = recompute;
    double expected = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank)
      expected += static_cast<double>(memory_of_rank(spec, layout, rank, shape).total());
    EXPECT_DOUBLE_EQ(least_memory(spec, layout, shape), expected) << recompute;
  }
}

TEST(MemoryNeed, OffloadedStateNeedsNone) {
  const reshard::ModelSpec spec = model(512, 97);
  const reshard::Layout layout;
  for (const char* dtype : {"fp32", "bf16"}) {
    TrainingShape shape = shape_of(spec, 3, dtype);
    const MemoryBytes with = memory_of_rank(spec, layout, 0, shape);
    shape.offload = true;
    const MemoryBytes without = memory_of_rank(spec, layout, 0, shape);
    EXPECT_EQ(without.optimizer, 0u);
    const ParameterMemory memory = parameter_memory(spec, layout, 0, element_type_named(dtype));
    EXPECT_EQ(without.buffers - with.buffers, offload_buffer_bytes(memory));
    EXPECT_EQ(without.param + without.grad + without.activation, with.param + with.grad + with.activation);
    EXPECT_LT(least_memory(spec, layout, shape), 0.7 * static_cast<double>(with.total()));
  }
}

TEST(MemoryNeed, NonsenseIsRefusedWithBothSizesWhateverItOverflows) {
  const reshard::Layout layout = reshard::parse_layout("d2");
  std::int64_t vast = 99'999'999;
  for (const auto& spec : {model(8, vast, vast), model(vast, vast, vast)}) try {
      check_memory(spec, layout, shape_of(spec, 2), 23.0 * (1 << 30));
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), HasSubstr("this machine has 23.0 GiB; "));
    }
  const reshard::ModelSpec small = model(8, 97);
  check_memory(small, layout, shape_of(small, 2), 1 << 20);
  // Batches that no count of 64 bits takes, in any way to train.
  for (const char* recompute : {"none", "selective", "full"}) {
    for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
      for (int bits = 0; bits < 63; bits += 3) {
        const std::int64_t micro_batch = std::int64_t{1} << bits;
        TrainingShape shape = shape_of(small, micro_batch);
        shape.batch.micro_batch = schedule == ScheduleKind::gpipe ? 1 : micro_batch;
        shape.recompute = recompute;
        shape.schedule = schedule;
        const double least = least_memory(small, {}, shape);
        EXPECT_GT(least, 4 * 5 * 3 * 8 * static_cast<double>(micro_batch));
        EXPECT_LT(least, 2e5 * static_cast<double>(micro_batch));
      }
    }
  }
}

TEST(MemoryNeed, ThisMachineHasSome) {
  EXPECT_GT(machine_memory(), 1e8);
  EXPECT_LT(machine_memory(), 1e17);
}

}  // namespace
}  // namespace shardwright::trainer
