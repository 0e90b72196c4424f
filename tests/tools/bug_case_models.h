// The small models of the public reports that tests are named for.
#pragma once

#include "reshard/model_spec.h"

namespace shardwright {

inline reshard::ModelConfig llama_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                                        std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocab) {
  return {.arch = "llama",
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .vocab = vocab,
          .seq_len = 32,
          .tie_embeddings = false};
}

/// G1 and BL1 are tied, the others are not.
inline reshard::ModelConfig g1_model() {
  return {.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 97, .seq_len = 32};
}
inline reshard::ModelConfig l1_model() { return llama_model(6, 96, 12, 4, 176, 203); }
inline reshard::ModelConfig l2_model() { return llama_model(4, 64, 8, 2, 96, 64); }
inline reshard::ModelConfig u1_model() { return llama_model(7, 40, 5, 5, 105, 131); }
inline reshard::ModelConfig t1_model() { return llama_model(2, 12, 3, 3, 21, 33); }

/// A BLOOM of our own: a number of heads that is no power of two, and an odd width of the MLP.
inline reshard::ModelConfig bl1_model() {
  return {.arch = "bloom", .layers = 6, .hidden = 42, .heads = 6, .ffn = 101, .vocab = 97, .seq_len = 32};
}

inline reshard::ModelConfig tied(reshard::ModelConfig model) {
  model.tie_embeddings = true;
  return model;
}

}  // namespace shardwright
