#include "trainer/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/fingerprint.h"
#include "kernels/device.h"
#include "reshard/layout.h"

namespace shardwright::trainer {
namespace {

using reshard::Role;

reshard::ModelSpec g1() {
  reshard::ModelConfig config;
  config.layers = 4;
  config.hidden = 64;
  config.heads = 4;
  config.ffn = 256;
  config.vocab = 97;
  config.seq_len = 32;
  return reshard::build_model(config);
}

using Fingerprints = std::map<std::pair<std::string, std::string>, ckpt::Fingerprint>;

// Fingerprints of what all ranks of a layout would save, built one after the other in this process.
Fingerprints saved(const reshard::ModelSpec& model, const reshard::Layout& layout, std::uint64_t seed) {
  Fingerprints sums;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    Parameters parameters(model, layout, rank);
    parameters.initialise(seed);
    for (const ckpt::SaveItem& item : parameters.save_items()) {
      std::vector<std::byte> values(item.box.elements() * sizeof(float));
      if (!values.empty()) item.source->read(item.box, values.data());
      sums[{item.tensor, item.kind}] +=
          ckpt::fingerprint(values.data(), sizeof(float), item.box, item.global_shape);
    }
  }
  return sums;
}

TEST(Parameters, StepZeroIsTheSameInEveryLayout) {
  kernels::set_threads(1);  // many small draws
  const reshard::ModelSpec model = g1();
  const Fingerprints expected = saved(model, reshard::Layout{}, 7);
  EXPECT_EQ(expected.size(), 3 * model.tensors.size());
  for (const auto& [key, fingerprint] : expected)
    EXPECT_EQ(fingerprint.count,
              ckpt::element_count(model.tensors[static_cast<std::size_t>(model.find(key.first))].shape));
  for (const char* text :
       {"t1d2", "t1d3z1", "t2d1", "t2d2z1", "t2d3", "t4d1z1", "t4d2", "t1d7z1", "t2d3z2", "t1d7z3"})
    EXPECT_EQ(saved(model, reshard::parse_layout(text), 7), expected) << text;
  EXPECT_NE(saved(model, reshard::Layout{}, 8), expected);
}

TEST(Parameters, StepZeroHasGpt2sSpread) {
  kernels::set_threads(1);
  const reshard::ModelSpec model = g1();
  Parameters parameters(model, reshard::Layout{}, 0);
  parameters.initialise(1);
  const auto stddev = [](const Parameter& p) {
    double squares = 0;
    for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i)
      squares += double{p.value.f32()[i]} * p.value.f32()[i];
    return std::sqrt(squares / static_cast<double>(p.placed.holds.elements()));
  };
  EXPECT_NEAR(stddev(*parameters.find(Role::embed_tokens)), 0.02, 0.001);
  EXPECT_NEAR(stddev(*parameters.find(Role::up, 2)), 0.02, 0.001);
  EXPECT_NEAR(stddev(*parameters.find(Role::down, 2)), 0.02 / std::sqrt(8.0), 0.0005);
  EXPECT_EQ(parameters.find(Role::input_norm, 1)->value.f32()[5], 1.0F);
  EXPECT_EQ(parameters.find(Role::q_bias, 1)->value.f32()[5], 0.0F);
  // Tensors of one shape differ from each other.
  EXPECT_NE(parameters.find(Role::up, 0)->value.f32()[0], parameters.find(Role::up, 1)->value.f32()[0]);
}

TEST(Parameters, B07_FusedPartsLieBackToBack) {
  const reshard::ModelSpec model = g1();
  for (const char* text : {"t1", "t2d3z1", "t4"}) {
    const reshard::Layout layout = reshard::parse_layout(text);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      Parameters parameters(model, layout, rank);
      for (std::int64_t layer = 0; layer < 4; ++layer) {
        for (const auto& [a, b] :
             {std::pair{Role::q, Role::k}, std::pair{Role::k, Role::v}, std::pair{Role::q_bias, Role::k_bias},
              std::pair{Role::k_bias, Role::v_bias}}) {
          const Parameter& first = *parameters.find(a, layer);
          const Parameter& second = *parameters.find(b, layer);
          EXPECT_EQ(first.value.f32() + first.placed.holds.elements(), second.value.f32());
          EXPECT_EQ(first.grad + first.placed.holds.elements(), second.grad);
        }
      }
    }
  }
}

TEST(Parameters, MemoryIsAlignedAndDisjoint) {
  for (const char* text : {"t2d3z0", "t2d3z1", "t2d3z2", "t2d3z3"}) {
    Parameters parameters(g1(), reshard::parse_layout(text), 3);
    // What shares a slot may overlap: one layer of it is looked at.
    const auto seen = [&](const Parameter& p) {
      return parameters.memory().zero < 2 || p.spec->layer() <= 0;
    };
    std::vector<std::pair<const float*, const float*>> ranges;
    for (const Parameter& p : parameters.all()) {
      const bool follows = p.spec->role == Role::k || p.spec->role == Role::v ||
                           p.spec->role == Role::k_bias || p.spec->role == Role::v_bias;
      EXPECT_TRUE(follows || reinterpret_cast<std::uintptr_t>(p.value.f32()) % 64 == 0) << p.spec->name;
      if (seen(p)) {
        ranges.emplace_back(p.value.f32(), p.value.f32() + p.placed.holds.elements());
        ranges.emplace_back(p.grad, p.grad + p.placed.holds.elements());
      }
      if (parameters.memory().zero >= 2)
        ranges.emplace_back(p.grad_piece, p.grad_piece + p.optimizer_box.elements());
      if (parameters.memory().zero >= 3) ranges.emplace_back(p.master, p.master + p.optimizer_box.elements());
      ranges.emplace_back(p.exp_avg, p.exp_avg + p.optimizer_box.elements());
      ranges.emplace_back(p.exp_avg_sq, p.exp_avg_sq + p.optimizer_box.elements());
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  }
}

TEST(Parameters, LoadItemsFillWhatTheOptimizerOwns) {
  for (const char* text : {"t2d3z0", "t2d3z1", "t2d3z3"}) {
    Parameters parameters(g1(), reshard::parse_layout(text), 4);
    std::map<std::string, std::uint64_t> elements;
    for (const ckpt::LoadItem& item : parameters.load_items(false))
      elements[item.kind] += item.box.elements();
    std::uint64_t owned = 0;
    for (const Parameter& p : parameters.all()) owned += p.optimizer_box.elements();
    EXPECT_EQ(elements, (std::map<std::string, std::uint64_t>{
                            {"param", owned}, {"exp_avg", owned}, {"exp_avg_sq", owned}}));
    EXPECT_EQ(parameters.load_items(true).size() * 3, parameters.load_items(false).size());
  }
}

TEST(Parameters, LayersShareASlotWhereTheyAreSharded) {
  const reshard::ModelSpec model = g1();
  for (const char* text : {"d3z1", "d3z2", "d3z3", "t2p2d2z3", "d1z3"}) {
    Parameters parameters(model, reshard::parse_layout(text), 0);
    const int zero = parameters.memory().zero;
    EXPECT_EQ(zero, parameters.layout().string() == "t1p1d1z3" ? 1 : parameters.layout().zero);
    const Parameter& a = *parameters.find(Role::up, 0);
    const Parameter& b = *parameters.find(Role::up, 1);
    EXPECT_EQ(a.value.f32() == b.value.f32(), zero == 3) << text;
    EXPECT_EQ(a.grad == b.grad, zero >= 2) << text;
    EXPECT_NE(a.grad_piece, b.grad_piece);
    EXPECT_NE(a.master, b.master);
    // What is before and after the layers has memory of its own; tied on one rank it is one unit.
    const Parameter& table = *parameters.find(Role::embed_tokens);
    EXPECT_NE(table.grad, a.grad);
    if (const Parameter* norm = parameters.find(Role::final_norm)) {
      EXPECT_EQ(norm->unit, table.unit);
    }
  }
}

}  // namespace
}  // namespace shardwright::trainer
