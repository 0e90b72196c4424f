#include "ckpt/view.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "ckpt/scan.h"
#include "ckpt/size_text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/words.h"

namespace shardwright::cli {

int view(const Arguments& arguments) {
  std::string path, out;
  bool json = false;
  Options flags(
      "view",
      "Writes an HDF5 file with a virtual dataset of the global shape for each tensor and kind, over the "
      "shards of a checkpoint: for h5py and h5dump with the filter plugin.",
      "shardwright view runs/demo runs/demo/newest.h5");
  flags.positional("CKPT", path, "a checkpoint, or a run (then its newest valid checkpoint)");
  flags.positional("OUT.h5", out, "the file to write; must not exist");
  flags.flag("--json", json, "print JSON");
  flags.footer(fmt::format(
      "Beware: {}.\n\nNames are relative where view and checkpoint have a directory in common, so "
      "that both may be moved together.",
      ckpt::kViewWarning));
  if (!flags.parse(arguments)) return 0;

  ckpt::Env& env = ckpt::posix_env();
  const std::string checkpoint = ckpt::resolve_checkpoint(env, path);
  const ckpt::View written = ckpt::write_view(env, checkpoint, out);
  std::fputs(fmt::format("shardwright: warning: {}: {}\n", out, ckpt::kViewWarning).c_str(), stderr);
  if (json)
    print_json({{"path", out},
                {"checkpoint", checkpoint},
                {"source", written.source},
                {"step", written.step},
                {"tensors", written.tensors},
                {"datasets", written.datasets},
                {"boxes", written.boxes},
                {"bytes", written.bytes},
                {"warning", ckpt::kViewWarning}});
  else
    print(fmt::format("{}: {} datasets of {} tensors, put together from {} pieces in {}; step {}, {}\n", out,
                      grouped_text(written.datasets), grouped_text(written.tensors),
                      grouped_text(written.boxes), written.source, written.step,
                      ckpt::size_text(written.bytes)));
  return 0;
}

}  // namespace shardwright::cli
