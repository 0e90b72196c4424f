#include "reshard/presets.h"

#include "ckpt/nearest.h"

namespace shardwright::reshard {
namespace {

// Radford et al. 2019; also the blocks of MT-NLG (Smith et al. 2022) and of Megatron's trillion parameters
// (Narayanan et al. 2021).
ModelConfig gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab,
                std::int64_t seq_len) {
  return {.layers = layers, .hidden = hidden, .heads = heads, .ffn = 0, .vocab = vocab, .seq_len = seq_len};
}
ModelConfig gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  return gpt(layers, hidden, heads, 50257, 1024);
}

// BigScience 2022.
ModelConfig bloom(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelConfig c = gpt(layers, hidden, heads, 250880, 2048);
  c.arch = "bloom";
  return c;
}

struct LlamaSize {
  std::int64_t layers, hidden, heads, kv_heads, ffn;
};

// Touvron et al. 2023 (both), Dubey et al. 2024.
ModelConfig llama(const LlamaSize& size, std::int64_t vocab, std::int64_t seq_len) {
  return {.arch = "llama",
          .layers = size.layers,
          .hidden = size.hidden,
          .heads = size.heads,
          .kv_heads = size.kv_heads,
          .ffn = size.ffn,
          .vocab = vocab,
          .seq_len = seq_len,
          .tie_embeddings = false};
}

constexpr LlamaSize k7b{32, 4096, 32, 32, 11008};
constexpr LlamaSize k13b{40, 5120, 40, 40, 13824};

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"gpt2-124m", gpt2(12, 768, 12), 512},
      {"gpt2-355m", gpt2(24, 1024, 16), 512},
      {"gpt2-774m", gpt2(36, 1280, 20), 512},
      {"gpt2-xl", gpt2(48, 1600, 25), 512},
      {"llama-7b", llama(k7b, 32000, 2048), 2048},
      {"llama-13b", llama(k13b, 32000, 2048), 2048},
      {"llama-30b", llama({60, 6656, 52, 52, 17920}, 32000, 2048), 2048},
      {"llama-65b", llama({80, 8192, 64, 64, 22016}, 32000, 2048), 2048},
      {"llama2-7b", llama(k7b, 32000, 4096), 1024},
      {"llama2-13b", llama(k13b, 32000, 4096), 1024},
      {"llama2-70b", llama({80, 8192, 64, 8, 28672}, 32000, 4096), 1024},
      {"llama3-8b", llama({32, 4096, 32, 8, 14336}, 128256, 8192), 2048},
      {"llama3-70b", llama({80, 8192, 64, 8, 28672}, 128256, 8192), 2048},
      {"llama-405b", llama({126, 16384, 128, 8, 53248}, 128256, 8192), 2048},
      {"bloom-560m", bloom(24, 1024, 16), 256},
      {"bloom-1b7", bloom(24, 2048, 16), 512},
      {"bloom-3b", bloom(30, 2560, 32), 512},
      {"bloom-7b1", bloom(30, 4096, 32), 512},
      {"bloom-176b", bloom(70, 14336, 112), 2048},
      {"mt-nlg-530b", gpt(105, 20480, 128, 51200, 2048), 1920},
      {"megatron-1t", gpt(128, 25600, 160, 51200, 2048), 3072},
  };
  return all;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return &preset;
  return nullptr;
}

std::string nearest_preset(std::string_view name) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return ckpt::nearest(name, names);
}

}  // namespace shardwright::reshard
