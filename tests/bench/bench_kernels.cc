// Speed of the operations at the shapes of a GPT of 10 million parameters: hidden 384, 6 heads, 256
// positions, 8 sequences. Matrix products report flops/s, the rest bytes/s (each array of the arguments
// counted once per read or write).
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>

#include "kernels/ops.h"
#include "kernels/peak.h"

namespace shardwright::kernels {
namespace {

constexpr std::int64_t kRows = 2048, kChannels = 384, kHeads = 6, kPositions = 256;

class Buffer {
 public:
  explicit Buffer(std::int64_t n, ElementType type = ElementType::f32)
      : type_(type), memory_(DeviceKind::cpu, static_cast<std::size_t>(n) * element_size(type)) {
    const Memory normal(DeviceKind::cpu, static_cast<std::size_t>(n) * sizeof(float));
    fill_normal(stream_, normal.floats(), n, 1, 0, 0, 1.0f);
    convert(stream_, normal.floats(), *this, n);
  }
  operator float*() const { return memory_.floats(); }
  operator Elements() const { return {memory_.data(), type_}; }
  operator ConstElements() const { return {memory_.data(), type_}; }
  Elements operator+(std::int64_t n) const { return Elements(*this) + n; }

 private:
  Stream stream_{DeviceKind::cpu};
  ElementType type_;
  Memory memory_;
};

/// Argument of a benchmark: 0 fp32, 1 bf16, 2 f16.
ElementType element_type(const benchmark::State& state, std::size_t argument) {
  return static_cast<ElementType>(state.range(argument));
}

void count(benchmark::State& state, const char* what, double each) {
  state.counters[what] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}

void count_bytes(benchmark::State& state, std::int64_t floats) {
  count(state, "bytes/s", static_cast<double>(floats) * sizeof(float));
}

// Best, not mean: the ceiling that `bench train` uses.
void peak(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  double best = 0;
  for (auto _ : state) best = peak_matmul_gflops(s);
  state.counters["flops/s"] = benchmark::Counter(best * 1e9);
}
BENCHMARK(peak)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

void linear(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const std::int64_t in = state.range(1), out = state.range(2);
  const ElementType type = element_type(state, 3);
  const Buffer x(kRows * in, type), w(out * in, type), bias(out), y(kRows * out, type), dx(kRows * in),
      dw(out * in);
  const auto product = [&] {
    switch (state.range(0)) {
      case 0:
        linear_forward(s, x, w, bias, y, kRows, in, out);
        break;
      case 1:
        linear_backward(s, y, x, w, dx, nullptr, nullptr, kRows, in, out);
        break;
      default:
        linear_backward(s, y, x, w, nullptr, dw, nullptr, kRows, in, out);
    }
  };
  product();  // oneDNN generates its code at the first call
  for (auto _ : state) product();
  count(state, "flops/s", 2.0 * static_cast<double>(kRows * in * out));
}
BENCHMARK(linear)
    ->ArgNames({"0y_1dx_2dw", "in", "out", "type"})
    ->ArgsProduct({{0, 1, 2}, {kChannels}, {kChannels, 3 * kChannels, 4 * kChannels, 256, 50257}, {0, 1}})
    ->ArgsProduct({{0, 1, 2}, {4 * kChannels}, {kChannels}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void attention(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const std::int64_t positions = state.range(1), batch = kRows / positions, size = kChannels / kHeads;
  const AttentionDropout tenth{.dropout = {.p = 0.1f, .seed = 1, .purpose = 2},
                               .first_sequence = 0,
                               .all_heads = kHeads,
                               .first_head = 0};
  const AttentionDropout* const mask = state.range(2) != 0 ? &tenth : nullptr;
  const ElementType type = element_type(state, 3);
  std::array<float, kHeads> alibi{};
  alibi_slopes(s, alibi.data(), 0, kHeads, kHeads);
  const float* const slopes = state.range(4) != 0 ? alibi.data() : nullptr;
  const Buffer qkv(3 * kRows * kChannels, type), out(kRows * kChannels, type), lse(kRows * kHeads),
      gradient(3 * kRows * kChannels, type);
  const auto forward = [&] {
    attention_forward(s, qkv, qkv + kChannels, qkv + 2 * kChannels, 3 * kChannels, out, lse, batch, positions,
                      kHeads, kHeads, size, 0.125f, mask, slopes);
  };
  const auto backward = [&] {
    attention_backward(s, out, qkv, qkv + kChannels, qkv + 2 * kChannels, 3 * kChannels, out, lse, gradient,
                       gradient + kChannels, gradient + 2 * kChannels, 3 * kChannels, batch, positions,
                       kHeads, kHeads, size, 0.125f, mask, slopes);
  };
  forward();
  for (auto _ : state) {
    if (state.range(0) == 0) {
      forward();
    } else {
      backward();
    }
  }
  // What causal attention needs: two products forward and five backward, over half of the square.
  count(state, "flops/s",
        (state.range(0) == 0 ? 2.0 : 5.0) * static_cast<double>(kRows * positions * kChannels));
}
BENCHMARK(attention)
    ->ArgNames({"backward", "positions", "dropout", "type", "slopes"})
    ->ArgsProduct({{0, 1}, {256, 1024}, {0, 1}, {0, 1}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void layernorm(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer x(kRows * kChannels), y(kRows * kChannels), dx(kRows * kChannels), weight(kChannels),
      bias(kChannels);
  const Buffer mean(kRows), rstd(kRows), dweight(kChannels), dbias(kChannels);
  layernorm_forward(s, x, weight, bias, y, mean, rstd, kRows, kChannels, 1e-5f);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      layernorm_forward(s, x, weight, bias, y, mean, rstd, kRows, kChannels, 1e-5f);
    } else {
      layernorm_backward(s, y, x, weight, mean, rstd, dx, dweight, dbias, kRows, kChannels);
    }
  }
  count_bytes(state, (state.range(0) == 0 ? 2 : 4) * kRows * kChannels);
}
BENCHMARK(layernorm)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void rmsnorm(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer x(kRows * kChannels), y(kRows * kChannels), dx(kRows * kChannels), weight(kChannels);
  const Buffer rstd(kRows), dweight(kChannels);
  rmsnorm_forward(s, x, weight, y, rstd, kRows, kChannels, 1e-5f);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      rmsnorm_forward(s, x, weight, y, rstd, kRows, kChannels, 1e-5f);
    } else {
      rmsnorm_backward(s, y, x, weight, rstd, dx, dweight, kRows, kChannels);
    }
  }
  count_bytes(state, (state.range(0) == 0 ? 2 : 4) * kRows * kChannels);
}
BENCHMARK(rmsnorm)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Queries of a fused q, k, v buffer.
void rotary(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer qkv(3 * kRows * kChannels);
  for (auto _ : state) {
    rope(s, qkv, 3 * kChannels, kRows, kPositions, kHeads, kChannels / kHeads, 10000.0f, false);
  }
  count_bytes(state, 2 * kRows * kChannels);
}
BENCHMARK(rotary)->Unit(benchmark::kMicrosecond)->UseRealTime();

void swiglu(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kWidth = 1024;
  const Buffer gate_up(kRows * 2 * kWidth), gradient(kRows * 2 * kWidth), y(kRows * kWidth);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      swiglu_forward(s, gate_up, y, kRows, kWidth);
    } else {
      swiglu_backward(s, y, gate_up, gradient, kRows, kWidth);
    }
  }
  count_bytes(state, (state.range(0) == 0 ? 3 : 5) * kRows * kWidth);
}
BENCHMARK(swiglu)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void residual_dropout(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer x(kRows * kChannels), y(kRows * kChannels);
  const Dropout d{.p = 0.1f, .seed = 1, .purpose = 2};
  for (auto _ : state) dropout(s, d, x, y, kRows * kChannels, 0);
  count_bytes(state, 2 * kRows * kChannels);
}
BENCHMARK(residual_dropout)->Unit(benchmark::kMicrosecond)->UseRealTime();

void gelu(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = kRows * 4 * kChannels;
  const Buffer x(kCount), y(kCount);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      gelu_forward(s, x, y, kCount);
    } else {
      gelu_backward(s, y, x, y, kCount);
    }
  }
  count_bytes(state, (state.range(0) == 0 ? 2 : 3) * kCount);
}
BENCHMARK(gelu)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

void bias_gradient(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer dy(kRows * state.range(0)), dbias(state.range(0));
  for (auto _ : state) bias_backward(s, dy, dbias, kRows, state.range(0));
  count_bytes(state, kRows * state.range(0));
}
BENCHMARK(bias_gradient)->Arg(kChannels)->Arg(4 * kChannels)->Unit(benchmark::kMicrosecond)->UseRealTime();

void residual_add(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer x(kRows * kChannels), y(kRows * kChannels);
  for (auto _ : state) add(s, x, y, kRows * kChannels);
  count_bytes(state, 3 * kRows * kChannels);
}
BENCHMARK(residual_add)->Unit(benchmark::kMicrosecond)->UseRealTime();

void cross_entropy(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const std::int64_t vocabulary = state.range(0);
  const Buffer logits(kRows * vocabulary), maximum(kRows), sums(kRows), target(kRows);
  const Memory targets(DeviceKind::cpu, kRows * sizeof(std::int32_t));
  const auto* const ids = reinterpret_cast<const std::int32_t*>(targets.data());
  for (auto _ : state) {
    logits_max(s, logits, maximum, kRows, vocabulary);
    logits_sum(s, logits, ids, maximum, sums, target, kRows, vocabulary, 0);
    logits_backward(s, logits, ids, sums, 1.0f, kRows, vocabulary, 0);
  }
  count_bytes(state, 5 * kRows * vocabulary);
}
BENCHMARK(cross_entropy)->Arg(256)->Arg(50257)->Unit(benchmark::kMillisecond)->UseRealTime();

void optimizer(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = 10'000'000;
  const Buffer param(kCount), grad(kCount), m(kCount), v(kCount);
  zero(s, v, kCount);
  const AdamW h{.lr = 1e-3f,
                .beta1 = 0.9f,
                .beta2 = 0.95f,
                .eps = 1e-8f,
                .weight_decay = 0.1f,
                .grad_scale = 1,
                .step = 1};
  for (auto _ : state) adamw(s, h, param, grad, m, v, kCount);
  count_bytes(state, 7 * kCount);
}
BENCHMARK(optimizer)->Unit(benchmark::kMillisecond)->UseRealTime();

void gradient_norm(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = 10'000'000;
  const Buffer grad(kCount);
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(s, grad, kCount));
  count_bytes(state, kCount);
}
BENCHMARK(gradient_norm)->Unit(benchmark::kMillisecond)->UseRealTime();

void normal_numbers(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = 10'000'000;
  const Buffer y(kCount);
  for (auto _ : state) fill_normal(s, y, kCount, 1, 1, 0, 0.02f);
  count_bytes(state, kCount);
}
BENCHMARK(normal_numbers)->Unit(benchmark::kMillisecond)->UseRealTime();

void embedding(benchmark::State& state) {
  Stream s(DeviceKind::cpu);
  const Buffer table(256 * kChannels), y(kRows * kChannels);
  const Memory tokens(DeviceKind::cpu, kRows * sizeof(std::int32_t));
  auto* const ids = reinterpret_cast<std::int32_t*>(tokens.data());
  for (std::int64_t i = 0; i < kRows; ++i) ids[i] = static_cast<std::int32_t>(i * i % 251);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      embedding_forward(s, ids, table, y, kRows, kChannels, 0, 256);
    } else {
      embedding_backward(s, ids, y, table, kRows, kChannels, 0, 256);
    }
  }
  count_bytes(state, 2 * kRows * kChannels);
}
BENCHMARK(embedding)->ArgName("backward")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace shardwright::kernels

BENCHMARK_MAIN();
