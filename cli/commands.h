// The subcommands, one file each. Each takes the arguments after its name, prints, and returns the exit
// status; errors are thrown.
#pragma once

#include <string>
#include <vector>

namespace shardwright::cli {

using Arguments = std::vector<std::string>;

int train(const Arguments& arguments);
int reshard(const Arguments& arguments);
int inspect(const Arguments& arguments);
int verify(const Arguments& arguments);
int diff(const Arguments& arguments);
int list(const Arguments& arguments);
int prune(const Arguments& arguments);
int eval(const Arguments& arguments);
int bench(const Arguments& arguments);

}  // namespace shardwright::cli
