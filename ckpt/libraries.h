// The libraries that this one is linked with, for --version and for reports of defects.
#pragma once

#include <string>
#include <vector>

namespace shardwright::ckpt {

struct Library {
  std::string name;
  std::string version;  // of what is loaded, not of the headers
};
std::vector<Library> linked_libraries();

}  // namespace shardwright::ckpt
