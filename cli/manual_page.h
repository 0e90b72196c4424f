// The manual page, made from what the subcommands declare.
#pragma once

#include <string>

namespace shardwright::cli {

/// shardwright(1) as roff for man: `shardwright --man | man -l -`. ASCII only.
std::string manual_page();

}  // namespace shardwright::cli
