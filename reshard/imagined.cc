#include "reshard/imagined.h"

#include <fmt/format.h>

#include <array>

#include "reshard/placement.h"

namespace shardwright::reshard {

ckpt::Manifest imagined_manifest(const ModelSpec& model, const Layout& layout) {
  constexpr std::array kKinds{kExpAvg, kExpAvgSq, kParam};
  ckpt::Manifest manifest;
  manifest.description.model = to_json(model.config);
  manifest.description.layout = to_json(layout, model);
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    manifest.tensors.push_back({model.tensors[t].name, model.tensors[t].shape});
    for (const char* kind : kKinds) {
      ckpt::StateEntry state{t, kind, ckpt::DType::f32, {}};
      state.fingerprint.count = ckpt::element_count(model.tensors[t].shape);
      manifest.states.push_back(state);
    }
  }
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    ckpt::FileRecord file;
    file.name = fmt::format("rank-{:05}.h5", rank);
    const auto number = static_cast<std::uint32_t>(manifest.files.size());
    for (const Placed& p : placement(model, layout, rank)) {
      if (p.writes.empty()) continue;
      const std::uint64_t chunks = ckpt::element_count(ckpt::chunk_grid(p.writes, p.chunk));
      for (std::uint32_t kind = 0; kind < kKinds.size(); ++kind) {
        const auto state = static_cast<std::uint32_t>(p.tensor * kKinds.size() + kind);
        manifest.boxes.push_back({state, number, "", p.writes, p.chunk, 0, chunks});
        file.bytes += p.writes.elements() * ckpt::size_of(ckpt::DType::f32);
      }
    }
    if (file.bytes > 0) manifest.files.push_back(file);
  }
  return manifest;
}

}  // namespace shardwright::reshard
