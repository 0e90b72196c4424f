// scramble SOURCE RUN TENSOR
//   saves the checkpoint SOURCE again into the run RUN, with the values of one matrix, kind param, in an
//   order of chance: a file that no digest can tell from a good one. Prints the path.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "ckpt/run.h"
#include "ckpt/typed_items.h"

namespace shardwright {
namespace {

std::string scramble(const std::string& source, const std::string& run_dir, const std::string& tensor) {
  const auto from =
      std::make_shared<const ckpt::Checkpoint>(ckpt::Checkpoint::open(ckpt::posix_env(), source));
  const ckpt::Manifest& m = from->manifest();
  const ckpt::Dims& shape = from->shape(tensor);
  const ckpt::Box whole = ckpt::Box::whole(shape);
  std::vector<float> values(whole.elements());
  from->load(std::vector{ckpt::load_item(tensor, "param", shape, whole, values)}, {});
  std::ranges::shuffle(values, std::mt19937(1));

  std::vector<ckpt::SaveItem> items{ckpt::save_item(tensor, "param", shape, whole, values)};
  for (std::uint32_t i = 0; i < m.states.size(); ++i) {
    const ckpt::StateEntry& state = m.states[i];
    const ckpt::TensorEntry& of = m.tensors[state.tensor];
    if (of.name == tensor && state.kind == "param") continue;
    const ckpt::Box all = ckpt::Box::whole(of.shape);
    items.push_back({of.name,
                     state.kind,
                     state.dtype,
                     of.shape,
                     all,
                     {},
                     ckpt::checkpoint_source(from, i, all, std::uint64_t{1} << 20)});
  }
  const ckpt::Run run(run_dir);
  return ckpt::RunWriter(run_dir, run.generation(), {}).save(from->commit().step, items, m.description);
}

}  // namespace
}  // namespace shardwright

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw shardwright::Error(shardwright::ErrorCode::usage, "SOURCE RUN TENSOR");
    std::puts(shardwright::scramble(argv[1], argv[2], argv[3]).c_str());
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "scramble: %s\n", e.what());
    return 2;
  }
}
