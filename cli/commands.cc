#include "cli/commands.h"

namespace shardwright::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"train", "train a model; the same command again goes on from the newest valid checkpoint", train, {}},
      {"config", "the configuration a training would have, and who said each value", config, {}},
      {"reshard", "write a checkpoint again for another layout", reshard, {}},
      {"inspect", "say what is in a checkpoint", inspect, {}},
      {"verify", "read and check every byte of a checkpoint", verify, {}},
      {"diff", "compare two checkpoints by tensor, whatever their layouts", diff, {}},
      {"list", "every checkpoint of a run, valid or not and why", list, {}},
      {"prune", "remove old checkpoints, never the last valid one", prune, {}},
      {"view", "an HDF5 file that shows whole tensors to h5py and h5dump", view, {}},
      {"plan", "layouts of a model on a number of GPUs, with their memory and time, best first", plan, {}},
      {"eval", "loss of a checkpoint on a data file", eval, {}},
      {"doctor", "what a training finds on this machine, and what would go wrong", doctor, {}},
      {"bench", "measure checkpoints or training against this machine's limits", bench, {"ckpt", "reshard", "train"}},
  };
  return all;
}

std::vector<CommandHelp> commands_help() {
  std::vector<CommandHelp> all;
  for (const Command& command : commands()) {
    if (command.topics.empty()) all.push_back(help_of([&] { command.run({}); }));
    for (const std::string& topic : command.topics) all.push_back(help_of([&] { command.run({topic}); }));
  }
  return all;
}

}  // namespace shardwright::cli
